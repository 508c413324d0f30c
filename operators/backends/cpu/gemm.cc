#include "sluice/operators/backends/cpu/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/loops.h"
#include "sluice/ndarray/strided_copy.h"
#include "sluice/operators/backends/cpu/dispatch.h"
#include "sluice/operators/backends/cpu/onednn.h"
#include "sluice/operators/backends/cpu/openblas.h"

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

// sums[j] += v[p] * x[p, j], rows in order; rows are `step` elements apart. Eight rows are added in f32 first.
struct WeightedRowSums {
  SLUICE_KERNEL_BODY void operator()(const float* v, const float* x, int64_t rows, int64_t step, int64_t columns,
                                     double* __restrict sums) const {
    int64_t p = 0;
    for (; p + 8 <= rows; p += 8, x += 8 * step) {
      const float *b = x + step, *c = b + step, *d = c + step, *e = d + step, *f = e + step, *g = f + step,
                  *h = g + step;
      for (int64_t j = 0; j < columns; ++j) {
        const float first = (v[p] * x[j] + v[p + 1] * b[j]) + (v[p + 2] * c[j] + v[p + 3] * d[j]);
        const float second = (v[p + 4] * e[j] + v[p + 5] * f[j]) + (v[p + 6] * g[j] + v[p + 7] * h[j]);
        sums[j] += static_cast<double>(first + second);
      }
    }
    for (; p < rows; ++p, x += step) {
      for (int64_t j = 0; j < columns; ++j) sums[j] += static_cast<double>(v[p] * x[j]);
    }
  }
};

// sums[j] = the product of v and row j of x; rows are `step` elements apart. Blocks of eight terms for each running sum
// are added in f32.
struct RowProducts {
  SLUICE_KERNEL_BODY void operator()(const float* v, const float* x, int64_t rows, int64_t step, int64_t k,
                                     double* sums) const {
    constexpr int lanes = 64, block = 8 * lanes;
    for (int64_t j = 0; j < rows; ++j, x += step) {
      double total = 0;
      for (int64_t at = 0; at < k; at += block) {
        const int64_t end = at + block < k ? at + block : k;
        float parts[lanes] = {};
        int64_t p = at;
        for (; p + lanes <= end; p += lanes) {
          for (int l = 0; l < lanes; ++l) parts[l] += v[p + l] * x[p + l];
        }
        for (int l = 0; p < end; ++p, ++l) parts[l] += v[p] * x[p];
        for (int half = lanes / 2; half > 0; half /= 2) {
          for (int l = 0; l < half; ++l) parts[l] += parts[l + half];
        }
        total += static_cast<double>(parts[0]);
      }
      sums[j] = total;
    }
  }
};

// c[j * step_c] = alpha (v x)[j] + beta c[j * step_c]: x is k x n with `ldx` elements between its rows, or stored n x k
// with `turned`. The library adds all k terms in few running sums there.
void vector_product(int64_t n, int64_t k, float alpha, const float* v, int64_t step_v, const float* x, int64_t ldx,
                    bool turned, float beta, float* c, int64_t step_c) {
  std::vector<float> packed;
  if (step_v != 1) {
    packed.resize(static_cast<std::size_t>(k));
    for (int64_t p = 0; p < k; ++p) packed[static_cast<std::size_t>(p)] = v[p * step_v];
    v = packed.data();
  }
  constexpr int64_t width = 1024;
  double totals[width];
  for (int64_t first = 0; first < n; first += width) {
    const int64_t columns = std::min(width, n - first);
    if (turned) {
      dispatch(RowProducts{}, v, x + first * ldx, columns, ldx, k, &totals[0]);
    } else {
      std::fill(totals, totals + columns, 0.0);
      dispatch(WeightedRowSums{}, v, x + first, k, ldx, columns, &totals[0]);
    }
    for (int64_t j = 0; j < columns; ++j) {
      float& out = c[(first + j) * step_c];
      const double old = beta == 0 ? 0.0 : static_cast<double>(beta) * static_cast<double>(out);
      out = static_cast<float>(static_cast<double>(alpha) * totals[j] + old);
    }
  }
}

constexpr int64_t kMostTerms = 4096;  // that a library adds to one f32 sum

struct AddToTotals {
  SLUICE_KERNEL_BODY void operator()(const float* x, double* __restrict totals, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) totals[i] += static_cast<double>(x[i]);
  }
};

// C = the sum of part(first, terms, product) over blocks of the k terms, which writes an m x n product of f32, and
// beta C. The blocks are added in double.
template <class Part>
void in_blocks_of_k(int64_t m, int64_t n, int64_t k, float beta, float* c, int64_t ldc, const Part& part) {
  std::vector<float> product(static_cast<std::size_t>(m * n));
  std::vector<double> totals(static_cast<std::size_t>(m * n));
  for (int64_t i = 0; beta != 0 && i < m * n; ++i) {
    totals[static_cast<std::size_t>(i)] = static_cast<double>(beta) * static_cast<double>(c[i / n * ldc + i % n]);
  }
  const int64_t blocks = (k + kMostTerms - 1) / kMostTerms, terms = (k + blocks - 1) / blocks;
  for (int64_t first = 0; first < k; first += terms) {
    part(first, std::min(terms, k - first), product.data());
    dispatch(AddToTotals{}, static_cast<const float*>(product.data()), totals.data(), m * n);
  }
  for (int64_t i = 0; i < m * n; ++i) c[i / n * ldc + i % n] = static_cast<float>(totals[static_cast<std::size_t>(i)]);
}

