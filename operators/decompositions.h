// Decompositions of matrices, and what they solve. x is a matrix (m, n), or a stack of them (..., m, n) of which each
// is taken by itself; the results are stacks likewise. Matrices may be empty. f32 and f64, which the results have too.
//
// The work is LAPACK's on CPUs. A GPU has no kernel of these: the call throws ArrayError, and x.to(cpu(0)) is the way.
// Throws ArrayError where shapes or dtypes do not fit. What depends on the numbers is found as the op runs: a matrix
// that is singular, or not positive definite, poisons all results of the op, and a wait throws the error, which names
// it. A matrix with an element that is NaN or infinite gives NaN in all its results, but where
// only a triangle is read.
//
// All have gradients, and gradients of gradients, but where it is said.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

/// The lower triangular L, with a diagonal above 0, for which L L^T = x. x (..., n, n) is taken as symmetric: only its
/// lower triangle is read. The op fails if x is not positive definite. The gradient is symmetric.
NDArray cholesky(const Operand& x);

struct QrOptions {
  bool complete = false;  ///< q has all m columns, and r all m rows
};
struct Qr {
  NDArray q;  ///< (..., m, k) with k = min(m, n), or (..., m, m): its columns are orthogonal and of length 1
  NDArray r;  ///< (..., k, n) or (..., m, n): upper triangular. The diagonal is not below 0
};
/// q r = x. There is a gradient for m >= n, and where q has n columns; else to ask for it throws ArrayError. It fails
/// if the columns of x depend on each other.
Qr qr(const Operand& x, const QrOptions& options = {});

struct SvdOptions {
  bool full = false;  ///< u is (..., m, m), and vt is (..., n, n)
};
struct Svd {
  NDArray u;   ///< (..., m, k) with k = min(m, n): columns of length 1
  NDArray s;   ///< (..., k): descending, not below 0
  NDArray vt;  ///< (..., k, n): rows of length 1
};
/// u diag(s) vt = x. The largest element of each column of u (the first of several) is above 0. Vectors of equal
/// singular values, and those that `full` adds, are any that fit. The gradient of the vectors is right where singular
/// values differ from each other and from 0; with `full` and m != n only s has a gradient, and to ask for that of
/// the vectors throws ArrayError.
Svd svd(const Operand& x, const SvdOptions& options = {});

struct Eigh {
  NDArray values;   ///< (..., n): ascending
  NDArray vectors;  ///< (..., n, n): column i is that of value i, and has length 1
};
/// x v = v diag(values) for a symmetric x (..., n, n): only its lower triangle is read. The largest element of each
/// vector (the first of several) is above 0. Vectors of equal values are any that fit. The gradient of vectors is right
/// where values differ. It is symmetric.
Eigh eigh(const Operand& x);

/// The y for which a y = b. a is (..., n, n), b (..., n, k), and their stacks broadcast; or b is a vector (n,), and so
/// are the solutions (..., n). Dtypes are converted to one. The op fails if a matrix of a is singular, which is decided
/// by a pivot that is exactly 0: of a matrix that is nearly singular the solution is inexact.
NDArray solve(const Operand& a, const Operand& b);
/// The inverse of x (..., n, n). As solve. To solve is quicker than to multiply by an inverse, and more exact.
NDArray inv(const Operand& x);

/// The determinant of x (..., n, n): (...). Of a singular matrix it is 0, or near to it; its gradient is made of the
/// inverse, and fails for a matrix that has none.
NDArray det(const Operand& x);
struct Slogdet {
  NDArray sign;    ///< (...): -1, 0 or 1. It has no gradient
  NDArray logabs;  ///< (...): log(|det(x)|), and -infinity where the determinant is 0
};
/// The determinant where det() would overflow. The gradient is as that of det.
Slogdet slogdet(const Operand& x);

}  // namespace sluice
