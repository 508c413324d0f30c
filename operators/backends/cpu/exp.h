// exp in a form that the compiler vectorises.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "sluice/operators/backends/cpu/dispatch.h"

namespace sluice::cpu_backend {

/// exp(x) to 2 ulp for f32, without branches or calls, so that loops over it vectorise. Results below 1.2e-38 are
/// subnormal, and those below 2^-150 are 0; above 88.72 it gives infinity, and NaN of NaN. The method: x = n ln 2 + r
/// with |r| <= ln 2 / 2, a polynomial of degree 6 for exp(r), and n added to the exponent in two halves. Of those only
/// the second can make a subnormal number, so it is rounded once.
SLUICE_KERNEL_BODY float fast_exp(float x) {
  constexpr float magic = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const float inside = x < -105.0F ? -105.0F : (x > 89.0F ? 89.0F : x);
  const float shifted = inside * 1.44269504088896341F + magic;
  const float whole = shifted - magic;
  float r = inside - whole * 0.693359375F;
  r = r - whole * -2.12194440e-4F;
  float p = 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  // Bits of the integer; taken from the shifted value, because converting a NaN to int is undefined.
  const std::int32_t n = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(magic);
  const std::int32_t half = n >> 1;
  const float low = std::bit_cast<float>(static_cast<std::int32_t>(static_cast<std::uint32_t>(half + 127) << 23U));
  const float high = std::bit_cast<float>(static_cast<std::int32_t>(static_cast<std::uint32_t>(n - half + 127) << 23U));
  const float y = p * low * high;
  return x == x ? y : x;
}

/// exp(x) for f64: the C library's.
SLUICE_KERNEL_BODY double fast_exp(double x) { return std::exp(x); }

}  // namespace sluice::cpu_backend
