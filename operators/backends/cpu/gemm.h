// Matrix products of the CPU backend.
#pragma once

#include <cstdint>

#include "sluice/ndarray/half.h"

namespace sluice::cpu_backend {

inline constexpr std::int64_t kFewTerms = 512;  ///< of a single row or column, more than these are added in double

/// C = alpha op(A) op(B) + beta C, row-major: op(A) is m x k, op(B) is k x n, C is m x n. A is stored m x k (k x m with
/// trans_a) with lda elements between its rows; B and C likewise. With beta 0 C is not read (it may hold NaN). C must
/// not overlap A or B. f32: oneDNN's sgemm, in blocks of 4,096 terms whose products are added in double, and with m or
/// n of 1 and more than 512 terms a loop of our own; f64: OpenBLAS; i32, i64: a blocked loop that wraps on overflow. m,
/// n or k may be 0 (k = 0 scales C by beta). Split into parts that depend on m, n and k alone, over parallel_for: the
/// same bits on any number of threads. Any thread may call; blocking. Throws std::runtime_error if the library refuses.
void gemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const float* a,
          std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc);
void gemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, double alpha, const double* a,
          std::int64_t lda, const double* b, std::int64_t ldb, double beta, double* c, std::int64_t ldc);
void gemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, std::int32_t alpha,
          const std::int32_t* a, std::int64_t lda, const std::int32_t* b, std::int64_t ldb, std::int32_t beta,
          std::int32_t* c, std::int64_t ldc);
void gemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t alpha,
          const std::int64_t* a, std::int64_t lda, const std::int64_t* b, std::int64_t ldb, std::int64_t beta,
          std::int64_t* c, std::int64_t ldc);

/// The same product in one part, on the calling thread: for kernels that split a larger job themselves (f32, f64).
void gemm_here(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const float* a,
               std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc);
void gemm_here(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, double alpha,
               const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double beta, double* c,
               std::int64_t ldc);

/// Whether this processor multiplies bf16 itself, and SLUICE_ISA allows it.
bool bf16_is_native();
/// C = op(A) op(B), A and B in bf16, C and the sums in f32, by oneDNN. Subnormal numbers count as 0. Otherwise as
/// gemm().
void bf16_gemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, const BFloat16* a,
               std::int64_t lda, const BFloat16* b, std::int64_t ldb, float* c, std::int64_t ldc);

}  // namespace sluice::cpu_backend