// Operands with which oneDNN's AVX2 kernels run at half of their speed, or less (docs/performance/cpu-kernels.md).
constexpr int64_t kFewRows = 16, kMostCopied = int64_t{16} << 20;  // 64 MiB

/// A transposed A, as for the gradient of a weight: it is turned first.
bool is_worth_turning(int64_t m, int64_t n, int64_t k) {
  return instruction_set_in_use() != InstructionSet::avx512 && m >= kFewRows && n >= kFewRows && k >= kFewRows &&
         m * k <= kMostCopied;
}

/// Rows of B that begin a multiple of 2 KiB apart, which share few places of the caches: B is copied first.
constexpr int64_t kColliding = 512;
bool is_worth_spreading(int64_t m, int64_t n, int64_t k, int64_t ldb) {
  return instruction_set_in_use() == InstructionSet::avx2 && ldb % kColliding == 0 && m >= 3 * kFewRows &&
         n >= kFewRows && k >= kFewRows && k * n <= kMostCopied;
}
/// The distance of rows of n elements that do not collide.
int64_t spread(int64_t n) { return n % kColliding == 0 ? n + 16 : n; }

/// x, `rows` x `columns` with `down` and `right` between its elements, as rows of an array of its own that are
/// spread(columns) apart.
std::unique_ptr<float[]> copy_of(const float* x, int64_t rows, int64_t columns, int64_t down, int64_t right) {
  const int64_t step = spread(columns);
  auto made = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(rows * step));
  const auto view = [&](const float* at, const Dims& strides) {
    return TensorView{reinterpret_cast<std::byte*>(const_cast<float*>(at)), DType::f32, {rows, columns}, strides};
  };
  strided_copy(view(x, {down, right}), view(made.get(), {step, 1}));
  return made;
}

/// oneDNN makes its kernels at the first products that want them. Here that is when no fork is: a child that has them
/// half made crashes, or waits for ever.
void make_kernels() {
  sluice::detail::once_in_process([] {
    onednn_engine();  // bounds the instruction set before the first use
    const OneThread one;
    constexpr int64_t size = 32;
    const std::vector<float> a(size * size);
    std::vector<float> c(size * size);
    for (const char trans_a : {'N', 'T'})
      for (const char trans_b : {'N', 'T'})
        for (const int64_t rows : {size, int64_t{1}})
          for (const int64_t columns : {size, int64_t{1}})
            dnnl_sgemm(trans_a, trans_b, rows, columns, size, 1.0F, a.data(), size, a.data(), size, 0.0F, c.data(),
                       size);
  });
}

/// Products of one kind use the same of oneDNN's kernels, as far as its thresholds can be known from here. The first
/// ones of each kind are in a first use, beside make_kernels(): some kernels are for small or for large products alone.
constinit std::array<std::atomic<std::uint64_t>, 512> kinds_seen{};
std::size_t kind_of(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float beta) {
  const auto size = [](int64_t x) {
    return std::min(static_cast<int>(std::bit_width(static_cast<std::uint64_t>(x))), 15);
  };
  const int form = (trans_a ? 4 : 0) + (trans_b ? 2 : 0) + (beta == 0 ? 1 : 0);
  return static_cast<std::size_t>(((form * 16 + size(m)) * 16 + size(n)) * 16 + size(k));
}

}  // namespace

void gemm_here(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
               const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  if (m <= 0 || n <= 0) return;
  if (k <= 0 || alpha == 0.0F)
    return scale(m, n, beta, c, ldc);  // oneDNN's SSE kernel would read C at alpha = beta = 0
  const bool is_long = k > kFewTerms;
  if (m == 1 && is_long) return vector_product(n, k, alpha, a, trans_a ? lda : 1, b, ldb, trans_b, beta, c, 1);
  if (n == 1 && is_long) return vector_product(m, k, alpha, b, trans_b ? 1 : ldb, a, lda, !trans_a, beta, c, ldc);
  make_kernels();
  const auto multiply = [&](int64_t first, int64_t terms, float factor, float* out, int64_t ld) {
    const OneThread one;
    const std::size_t kind = kind_of(trans_a, trans_b, m, n, terms, factor);
    std::atomic<std::uint64_t>& seen = kinds_seen[kind / 64];
    const std::uint64_t bit = std::uint64_t{1} << kind % 64;
    std::optional<sluice::detail::InFirstUse> in_use;
    if ((seen.load(std::memory_order_acquire) & bit) == 0) in_use.emplace();
    const auto status =
        dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, terms, alpha, a + first * (trans_a ? lda : 1), lda,
                   b + first * (trans_b ? 1 : ldb), ldb, factor, out, ld);
    if (in_use) seen.fetch_or(bit, std::memory_order_release);
    if (status != dnnl_success) throw std::runtime_error("matmul: oneDNN status " + std::to_string(status));
  };
  if (k <= kMostTerms) return multiply(0, k, beta, c, ldc);
  in_blocks_of_k(m, n, k, beta, c, ldc,
                 [&](int64_t first, int64_t terms, float* product) { multiply(first, terms, 0.0F, product, n); });
}

