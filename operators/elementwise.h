// Elementwise operators. Inputs broadcast as in NumPy. Inputs of several dtypes are converted to one (promote() in
// ndarray/dtype.h). A number takes its array's dtype, which must be able to hold it: a real number beside an array of
// integers throws ArrayError, and so does an integer out of its range.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

// The operators are those of elementwise_table.inc, which says what each computes: name(x), and name(a, b), where one
// of the two may be a number. A few have a number as a parameter: leaky_relu(x, 0.2), which may be left out.
// Comparisons, and predicates as isnan(x), give bool arrays.
//
// "Floating" operators take f32, f64, f16 and bf16. "Arithmetic" ones take integers too, which wrap on overflow;
// comparisons and predicates take these and bool. Those of "bits" take integers, of which they see the bits, and bool,
// and nothing else. f16 and bf16 compute in f32. Each returns a new array of the broadcast shape and pushes one op.
// Throws ArrayError where shapes or dtypes do not fit. Gradients are 0 where a function has steps (floor, sign).
#define SLUICE_UNARY(Name, name, ...) NDArray name(const Operand& x);
#define SLUICE_BINARY(Name, name, ...)                    \
  NDArray name(const Operand& a, const Operand& b);       \
  NDArray name(const Operand& a, const ScalarOperand& b); \
  NDArray name(const ScalarOperand& a, const Operand& b);
#define SLUICE_COMPARISON(...) SLUICE_BINARY(__VA_ARGS__)
#define SLUICE_PREDICATE(Name, name, ...) NDArray name(const Operand& x);
#define SLUICE_WITH_NUMBER(Name, name, dtypes, initial, ...) \
  NDArray name(const Operand& x, const ScalarOperand& p = initial);
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

// Of arrays of bool the logical operators, element by element; of integers those of their bits. Comparisons may stand
// beside them without brackets of their own in C++, but compilers warn: (a > 0) & (a < 1). There is no && and no ||,
// which could not leave out their right side, and no %, which in C++ rounds otherwise: remainder and fmod are by name.
inline NDArray operator~(const Operand& x) { return bitwise_not(x); }
#define SLUICE_OF_BITS(sign, name)                                                              \
  inline NDArray operator sign(const Operand& a, const Operand& b) { return name(a, b); }       \
  inline NDArray operator sign(const Operand& a, const ScalarOperand& b) { return name(a, b); } \
  inline NDArray operator sign(const ScalarOperand& a, const Operand& b) { return name(a, b); }
SLUICE_OF_BITS(&, bitwise_and)
SLUICE_OF_BITS(|, bitwise_or)
SLUICE_OF_BITS(^, bitwise_xor)
#undef SLUICE_OF_BITS

}  // namespace sluice
