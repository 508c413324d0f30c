// Elementwise operators. Inputs broadcast as in NumPy. Inputs of several dtypes are converted to one (promote() in
// ndarray/dtype.h). A number takes its array's dtype, which must be able to hold it: a real number beside an array of
// integers throws ArrayError, and so does an integer out of its range.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

// The operators are those of elementwise_table.inc, which says what each computes: name(x), and name(a, b), where one
// of the two may be a number. Comparisons give bool arrays.
//
// "Floating" operators take f32, f64, f16 and bf16. "Arithmetic" ones, and comparisons, take integers too, which wrap
// on overflow; comparisons take bool. f16 and bf16 compute in f32. Each returns a new array of the broadcast shape and
// pushes one op. Throws ArrayError where shapes or dtypes do not fit.
#define SLUICE_UNARY(Name, name, ...) NDArray name(const Operand& x);
#define SLUICE_BINARY(Name, name, ...)                    \
  NDArray name(const Operand& a, const Operand& b);       \
  NDArray name(const Operand& a, const ScalarOperand& b); \
  NDArray name(const ScalarOperand& a, const Operand& b);
#define SLUICE_COMPARISON(...) SLUICE_BINARY(__VA_ARGS__)
#include "sluice/operators/elementwise_table.inc"

/// a where `condition` (bool) holds, else b; all three broadcast.
NDArray where(const Operand& condition, const Operand& a, const Operand& b);
NDArray where(const Operand& condition, const Operand& a, const ScalarOperand& b);
NDArray where(const Operand& condition, const ScalarOperand& a, const Operand& b);

inline NDArray operator-(const Operand& x) { return neg(x); }
inline NDArray operator+(const Operand& a, const Operand& b) { return add(a, b); }
inline NDArray operator-(const Operand& a, const Operand& b) { return sub(a, b); }
inline NDArray operator*(const Operand& a, const Operand& b) { return mul(a, b); }
inline NDArray operator/(const Operand& a, const Operand& b) { return div(a, b); }
inline NDArray operator+(const Operand& a, const ScalarOperand& b) { return add(a, b); }
inline NDArray operator-(const Operand& a, const ScalarOperand& b) { return sub(a, b); }
inline NDArray operator*(const Operand& a, const ScalarOperand& b) { return mul(a, b); }
inline NDArray operator/(const Operand& a, const ScalarOperand& b) { return div(a, b); }
inline NDArray operator+(const ScalarOperand& a, const Operand& b) { return add(a, b); }
inline NDArray operator-(const ScalarOperand& a, const Operand& b) { return sub(a, b); }
inline NDArray operator*(const ScalarOperand& a, const Operand& b) { return mul(a, b); }
inline NDArray operator/(const ScalarOperand& a, const Operand& b) { return div(a, b); }

// Comparisons of elements, which give bool arrays: not whether two handles are of one array (NDArray::same_array).
#define SLUICE_COMPARES(sign, name)                                                             \
  inline NDArray operator sign(const Operand& a, const Operand& b) { return name(a, b); }       \
  inline NDArray operator sign(const Operand& a, const ScalarOperand& b) { return name(a, b); } \
  inline NDArray operator sign(const ScalarOperand& a, const Operand& b) { return name(a, b); }
SLUICE_COMPARES(==, equal)
SLUICE_COMPARES(!=, not_equal)
SLUICE_COMPARES(<, less)
SLUICE_COMPARES(<=, less_equal)
SLUICE_COMPARES(>, greater)
SLUICE_COMPARES(>=, greater_equal)
#undef SLUICE_COMPARES

}  // namespace sluice
