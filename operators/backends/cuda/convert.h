// Conversion between element types in kernels.
#pragma once

#include <type_traits>

#include "sluice/ndarray/dtype.h"
#include "sluice/resources/host_device.h"

namespace sluice::cuda {

/// x as an element of another type, as a static_cast would, from f16 and bf16 by way of float.
template <class To, class From>
SLUICE_HD To converted(From x) {
  constexpr bool from_half = std::is_same_v<From, Float16> || std::is_same_v<From, BFloat16>;
  constexpr bool to_half = std::is_same_v<To, Float16> || std::is_same_v<To, BFloat16>;
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (from_half) {
    return converted<To>(static_cast<float>(x));
  } else if constexpr (to_half) {
    return To(x);
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != From(0);
  } else {
    return static_cast<To>(x);
  }
}

/// Element i of contiguous labels or row numbers: i64, i32 or u8.
SLUICE_HD inline std::int64_t label_at(DType dtype, const void* labels, std::int64_t i) {
  if (dtype == DType::i64) return static_cast<const std::int64_t*>(labels)[i];
  if (dtype == DType::i32) return static_cast<const std::int32_t*>(labels)[i];
  return static_cast<const std::uint8_t*>(labels)[i];
}

}  // namespace sluice::cuda
