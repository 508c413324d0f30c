// Conversion between element types, as static_cast would, the 16-bit floating types included.
#pragma once

#include <type_traits>

#include "sluice/ndarray/dtype.h"
#include "sluice/ndarray/half.h"
#include "sluice/operators/backends/cpu/dispatch.h"

namespace sluice::cpu_backend {

template <class To, class From>
To convert(From value) {
  constexpr bool from_half = std::is_same_v<From, Float16> || std::is_same_v<From, BFloat16>;
  constexpr bool to_half = std::is_same_v<To, Float16> || std::is_same_v<To, BFloat16>;
  if constexpr (from_half) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (to_half) {
    return To(value);
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else {
    return static_cast<To>(value);
  }
}

// Bodies of dispatch() for n elements of 16 bits side by side: to f32, and back with one rounding.
struct Widen {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const T* x, float* y, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(x[i]);
  }
};
struct Narrow {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const float* x, T* y, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) y[i] = T(x[i]);
  }
};

/// A row number or label as i64, from i64, i32 or u8.
inline std::int64_t label_at(DType dtype, const std::byte* data, std::int64_t i) {
  switch (dtype) {
    case DType::i64:
      return reinterpret_cast<const std::int64_t*>(data)[i];
    case DType::i32:
      return reinterpret_cast<const std::int32_t*>(data)[i];
    default:
      return reinterpret_cast<const std::uint8_t*>(data)[i];
  }
}

}  // namespace sluice::cpu_backend
