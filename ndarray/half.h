// The two 16-bit floating types, as bits. They hold elements; kernels compute with them in float.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "sluice/resources/host_device.h"

namespace sluice {

namespace detail {
/// x as a float that rounds to f16 and bf16 as x does: where x is none, the one of the two floats beside it whose last
/// bit is set ("round to odd": Boldo and Melquiond, Emulation of a FMA and correctly rounded sums, 2008).
SLUICE_HD inline float odd_float(double x) {
  const auto near = static_cast<float>(x);
  const auto bits = std::bit_cast<std::uint32_t>(near);
  const double back = static_cast<double>(near), size = x < 0 ? -x : x, size_back = back < 0 ? -back : back;
  if (back == x || x != x || (bits & 1U) != 0) return near;
  return std::bit_cast<float>(size_back > size ? bits - 1U : bits + 1U);
}
SLUICE_HD inline float odd_float(std::int64_t x) {
  // Below 2^53 it is a double; of what is larger the last bits become one that says whether any is set.
  const std::uint64_t size = x < 0 ? 0 - static_cast<std::uint64_t>(x) : static_cast<std::uint64_t>(x);
  const std::uint64_t kept =
      size >> 53U == 0 ? size : (size & ~std::uint64_t{0xfff}) | ((size & 0xfffU) != 0 ? 0x1000U : 0U);
  const auto value = static_cast<double>(kept);
  return odd_float(x < 0 ? -value : value);
}
template <class N>
SLUICE_HD float to_float_once(N x) {
  if constexpr (std::is_same_v<N, double>) {
    return odd_float(x);
  } else if constexpr (sizeof(N) == 8) {
    return odd_float(static_cast<std::int64_t>(x));
  } else if constexpr (sizeof(N) == 4) {
    return odd_float(static_cast<double>(x));
  } else {
    return static_cast<float>(x);
  }
}
}  // namespace detail

/// An IEEE binary16 number. Conversion from any number rounds once, to nearest, ties to even.
struct Float16 {
  std::uint16_t bits = 0;
  Float16() = default;
  // Both ways without branches, so that loops over them vectorise.
  SLUICE_HD explicit Float16(float value) {
    const auto whole = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = whole >> 16U & 0x8000U, size = whole & 0x7fffffffU;
    // Below 2^-14 a whole number of 2^-24, which is the last place of numbers from 1/2 on: the addition rounds to it.
    const std::uint32_t small = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5F) - 0x3f000000U;
    const std::uint32_t normal = (size - (112U << 23U) + 0xfffU + (size >> 13U & 1U)) >> 13U;
    const std::uint32_t finite = size < 0x38800000U ? small : normal;     // 2^-14
    const std::uint32_t number = size >= 0x477ff000U ? 0x7c00U : finite;  // 65520: infinity
    bits = static_cast<std::uint16_t>(sign | (size > 0x7f800000U ? 0x7e00U : number));
  }
  template <class N>
  requires std::is_arithmetic_v<N> SLUICE_HD explicit Float16(N value) : Float16(detail::to_float_once(value)) {}
  SLUICE_HD explicit operator float() const {
    const std::uint32_t size = bits & 0x7fffU;
    const bool small = size < 0x400U, infinite = size >= 0x7c00U;
    // Subnormal numbers are made as 2^-14 and what is above it, which is taken off; infinity and NaN get the largest
    // exponent.
    const std::uint32_t exponent = small ? 113U : infinite ? 224U : 112U;
    const std::uint32_t number = size > 0x7c00U ? 0x7fc00000U : (exponent << 23U) + (size << 13U);
    const float value = std::bit_cast<float>(number) - (small ? 0x1p-14F : 0.0F);
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | (bits & 0x8000U) << 16U);
  }
};

/// A bfloat16 number: the upper half of a float. Conversion from any number rounds once, to nearest, ties to even.
struct BFloat16 {
  std::uint16_t bits = 0;
  BFloat16() = default;
  SLUICE_HD explicit BFloat16(float value) {
    const auto whole = std::bit_cast<std::uint32_t>(value);
    bits = value != value ? static_cast<std::uint16_t>(whole >> 16U | 0x40U)
                          : static_cast<std::uint16_t>((whole + 0x7fffU + (whole >> 16U & 1U)) >> 16U);
  }
  template <class N>
  requires std::is_arithmetic_v<N> SLUICE_HD explicit BFloat16(N value) : BFloat16(detail::to_float_once(value)) {}
  SLUICE_HD explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U); }
};

}  // namespace sluice
