#include "sluice/operators/backends/cpu/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "sluice/engine/loops.h"
#include "sluice/operators/backends/cpu/dispatch.h"
#include "sluice/operators/backends/cpu/onednn.h"

namespace sluice::cpu_backend {
namespace {

using std::int64_t;

// How a product is cut: into a grid of blocks that are about square, because each part packs its rows of A and its
// columns of B again, and those are fewest then. A part has at least 2 M multiply-adds (some 20 microseconds on one
// core), and there are about 16 at most. Sizes are whole register tiles of the kernels below.
struct Grid {
  int64_t rows, columns;  // of a block
  int64_t across;         // blocks side by side
  int64_t blocks;
};

Grid grid_of(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t least = 2 << 20, most_parts = 16, row_tile = 24, column_tile = 48;
  const int64_t parts = std::clamp<int64_t>(m * n * std::max<int64_t>(k, 1) / least, 1, most_parts);
  const double ratio = static_cast<double>(parts) * static_cast<double>(n) / static_cast<double>(m);
  const int64_t across = std::clamp<int64_t>(std::llround(std::sqrt(ratio)), 1, parts);
  const auto step = [](int64_t size, int64_t count, int64_t tile) {
    if (count == 1) return size;
    return ((size + count - 1) / count + tile - 1) / tile * tile;
  };
  const int64_t rows = step(m, parts / across, row_tile), columns = step(n, across, column_tile);
  const int64_t blocks_across = (n + columns - 1) / columns;
  return {rows, columns, blocks_across, blocks_across * ((m + rows - 1) / rows)};
}

// Calls part(m, n, a, b, c) for each part of the product.
template <class T, class C, class Part>
void in_parts(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b,
              int64_t ldb, C* c, int64_t ldc, const Part& part) {
  if (m <= 0 || n <= 0) return;
  const Grid grid = grid_of(m, n, k);
  parallel_for(grid.blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / grid.across * grid.rows, column = i % grid.across * grid.columns;
      part(std::min(grid.rows, m - row), std::min(grid.columns, n - column), a + (trans_a ? row : row * lda),
           b + (trans_b ? column * ldb : column), c + row * ldc + column);
    }
  });
}

template <class T>
void scale(int64_t m, int64_t n, T beta, T* c, int64_t ldc) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) c[i * ldc + j] = beta == T{} ? T{} : static_cast<T>(c[i * ldc + j] * beta);
  }
}

int as_int(int64_t size) {
  if (size > std::numeric_limits<int>::max()) throw std::runtime_error("matmul: a size above 2^31 - 1");
  return static_cast<int>(size);
}

// Unsigned, so that overflow wraps; the bits are those of two's complement arithmetic.
struct IntegerRows {
  template <class T, class I>
  SLUICE_KERNEL_BODY void operator()(const T* a, int64_t step_a, const T* b, int64_t ldb, T* c, int64_t n, int64_t k,
                                     I alpha) const {
    for (int64_t p = 0; p < k; ++p) {
      const T factor = static_cast<T>(alpha) * a[p * step_a];
      for (int64_t j = 0; j < n; ++j) c[j] += factor * b[p * ldb + j];
    }
  }
};

template <class Signed>
void integer_gemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, Signed alpha, const Signed* a,
                  int64_t lda, const Signed* b, int64_t ldb, Signed beta, Signed* c, int64_t ldc) {
  using T = std::make_unsigned_t<Signed>;
  std::vector<T> turned;
  const T* b_rows = reinterpret_cast<const T*>(b);
  if (trans_b) {
    turned.resize(static_cast<std::size_t>(k * n));
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t p = 0; p < k; ++p) turned[static_cast<std::size_t>(p * n + j)] = static_cast<T>(b[j * ldb + p]);
    }
    b_rows = turned.data();
    ldb = n;
  }
  in_parts<T, T>(trans_a, false, m, n, k, reinterpret_cast<const T*>(a), lda, b_rows, ldb, reinterpret_cast<T*>(c), ldc,
                 [&](int64_t rows, int64_t columns, const T* pa, const T* pb, T* pc) {
                   scale(rows, columns, static_cast<T>(beta), pc, ldc);
                   // Panels of B that stay in the first-level cache while all rows pass over them.
                   constexpr int64_t depth = 32, width = 128;
                   for (int64_t p = 0; p < k; p += depth) {
                     for (int64_t j = 0; j < columns; j += width) {
                       for (int64_t i = 0; i < rows; ++i) {
                         dispatch(IntegerRows{}, trans_a ? pa + p * lda + i : pa + i * lda + p,
                                  trans_a ? lda : int64_t{1}, pb + p * ldb + j, ldb, pc + i * ldc + j,
                                  std::min(width, columns - j), std::min(depth, k - p), alpha);
                       }
                     }
                   }
                 });
}

}  // namespace

