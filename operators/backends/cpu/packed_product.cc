#include "sluice/operators/backends/cpu/packed_product.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstddef>

#include "sluice/engine/loops.h"
#include "sluice/ndarray/strided_copy.h"
#include "sluice/operators/backends/cpu/dispatch.h"

namespace sluice::cpu_backend {
namespace {

#define SLUICE_WIDE_KERNELS "sluice/operators/backends/cpu/packed_product.inc"
#include "sluice/operators/backends/cpu/wide_vectors.inc"

void rows_times_panel(long rows, const float* a, long lda, const float* panel, long k, bool add, float* c, long ldc) {
#if SLUICE_WIDE_VECTORS
  if (instruction_set_in_use() == InstructionSet::avx512) {
    return avx512::rows_times_panel(rows, a, lda, panel, k, add, c, ldc);
  }
  if (instruction_set_in_use() == InstructionSet::avx2) {
    return avx2::rows_times_panel(rows, a, lda, panel, k, add, c, ldc);
  }
#endif
  for (long r = 0; r < rows; ++r) {
    for (long j = 0; j < 16; ++j) {
      float sum = add ? c[r * ldc + j] : 0.0F;
      for (long p = 0; p < k; ++p) sum += a[r * lda + p] * panel[p * 16 + j];
      c[r * ldc + j] = sum;
    }
  }
}

}  // namespace

bool PackedMatrix::pays(std::int64_t rows, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t most_rows = 64, most_terms = 4096, least_work = 1 << 16;
  if (rows == 1 && k > kFewTerms) return false;  // gemm adds these in double
#if SLUICE_WIDE_VECTORS
  const bool vectors = instruction_set_in_use() != InstructionSet::plain;
#else
  const bool vectors = false;
#endif
  return vectors && rows <= most_rows && k <= most_terms && n >= kPanel && rows * n * k >= least_work;
}

PackedMatrix::PackedMatrix(bool transposed, std::int64_t n, std::int64_t k, const float* b, std::int64_t ldb,
                           float* memory)
    : n_(n), k_(k), panels_(memory) {
  const std::int64_t whole = n / kPanel, rest = n % kPanel;
  const std::int64_t down = transposed ? 1 : ldb, across = transposed ? ldb : 1;  // to the next row, column of b
  const auto pack = [&](std::int64_t first, std::int64_t panels, std::int64_t columns) {
    const auto view = [&](const float* at, const Dims& strides) {
      return TensorView{
          reinterpret_cast<std::byte*>(const_cast<float*>(at)), DType::f32, {panels, k, columns}, strides};
    };
    strided_copy(view(b + first * kPanel * across, {kPanel * across, down, across}),
                 view(memory + first * kPanel * k, {kPanel * k, kPanel, 1}));
  };
  if (whole > 0) pack(0, whole, kPanel);
  if (rest == 0) return;
  std::fill_n(memory + whole * kPanel * k, kPanel * k, 0.0F);
  pack(whole, 1, rest);
}

void PackedMatrix::multiply(std::int64_t rows, const float* a, std::int64_t lda, bool add, float* c,
                            std::int64_t ldc) const {
  constexpr std::int64_t least_work = 1 << 20;  // multiply-adds that a thread takes at once: some 30 microseconds
  const std::int64_t panels = (n_ + kPanel - 1) / kPanel;
  const std::int64_t grain = std::max<std::int64_t>(1, least_work / std::max<std::int64_t>(1, rows * kPanel * k_));
  parallel_for(panels, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float* panel = panels_ + i * kPanel * k_;
      float* out = c + i * kPanel;
      const std::int64_t columns = std::min(kPanel, n_ - i * kPanel);
      if (columns == kPanel) {
        rows_times_panel(rows, a, lda, panel, k_, add, out, ldc);
        continue;
      }
      alignas(64) float last[kPanel];
      for (std::int64_t r = 0; r < rows; ++r) {
        std::fill_n(last, kPanel, 0.0F);
        if (add) std::copy_n(out + r * ldc, columns, last);
        rows_times_panel(1, a + r * lda, lda, panel, k_, add, last, kPanel);
        std::copy_n(last, columns, out + r * ldc);
      }
    }
  });
}

}  // namespace sluice::cpu_backend
