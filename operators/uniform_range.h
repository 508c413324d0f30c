// What the kernels of all backends make of draws: uniform numbers of [low, high), and dropout's choice.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "sluice/ndarray/half.h"
#include "sluice/operators/attributes.h"
#include "sluice/resources/host_device.h"

namespace sluice {

/// The largest number of a dtype below `limit`, which is finite; or with `or_equal` the limit itself, if it is one.
inline double largest_below(double limit, DType dtype, bool or_equal = false) {
  const auto too_large = [&](double number) { return or_equal ? number > limit : number >= limit; };
  const auto of_half = [&]<class T>(T) {
    T near(static_cast<float>(limit));
    if (too_large(static_cast<double>(static_cast<float>(near)))) {
      const bool zero = (near.bits & 0x7fffU) == 0, negative = (near.bits & 0x8000U) != 0;
      near.bits = static_cast<std::uint16_t>(zero ? 0x8001U : negative ? near.bits + 1U : near.bits - 1U);
    }
    return static_cast<double>(static_cast<float>(near));
  };
  if (dtype == DType::f16) return of_half(Float16());
  if (dtype == DType::bf16) return of_half(BFloat16());
  if (dtype == DType::f64) return or_equal ? limit : std::nextafter(limit, -std::numeric_limits<double>::infinity());
  const auto near = static_cast<float>(limit);
  const bool large = too_large(static_cast<double>(near));
  return static_cast<double>(large ? std::nextafter(near, -std::numeric_limits<float>::infinity()) : near);
}

/// Which element of the whole draw element i of an array is.
struct DrawWindow {
  std::uint64_t first;
  std::int64_t piece, stride;
  template <class A>
  explicit DrawWindow(const A& a) : first(a.first), piece(a.piece), stride(a.stride) {}
  SLUICE_HD std::uint64_t operator()(std::int64_t i) const {
    return first + static_cast<std::uint64_t>(piece == 0 ? i : i / piece * stride + i % piece);
  }
};

/// C is the type in which elements of the dtype are computed.
template <class C>
struct UniformRange {
  C low, high, width, least, most;  ///< the last two: of the dtype's numbers in the range
  bool wide;                        ///< the width is no number of C

  explicit UniformRange(const RandomAttributes& a)
      : low(static_cast<C>(a.a)),
        high(static_cast<C>(a.b)),
        width(static_cast<C>(a.b - a.a)),
        least(static_cast<C>(-largest_below(-a.a, a.dtype, true))),
        most(std::max(least, static_cast<C>(largest_below(a.b, a.dtype)))),
        wide(std::isinf(width)) {}

  /// What a rounding would bring out of the range is the nearest number in it.
  SLUICE_HD C operator()(C u) const {
    const C y = wide ? low * (1 - u) + high * u : low + width * u;
    return y < least ? least : y < most ? y : most;
  }
};

/// What dropout makes of an element, as a C, and the draw's word for it.
template <class C>
struct DropoutChoice {
  std::uint32_t least;  ///< of the word's highest 24 bits, k: k * 2^-24 >= float(p) where k >= this
  C scale;

  explicit DropoutChoice(double p)
      : least(static_cast<std::uint32_t>(std::ceil(static_cast<double>(static_cast<float>(p)) * 0x1p24))),
        scale(static_cast<C>(p < 1 ? 1 / (1 - p) : 0)) {}

  /// A choice, not a product with 0: dropped elements are 0 whatever x is.
  SLUICE_HD C operator()(std::uint32_t word, C x) const { return word >> 8U >= least ? x * scale : C(0); }
};

}  // namespace sluice