void gemm_here(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, double alpha, const double* a, int64_t lda,
               const double* b, int64_t ldb, double beta, double* c, int64_t ldc) {
  if (m <= 0 || n <= 0) return;
  if (k <= 0) return scale(m, n, beta, c, ldc);
  const InOpenBlas inside;
  cblas_dgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans, trans_b ? CblasTrans : CblasNoTrans, as_int(m),
              as_int(n), as_int(k), alpha, a, as_int(lda), b, as_int(ldb), beta, c, as_int(ldc));
}

void gemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
          const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  std::unique_ptr<float[]> turned, spread_out;
  if (trans_a && is_worth_turning(m, n, k)) {
    turned = copy_of(a, m, k, 1, lda);
    trans_a = false;
    a = turned.get();
    lda = spread(k);
  }
  if (!trans_b && is_worth_spreading(m, n, k, ldb)) {
    spread_out = copy_of(b, k, n, ldb, 1);
    b = spread_out.get();
    ldb = spread(n);
  }
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
  return sluice::detail::first_use([] {
    static bool native;
    native = instruction_set_in_use() == InstructionSet::avx512 && __builtin_cpu_supports("avx512bf16");
    return &native;
  });
#else
  return false;
#endif
}

void bf16_gemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const BFloat16* a, int64_t lda,
               const BFloat16* b, int64_t ldb, float* c, int64_t ldc) {
  if (k <= 0) return scale(m, n, 0.0F, c, ldc);
  const auto multiply = [&](int64_t rows, int64_t columns, int64_t terms, const BFloat16* pa, const BFloat16* pb,
                            float* pc, int64_t ld) {
    using dnnl::memory;
    const dnnl::engine& engine = onednn_engine();
    const auto matrix = [](int64_t height, int64_t width, memory::data_type type, bool turned, int64_t step) {
      return memory::desc({height, width}, type, turned ? memory::dims{1, step} : memory::dims{step, 1});
    };
    // oneDNN 3.7 takes the elements of a single row to follow each other, whatever the description says.
    std::vector<BFloat16> row;
    if (rows == 1 && trans_a && lda != 1) {
      row.resize(static_cast<std::size_t>(terms));
      for (int64_t p = 0; p < terms; ++p) row[static_cast<std::size_t>(p)] = pa[p * lda];
      pa = row.data();
    }
    const bool turned_a = trans_a && row.empty();
    const memory::desc of_a = matrix(rows, terms, memory::data_type::bf16, turned_a, row.empty() ? lda : terms),
                       of_b = matrix(terms, columns, memory::data_type::bf16, trans_b, ldb),
                       of_c = matrix(rows, columns, memory::data_type::f32, false, ld);
    const OneThread one;
    // oneDNN keeps the primitives of a process by their descriptions: making one again is a look-up.
    const auto [description, product] = [&] {
      const sluice::detail::InFirstUse in_use;  // under locks of oneDNN's
      const auto made = describe<dnnl::matmul>(of_a, of_b, of_c);
      return std::pair(made, dnnl::matmul(made));
    }();
    std::vector<std::byte> scratch(description.scratchpad_desc().get_size());
    const auto in = [&](const memory::desc& what, const void* data) {
      return memory(what, engine, const_cast<void*>(data));
    };
    product.execute(onednn_stream(), {{DNNL_ARG_SRC, in(of_a, pa)},
                                      {DNNL_ARG_WEIGHTS, in(of_b, pb)},
                                      {DNNL_ARG_DST, in(of_c, pc)},
                                      {DNNL_ARG_SCRATCHPAD, in(description.scratchpad_desc(), scratch.data())}});
  };
  in_parts(trans_a, trans_b, m, n, k, a, lda, b, ldb, c, ldc,
           [&](int64_t rows, int64_t columns, const BFloat16* pa, const BFloat16* pb, float* pc) {
             if (k <= kMostTerms) return multiply(rows, columns, k, pa, pb, pc, ldc);
             in_blocks_of_k(rows, columns, k, 0.0F, pc, ldc, [&](int64_t first, int64_t terms, float* product) {
               multiply(rows, columns, terms, pa + first * (trans_a ? lda : 1), pb + first * (trans_b ? 1 : ldb),
                        product, columns);
             });
           });
}

}  // namespace sluice::cpu_backend
