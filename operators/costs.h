// Rules for Operator::cost: what the definition of a row asks for, not what a kernel happens to do. An operation is an
// addition, a multiplication, a comparison or a function of one element; a product with a sum behind it counts as two.
// The numbers are those by which the field counts: 2 m n k for a product of matrices (as PyTorch's flop counter and the
// LAPACK working notes do), one for each element of an elementwise result.
#pragma once

#include <algorithm>
#include <cmath>

#include "sluice/operators/registry.h"

namespace sluice::costs {

inline double count(const Dims& shape) { return static_cast<double>(shape.count()); }
inline double bytes(const Spec& spec) { return count(spec.shape) * static_cast<double>(size_of(spec.dtype)); }
inline double bytes_of_inputs(const Signature& call) {
  double sum = 0;
  for (int i = 0; i < call.inputs(); ++i) sum += count(call.shape(i)) * static_cast<double>(size_of(call.dtype(i)));
  return sum;
}
inline double bytes_of_outputs(const Signature& call) {
  double sum = 0;
  for (const Spec& y : call.outputs()) sum += bytes(y);
  return sum;
}

/// These operations, and each operand moved once.
inline Cost of(double flops, const Signature& call) { return {flops, bytes_of_inputs(call) + bytes_of_outputs(call)}; }

/// It moves elements and computes nothing.
inline Cost moves(const Signature& call) { return of(0, call); }
/// n operations for each element of output 0.
template <int n = 1>
Cost each_output(const Signature& call) {
  return of(n * count(call.outputs()[0].shape), call);
}
/// n operations for each element of input 0.
template <int n = 1>
Cost each_input(const Signature& call) {
  return of(n * count(call.shape(0)), call);
}
/// One operation for each element of each input: sums of inputs.
inline Cost each_of_all(const Signature& call) {
  double flops = 0;
  for (int i = 0; i < call.inputs(); ++i) flops += count(call.shape(i));
  return of(flops, call);
}
/// What the outputs held is read too, and each of their elements takes n operations.
template <int n>
Cost each_update(const Signature& call) {
  double flops = 0;
  for (const Spec& y : call.outputs()) flops += n * count(y.shape);
  return {flops, bytes_of_inputs(call) + 2 * bytes_of_outputs(call)};
}
/// Of input 0 it reads no more elements than output 0 has; the index says which.
inline Cost picks(const Signature& call) {
  return {0, bytes_of_outputs(call) * 2 + count(call.shape(1)) * static_cast<double>(size_of(call.dtype(1)))};
}
/// Of n elements of input 0's last axis, or of the axis that a line lies along: searches and sorts.
inline double log2_of(std::int64_t n) { return n > 1 ? std::log2(static_cast<double>(n)) : 0; }

/// Square or not, a stack of matrices (..., m, n): f(m, n) operations for each.
template <class F>
Cost each_matrix(const Signature& call, F f) {
  const Dims& shape = call.shape(0);
  const auto m = static_cast<double>(shape[shape.rank() - 2]), n = static_cast<double>(shape[shape.rank() - 1]);
  return of(m * n > 0 ? count(shape) / (m * n) * f(m, n) : 0, call);
}

}  // namespace sluice::costs
