// Elementwise operators. Inputs broadcast as in NumPy and must be of one dtype; a number takes its array's dtype.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

// "Floating" operators take f32 and f64. "Arithmetic" ones take i32 and i64 too, which wrap on overflow. Each returns a
// new array of the broadcast shape and pushes one op. Throws ArrayError where shapes or dtypes do not fit.

NDArray neg(const Operand& x);     ///< arithmetic
NDArray abs(const Operand& x);     ///< arithmetic; gradient 0 at 0
NDArray square(const Operand& x);  ///< arithmetic
NDArray exp(const Operand& x);     ///< floating, as those below
NDArray log(const Operand& x);
NDArray sqrt(const Operand& x);
NDArray reciprocal(const Operand& x);
NDArray sin(const Operand& x);
NDArray cos(const Operand& x);
NDArray tanh(const Operand& x);
NDArray erf(const Operand& x);
NDArray sigmoid(const Operand& x);
NDArray relu(const Operand& x);  ///< arithmetic; NaN stays; gradient 0 at 0
NDArray gelu(const Operand& x);  ///< x (1 + erf(x / sqrt 2)) / 2

NDArray add(const Operand& a, const Operand& b);  ///< arithmetic, as all of these
NDArray sub(const Operand& a, const Operand& b);
NDArray mul(const Operand& a, const Operand& b);
NDArray div(const Operand& a, const Operand& b);      ///< integers: towards zero; by 0 gives 0
NDArray maximum(const Operand& a, const Operand& b);  ///< NaN if any is NaN; for equal elements the gradient goes to a
NDArray minimum(const Operand& a, const Operand& b);
NDArray pow(const Operand& a, const Operand& b);  ///< floating

NDArray add(const Operand& a, const ScalarOperand& b);
NDArray sub(const Operand& a, const ScalarOperand& b);
NDArray sub(const ScalarOperand& a, const Operand& b);
NDArray mul(const Operand& a, const ScalarOperand& b);
NDArray div(const Operand& a, const ScalarOperand& b);
NDArray div(const ScalarOperand& a, const Operand& b);
NDArray maximum(const Operand& a, const ScalarOperand& b);
NDArray minimum(const Operand& a, const ScalarOperand& b);
NDArray pow(const Operand& a, const ScalarOperand& b);

// Comparisons give bool arrays.
NDArray equal(const Operand& a, const Operand& b);
NDArray not_equal(const Operand& a, const Operand& b);
NDArray less(const Operand& a, const Operand& b);
NDArray less_equal(const Operand& a, const Operand& b);
NDArray greater(const Operand& a, const Operand& b);
NDArray greater_equal(const Operand& a, const Operand& b);
NDArray equal(const Operand& a, const ScalarOperand& b);
NDArray less(const Operand& a, const ScalarOperand& b);
NDArray greater(const Operand& a, const ScalarOperand& b);

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
inline NDArray operator+(const ScalarOperand& a, const Operand& b) { return add(b, a); }
inline NDArray operator-(const ScalarOperand& a, const Operand& b) { return sub(a, b); }
inline NDArray operator*(const ScalarOperand& a, const Operand& b) { return mul(b, a); }
inline NDArray operator/(const ScalarOperand& a, const Operand& b) { return div(a, b); }

}  // namespace sluice