void gemm_here(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
               const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  if (m <= 0 || n <= 0) return;
  if (k <= 0 || alpha == 0.0F)
    return scale(m, n, beta, c, ldc);  // oneDNN's SSE kernel would read C at alpha = beta = 0
  onednn_engine();                     // bounds the instruction set before the first use
  const OneThread one;
  const auto status =
      dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  if (status != dnnl_success) throw std::runtime_error("matmul: oneDNN status " + std::to_string(status));
}

void gemm_here(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, double alpha, const double* a, int64_t lda,
               const double* b, int64_t ldb, double beta, double* c, int64_t ldc) {
  if (m <= 0 || n <= 0) return;
  if (k <= 0) return scale(m, n, beta, c, ldc);
  static const bool one_thread = (openblas_set_num_threads(1), true);
  static_cast<void>(one_thread);
  cblas_dgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans, trans_b ? CblasTrans : CblasNoTrans, as_int(m),
              as_int(n), as_int(k), alpha, a, as_int(lda), b, as_int(ldb), beta, c, as_int(ldc));
}

void gemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
          const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  in_parts(trans_a, trans_b, m, n, k, a, lda, b, ldb, c, ldc,
           [&](int64_t rows, int64_t columns, const float* pa, const float* pb, float* pc) {
             gemm_here(trans_a, trans_b, rows, columns, k, alpha, pa, lda, pb, ldb, beta, pc, ldc);
           });
}

void gemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, double alpha, const double* a, int64_t lda,
          const double* b, int64_t ldb, double beta, double* c, int64_t ldc) {
  in_parts(trans_a, trans_b, m, n, k, a, lda, b, ldb, c, ldc,
           [&](int64_t rows, int64_t columns, const double* pa, const double* pb, double* pc) {
             gemm_here(trans_a, trans_b, rows, columns, k, alpha, pa, lda, pb, ldb, beta, pc, ldc);
           });
}

void gemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, std::int32_t alpha, const std::int32_t* a,
          int64_t lda, const std::int32_t* b, int64_t ldb, std::int32_t beta, std::int32_t* c, int64_t ldc) {
  integer_gemm(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void gemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, int64_t alpha, const int64_t* a, int64_t lda,
          const int64_t* b, int64_t ldb, int64_t beta, int64_t* c, int64_t ldc) {
  integer_gemm(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

bool bf16_is_native() {
#if SLUICE_X86_KERNELS
  static const bool native = instruction_set_in_use() == InstructionSet::avx512 && __builtin_cpu_supports("avx512bf16");
  return native;
#else
  return false;
#endif
}

void bf16_gemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const BFloat16* a, int64_t lda,
               const BFloat16* b, int64_t ldb, float* c, int64_t ldc) {
  if (k <= 0) return scale(m, n, 0.0F, c, ldc);
  in_parts(trans_a, trans_b, m, n, k, a, lda, b, ldb, c, ldc,
           [&](int64_t rows, int64_t columns, const BFloat16* pa, const BFloat16* pb, float* pc) {
             using dnnl::memory;
             const dnnl::engine& engine = onednn_engine();
             const auto matrix = [](int64_t height, int64_t width, memory::data_type type, bool turned, int64_t step) {
               return memory::desc({height, width}, type, turned ? memory::dims{1, step} : memory::dims{step, 1});
             };
             // oneDNN 3.7 takes the elements of a single row to follow each other, whatever the description says.
             std::vector<BFloat16> row;
             if (rows == 1 && trans_a && lda != 1) {
               row.resize(static_cast<std::size_t>(k));
               for (int64_t p = 0; p < k; ++p) row[static_cast<std::size_t>(p)] = pa[p * lda];
               pa = row.data();
             }
             const bool turned_a = trans_a && row.empty();
             const memory::desc of_a = matrix(rows, k, memory::data_type::bf16, turned_a, row.empty() ? lda : k),
                                of_b = matrix(k, columns, memory::data_type::bf16, trans_b, ldb),
                                of_c = matrix(rows, columns, memory::data_type::f32, false, ldc);
             const OneThread one;
             // oneDNN keeps the primitives of a process by their descriptions: making one again is a look-up.
             const auto description = describe<dnnl::matmul>(of_a, of_b, of_c);
             std::vector<std::byte> scratch(description.scratchpad_desc().get_size());
             const auto in = [&](const memory::desc& what, const void* data) {
               return memory(what, engine, const_cast<void*>(data));
             };
             dnnl::matmul(description)
                 .execute(onednn_stream(), {{DNNL_ARG_SRC, in(of_a, pa)},
                                            {DNNL_ARG_WEIGHTS, in(of_b, pb)},
                                            {DNNL_ARG_DST, in(of_c, pc)},
                                            {DNNL_ARG_SCRATCHPAD, in(description.scratchpad_desc(), scratch.data())}});
           });
}

}  // namespace sluice::cpu_backend
