// From uniform numbers of [0, 1) to those of [low, high), for the kernels of all backends.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "sluice/ndarray/half.h"
#include "sluice/operators/attributes.h"
#include "sluice/resources/host_device.h"

namespace sluice {

/// The largest number of a dtype below `limit`, which is finite.
inline double largest_below(double limit, DType dtype) {
  const auto of_half = [&]<class T>(T) {
    T near(static_cast<float>(limit));
    if (static_cast<double>(static_cast<float>(near)) >= limit) {
      const bool zero = (near.bits & 0x7fffU) == 0, negative = (near.bits & 0x8000U) != 0;
      near.bits = static_cast<std::uint16_t>(zero ? 0x8001U : negative ? near.bits + 1U : near.bits - 1U);
    }
    return static_cast<double>(static_cast<float>(near));
  };
  if (dtype == DType::f16) return of_half(Float16());
  if (dtype == DType::bf16) return of_half(BFloat16());
  if (dtype == DType::f64) return std::nextafter(limit, -std::numeric_limits<double>::infinity());
  const auto near = static_cast<float>(limit);
  return static_cast<double>(near) < limit ? near : std::nextafter(near, -std::numeric_limits<float>::infinity());
}

/// C is the type in which elements of the dtype are computed.
template <class C>
struct UniformRange {
  C low, high, width, most;
  bool wide;  ///< the width is no number of C

  explicit UniformRange(const RandomAttributes& a)
      : low(static_cast<C>(a.a)),
        high(static_cast<C>(a.b)),
        width(static_cast<C>(a.b - a.a)),
        most(std::max(low, static_cast<C>(largest_below(a.b, a.dtype)))),
        wide(std::isinf(width)) {}

  /// What a rounding would make `high` is the number below it.
  SLUICE_HD C operator()(C u) const {
    const C y = wide ? low * (1 - u) + high * u : low + width * u;
    return y < most ? y : most;
  }
};

}  // namespace sluice
