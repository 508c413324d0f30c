// What the gradients of binary operators in the elementwise table use beside operators: of two arrays a and b, or of an
// array and a number. For elementwise.cc alone.
#pragma once

#include <cmath>

#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"

namespace sluice::gradients {

inline NDArray pow_gradient_of_base(const NDArray& g, const NDArray& a, const NDArray& b) {
  // At a = b = 0 the derivative is 0, and so is the next one: not 0 * infinity.
  const NDArray exponent = where(equal(a, 0), where(equal(b, 0), ones_like(b), b), b) - 1;
  return g * b * pow(a, exponent);
}
inline NDArray pow_gradient_of_base(const NDArray& g, const NDArray& a, double b) {
  return b == 0 ? zeros_like(g) : g * pow(a, b - 1) * b;
}
inline NDArray pow_gradient_of_exponent(const NDArray& g, const NDArray& a, const NDArray& b) {
  // At a = 0 the limit for b > 0 is 0, which the formula would make 0 * -infinity.
  return g * pow(a, b) * log(where(equal(a, 0), ones_like(a), a));
}
inline NDArray pow_gradient_of_exponent(const NDArray& g, double a, const NDArray& b) {
  return g * pow(a, b) * (a == 0 ? 0 : std::log(a));
}

/// sqrt(a^2 + b^2), and 1 at the origin.
template <class A, class B>
NDArray length(const A& a, const B& b) {
  const NDArray r = hypot(a, b);
  return where(equal(r, 0), ones_like(r), r);
}
template <class Of, class A, class B>
NDArray over_length(const Of& of, const A& a, const B& b) {
  return of / length(a, b);
}

/// a - b, and 0 for equal infinities.
template <class A, class B>
NDArray difference(const A& a, const B& b) {
  const NDArray d = a - b;
  return where(bitwise_and(isnan(d), equal(a, b)), zeros_like(d), d);
}

}  // namespace sluice::gradients
