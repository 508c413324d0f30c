// Conversion between element types, as static_cast would, the 16-bit floating types included.
#pragma once

#include <type_traits>

#include "sluice/ndarray/dtype.h"
#include "sluice/ndarray/half.h"

namespace sluice::backends {

template <class To, class From>
To convert(From value) {
  constexpr bool from_half = std::is_same_v<From, Float16> || std::is_same_v<From, BFloat16>;
  constexpr bool to_half = std::is_same_v<To, Float16> || std::is_same_v<To, BFloat16>;
  if constexpr (from_half) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (to_half) {
    return To(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else {
    return static_cast<To>(value);
  }
}

/// Calls f.template operator()<T>() with the C++ type of a dtype.
template <class F>
void with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::f32:
      return f.template operator()<float>();
    case DType::f64:
      return f.template operator()<double>();
    case DType::f16:
      return f.template operator()<Float16>();
    case DType::bf16:
      return f.template operator()<BFloat16>();
    case DType::i8:
      return f.template operator()<std::int8_t>();
    case DType::u8:
      return f.template operator()<std::uint8_t>();
    case DType::i32:
      return f.template operator()<std::int32_t>();
    case DType::i64:
      return f.template operator()<std::int64_t>();
    case DType::boolean:
      return f.template operator()<bool>();
  }
}

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

}  // namespace sluice::backends
