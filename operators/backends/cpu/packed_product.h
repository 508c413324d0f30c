// Products of few rows with one matrix, taken again and again, as in each step of a recurrent net (f32).
#pragma once

#include <cstdint>

#include "sluice/operators/backends/cpu/gemm.h"

namespace sluice::cpu_backend {

/// A k x n matrix, packed once into panels of 16 columns: what a library does anew in each call costs it as much as the
/// product where that has few rows. Sums of 256 terms, in f32, are added to each other. The same bits on any number of
/// threads; they may differ between instruction sets.
class PackedMatrix {
 public:
  /// Whether packing helps: vectors of AVX2 or AVX-512, few rows, and not more terms than gemm adds in f32.
  static bool pays(std::int64_t rows, std::int64_t n, std::int64_t k);
  /// Floats of the memory.
  static std::int64_t size(std::int64_t n, std::int64_t k) { return (n + kPanel - 1) / kPanel * kPanel * k; }

  /// As gemm's operand b: stored k x n or, with `transposed`, n x k, with ldb elements between its rows. `memory`,
  /// aligned to 64 bytes, lives as long as this object.
  PackedMatrix(bool transposed, std::int64_t n, std::int64_t k, const float* b, std::int64_t ldb, float* memory);

  /// c, rows x n, = a b or, with `add`, c + a b. Runs through parallel_for. Blocking.
  void multiply(std::int64_t rows, const float* a, std::int64_t lda, bool add, float* c, std::int64_t ldc) const;

 private:
  static constexpr std::int64_t kPanel = 16;
  std::int64_t n_, k_;
  const float* panels_;  ///< [panel][term][column]
};

}  // namespace sluice::cpu_backend
