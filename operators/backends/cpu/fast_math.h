// exp, log, tanh, erf and the normal distribution in forms that the compiler vectorises: without branches or calls, for
// f32. The polynomials are minimax fits of our own. For f64 they are the C library's.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "sluice/operators/backends/cpu/dispatch.h"

namespace sluice::cpu_backend {

/// exp(x) to 3 ulp. Results below 1.2e-38 are
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

/// log(x) to 1 ulp: x = 2^n m with m in [sqrt(1/2), sqrt(2)), and a polynomial of m - 1. Minus infinity of 0, NaN of
/// negative numbers and of NaN.
SLUICE_KERNEL_BODY float fast_log(float x) {
  const bool subnormal = x < 1.17549435e-38F;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(subnormal ? x * 8388608.0F : x);
  const std::int32_t n = static_cast<std::int32_t>(bits - 0x3F3504F3U) >> 23;
  const float m = std::bit_cast<float>(bits - (static_cast<std::uint32_t>(n) << 23U));
  const float exponent = static_cast<float>(n) - (subnormal ? 23.0F : 0.0F);
  const float r = m - 1.0F, square = r * r;
  float p = 0.0691701621F;
  p = p * r - 0.117919274F;
  p = p * r + 0.118733853F;
  p = p * r - 0.123840407F;
  p = p * r + 0.142185673F;
  p = p * r - 0.166692644F;
  p = p * r + 0.20002231F;
  p = p * r - 0.249999866F;
  p = p * r + 0.333333105F;
  const float of_m = r + (p * (r * square) - 0.5F * square);
  const float y = (of_m + exponent * -2.12194440e-4F) + exponent * 0.693359375F;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float of_positive = x == 0.0F ? -infinity : x == infinity ? infinity : y;
  return x >= 0.0F ? of_positive : std::numeric_limits<float>::quiet_NaN();
}

/// tanh(x) to 2 ulp: a polynomial below 0.64, and 1 - 2 / (exp(2 |x|) + 1) above.
SLUICE_KERNEL_BODY float fast_tanh(float x) {
  const float size = std::fabs(x), square = x * x;
  float p = -0.00601065252F;
  p = p * square + 0.0209386759F;
  p = p * square - 0.0538388714F;
  p = p * square + 0.133326948F;
  p = p * square - 0.333333284F;
  const float low = size + size * (square * p), high = 1.0F - 2.0F / (fast_exp(2.0F * size) + 1.0F);
  return std::copysign(size < 0.64F ? low : high, x);
}

/// erf(x) to 3 ulp: a polynomial below 1, and 1 - exp(-q(|x|)) above, where q is a polynomial near -log(erfc).
SLUICE_KERNEL_BODY float fast_erf(float x) {
  const float size = std::fabs(x), square = x * x;
  float p = -9.64151786e-06F;
  p = p * square + 0.000112569483F;
  p = p * square - 0.000848282885F;
  p = p * square + 0.00522094546F;
  p = p * square - 0.0268654004F;
  p = p * square + 0.112837821F;
  p = p * square - 0.376126379F;
  p = p * square + 1.12837923F;
  const float inside = size < 4.0F ? size : 4.0F;  // beyond, the result is 1
  float q = 2.16867556e-05F;
  q = q * inside - 0.0004413352F;
  q = q * inside + 0.00420455588F;
  q = q * inside - 0.0252082385F;
  q = q * inside + 0.108418547F;
  q = q * inside + 0.633219898F;
  q = q * inside + 1.12957835F;
  q = q * inside - 0.000188036647F;
  const float high = std::copysign(1.0F - fast_exp(-q), x);
  const float y = size < 1.0F ? x * p : high;
  return x == x ? y : x;
}

/// (1 + erf(x / sqrt 2)) / 2, the share of a normal distribution below x, to 2^-22: a quotient of two polynomials,
/// which is quicker than fast_erf() and not as near to 0 for small erf. 0 below -5.5 and 1 above 5.5, where the nearest
/// f32 of the erf is -1 or 1.
SLUICE_KERNEL_BODY float fast_normal(float x) {
  const float inside = x < -5.5F ? -5.5F : (x > 5.5F ? 5.5F : x), square = inside * inside;
  float p = 4.54986839e-08F;
  p = p * square + 1.27042331e-05F;
  p = p * square + 0.000337652255F;
  p = p * square + 0.00935452618F;
  p = p * square + 0.0677053928F;
  p = p * square + 0.797884464F;
  float q = 1.19750314e-06F;
  q = q * square + 7.36476213e-05F;
  q = q * square + 0.00188444741F;
  q = q * square + 0.0286458991F;
  q = q * square + 0.251522034F;
  q = q * square + 1.0F;
  const float y = 0.5F + 0.5F * (inside * p) / q;
  // One choice after the other: GCC makes no vector code of two conditions in one.
  const float below = y > 1.0F ? 1.0F : y, share = below < 0.0F ? 0.0F : below, high = x > 5.5F ? 1.0F : share;
  return x < -5.5F ? 0.0F : high;
}

SLUICE_KERNEL_BODY double fast_exp(double x) { return std::exp(x); }
SLUICE_KERNEL_BODY double fast_log(double x) { return std::log(x); }
SLUICE_KERNEL_BODY double fast_tanh(double x) { return std::tanh(x); }
SLUICE_KERNEL_BODY double fast_erf(double x) { return std::erf(x); }

}  // namespace sluice::cpu_backend
