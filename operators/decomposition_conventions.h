// What the kernels of decompositions share in all backends: their attributes, and the choices that make results unique.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "sluice/ndarray/attribute_fields.h"
#include "sluice/ndarray/dims.h"

namespace sluice {

/// For qr: a complete q; for svd: full u and vt.
struct DecompositionAttributes {
  bool full = false;
  static constexpr auto fields() { return std::array{field<&DecompositionAttributes::full>("full")}; }
  friend bool operator==(const DecompositionAttributes&, const DecompositionAttributes&) = default;
};

namespace decompositions {

/// A stack of matrices, contiguous and row-major.
struct Stack {
  std::int64_t count = 1, rows, columns;
  explicit Stack(const Dims& shape) : rows(shape[shape.rank() - 2]), columns(shape[shape.rank() - 1]) {
    for (int i = 0; i < shape.rank() - 2; ++i) count *= shape[i];
  }
  std::int64_t size() const { return rows * columns; }
};

template <class T>
bool all_finite(const T* x, std::int64_t n) {
  return std::all_of(x, x + n, [](T v) { return std::isfinite(v); });
}

/// The same of the lower triangle of a matrix of n rows, which is all that is read of a symmetric one.
template <class T>
bool lower_is_finite(const T* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (!all_finite(x + i * n, i + 1)) return false;
  }
  return true;
}

/// True if the largest of n elements, `step` apart, is below 0. Of equal ones the first counts.
template <class T>
bool largest_is_negative(const T* x, std::int64_t n, std::int64_t step) {
  std::int64_t at = 0;
  for (std::int64_t i = 1; i < n; ++i) {
    if (std::abs(x[i * step]) > std::abs(x[at * step])) at = i;
  }
  return n > 0 && x[at * step] < 0;
}
template <class T>
void negate(T* x, std::int64_t n, std::int64_t step) {
  for (std::int64_t i = 0; i < n; ++i) x[i * step] = -x[i * step];
}

[[noreturn]] inline void fail(const char* why, std::int64_t matrix, const Stack& stack) {
  throw std::runtime_error(stack.count == 1 ? why : "matrix " + std::to_string(matrix) + " of the stack: " + why);
}

inline constexpr const char* kSingular = "the matrix is singular";
inline constexpr const char* kNotPositive = "the matrix is not positive definite";
inline constexpr const char* kNoConvergence = "the iteration did not converge";

}  // namespace decompositions
}  // namespace sluice
