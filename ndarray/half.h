// The two 16-bit floating types, as bits. They hold elements; kernels compute with them in float.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "sluice/resources/host_device.h"

namespace sluice {

/// An IEEE binary16 number. Conversion from float rounds to nearest, ties to even.
struct Float16 {
  std::uint16_t bits = 0;
  Float16() = default;
  SLUICE_HD explicit Float16(float value) {
    const auto whole = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>(whole >> 16U & 0x8000U);
    const float size = std::abs(value);
    if (value != value) {
      bits = sign | 0x7e00U;
    } else if (size >= 65520.0F) {
      bits = sign | 0x7c00U;
    } else if (size < 0x1p-14F) {  // subnormal: a whole number of 2^-24
      bits = static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(std::nearbyint(size * 0x1p24F)));
    } else {
      const std::uint32_t mantissa = (whole & 0x7fffffffU) - (112U << 23U);
      const std::uint32_t rounded = mantissa + 0xfffU + (mantissa >> 13U & 1U);
      bits = static_cast<std::uint16_t>(sign | rounded >> 13U);
    }
  }
  SLUICE_HD explicit operator float() const {
    const std::uint32_t exponent = bits >> 10 & 31U, fraction = bits & 1023U;
    float value = static_cast<float>(fraction) * 0x1p-24F;
    if (exponent == 31) {
      value = fraction != 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
    } else if (exponent != 0) {
      value = std::bit_cast<float>((exponent + 112U) << 23U | fraction << 13U);
    }
    return (bits & 0x8000) != 0 ? -value : value;
  }
};

/// A bfloat16 number: the upper half of a float. Conversion from float rounds to nearest, ties to even.
struct BFloat16 {
  std::uint16_t bits = 0;
  BFloat16() = default;
  SLUICE_HD explicit BFloat16(float value) {
    const auto whole = std::bit_cast<std::uint32_t>(value);
    bits = value != value ? static_cast<std::uint16_t>(whole >> 16U | 0x40U)
                          : static_cast<std::uint16_t>((whole + 0x7fffU + (whole >> 16U & 1U)) >> 16U);
  }
  SLUICE_HD explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U); }
};

}  // namespace sluice
