// Elementwise operators. Inputs broadcast as in NumPy and must be of one dtype; a number takes its array's dtype.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

// The operators are those of elementwise_table.inc, which says what each computes: name(x), and name(a, b), where one
// of the two may be a number. Comparisons give bool arrays.
//
// "Floating" operators take f32, f64, f16 and bf16. "Arithmetic" ones, and comparisons, take i32 and i64 too, which
// wrap on overflow. f16 and bf16 compute in f32. Each returns a new array of the broadcast shape and pushes one op.
// Throws ArrayError where shapes or dtypes do not fit.
#define SLUICE_UNARY(Name, name, ...) NDArray name(const Operand& x);
#define SLUICE_BINARY(Name, name, ...)                    \
  NDArray name(const Operand& a, const Operand& b);       \
  NDArray name(const Operand& a, const ScalarOperand& b); \
  NDArray name(const ScalarOperand& a, const Operand& b);
#define SLUICE_COMPARISON(...) SLUICE_BINARY(__VA_ARGS__)
#include "sluice/operators/elementwise_table.inc"

/// a where `condition` (bool) holds, else b; all three broadcast.
NDArray where(const Operand& condition, const Operand& a, const Operand& b);

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

}  // namespace sluice
