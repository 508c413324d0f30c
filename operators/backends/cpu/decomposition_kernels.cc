// Decompositions of the CPU backend, by LAPACK. The matrices of a stack are split among threads.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "sluice/engine/loops.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/backends/cpu/lapack.h"
#include "sluice/operators/decomposition_conventions.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;
using namespace decompositions;

int as_int(std::int64_t size) {
  if (size > std::numeric_limits<int>::max()) throw std::runtime_error("a size above 2^31 - 1");
  return static_cast<int>(size);
}

/// Elements that need not be set.
template <class T>
class Buffer {
 public:
  Buffer(const ArrayContext& c, std::int64_t n)
      : memory_(c.scratch(static_cast<std::size_t>(std::max<std::int64_t>(n, 1)) * sizeof(T))) {}
  T* data() { return memory_.template as<T>(); }

 private:
  Scratch memory_;
};

/// y (n, m) is the transpose of x (m, n), both row-major: so y is x in columns.
template <class T>
void transpose(const T* x, std::int64_t m, std::int64_t n, T* y) {
  constexpr std::int64_t kBlock = 32;
  for (std::int64_t i = 0; i < m; i += kBlock) {
    for (std::int64_t j = 0; j < n; j += kBlock) {
      for (std::int64_t k = i; k < std::min(m, i + kBlock); ++k) {
        for (std::int64_t l = j; l < std::min(n, j + kBlock); ++l) y[l * m + k] = x[k * n + l];
      }
    }
  }
}

template <class T>
void set_identity(T* x, std::int64_t n) {
  std::fill_n(x, n * n, T(0));
  for (std::int64_t i = 0; i < n; ++i) x[i * n + i] = T(1);
}

/// One matrix of the stack: its elements, and its parts of the outputs.
template <class T>
struct Job {
  ArrayContext& c;
  const Stack& stack;
  std::int64_t i;
  const T* x() const { return c.input(0).as<T>() + i * stack.size(); }
  std::int64_t size(int k) const { return c.output(k).count() / stack.count; }
  T* y(int k = 0) const { return c.output(k).as<T>() + i * size(k); }
};

/// One(job) for each matrix whose elements, or lower triangle if it is symmetric, are all finite; it returns why it
/// failed, or null. The first matrix that failed is the one that is named, on any number of threads.
template <class T, class One>
void for_each_matrix(ArrayContext& c, const One& one, bool symmetric = false) {
  const Stack stack(c.input(0).shape);
  if (stack.count == 0) return;
  as_int(std::max(stack.rows, stack.columns));
  std::vector<const char*> failures(static_cast<std::size_t>(stack.count));
  const std::int64_t grain =
      std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(1, stack.size() * std::min(stack.rows, stack.columns)));
  parallel_for(stack.count, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Job<T> job{c, stack, i};
      if (symmetric ? lower_is_finite(job.x(), stack.rows) : all_finite(job.x(), stack.size())) {
        failures[static_cast<std::size_t>(i)] = one(job);
        continue;
      }
      for (int k = 0; k < c.outputs(); ++k) {
        std::fill_n(job.y(k), job.size(k), std::numeric_limits<T>::quiet_NaN());
      }
    }
  });
  for (std::int64_t i = 0; i < stack.count; ++i) {
    if (const char* why = failures[static_cast<std::size_t>(i)]) fail(why, i, stack);
  }
}

/// What LAPACK asks for by a call with a size of -1.
template <class T>
int work_size(T answer) {
  // The next above: in f32 the answer may have been rounded down.
  return static_cast<int>(std::nextafter(answer, std::numeric_limits<T>::infinity())) + 1;
}

template <class T>
struct Cholesky {
  static const char* one(const Job<T>& job) {
    const std::int64_t n = job.stack.rows;
    std::copy_n(job.x(), n * n, job.y());
    const int size = as_int(n), lead = std::max(size, 1);
    int info = 0;
    // A lower triangle by rows is an upper one by columns.
    if (n > 0) Lapack<T>::potrf("U", &size, job.y(), &lead, &info, 1);
    for (std::int64_t i = 0; i < n; ++i) std::fill(job.y() + i * n + i + 1, job.y() + (i + 1) * n, T(0));
    return info == 0 ? nullptr : kNotPositive;
  }
  static void run(ArrayContext& c) { for_each_matrix<T>(c, one, true); }
};

/// L and U of x, in columns.
template <class T>
struct Factors {
  int n;
  Buffer<T> lu;
  Buffer<int> pivots;
  bool singular = false;

  explicit Factors(const Job<T>& job)
      : n(as_int(job.stack.rows)), lu(job.c, job.stack.size()), pivots(job.c, job.stack.rows) {
    transpose(job.x(), n, n, lu.data());
    int info = 0;
    if (n > 0) Lapack<T>::getrf(&n, &n, lu.data(), &n, pivots.data(), &info);
    for (std::int64_t i = 0; i < n; ++i) singular = singular || diagonal(i) == 0;
  }
  T diagonal(std::int64_t i) { return lu.data()[i * n + i]; }
  /// b is k columns, which become the solutions.
  void solve(T* b, int k) {
    int info = 0;
    if (n > 0 && k > 0) Lapack<T>::getrs("N", &n, &k, lu.data(), &n, pivots.data(), b, &n, &info, 1);
  }
};

template <class T>
struct Solve {
  static const char* one(const Job<T>& job) {
    Factors<T> factors(job);
    if (factors.singular) return kSingular;
    const std::int64_t n = job.stack.rows, k = job.c.output().shape.back();
    Buffer<T> b(job.c, n * k);
    transpose(job.c.input(1).template as<T>() + job.i * n * k, n, k, b.data());
    factors.solve(b.data(), as_int(k));
    transpose(b.data(), k, n, job.y());
    return nullptr;
  }
  static void run(ArrayContext& c) { for_each_matrix<T>(c, one); }
};

template <class T>
struct Inverse {
  static const char* one(const Job<T>& job) {
    Factors<T> factors(job);
    if (factors.singular) return kSingular;
    const std::int64_t n = job.stack.rows;
    Buffer<T> b(job.c, n * n);
    set_identity(b.data(), n);
    factors.solve(b.data(), factors.n);
    transpose(b.data(), n, n, job.y());
    return nullptr;
  }
  static void run(ArrayContext& c) { for_each_matrix<T>(c, one); }
};

/// det, and with two outputs slogdet.
template <class T>
struct Determinant {
  static const char* one(const Job<T>& job) {
    Factors<T> factors(job);
    int sign = factors.singular ? 0 : 1;
    double product = sign, logarithm = sign == 0 ? -std::numeric_limits<double>::infinity() : 0;
    for (int i = 0; i < factors.n && sign != 0; ++i) {
      const double pivot = factors.diagonal(i);
      const bool exchanged = factors.pivots.data()[i] != i + 1;
      if ((pivot < 0) != exchanged) sign = -sign;
      product *= exchanged ? -pivot : pivot;
      logarithm += std::log(std::abs(pivot));
    }
    *job.y(0) = static_cast<T>(job.c.outputs() == 1 ? product : sign);
    if (job.c.outputs() == 2) *job.y(1) = static_cast<T>(logarithm);
    return nullptr;
  }
  static void run(ArrayContext& c) { for_each_matrix<T>(c, one); }
};

template <class T>
struct Qr {
  static const char* one(const Job<T>& job) {
    const std::int64_t rows = job.stack.rows, columns = job.stack.columns, reflections = std::min(rows, columns),
                       of_q = job.c.output(0).shape.back();
    if (reflections == 0) {
      if (of_q > 0) set_identity(job.y(0), rows);
      return nullptr;
    }
    const int m = as_int(rows), n = as_int(columns), k = as_int(reflections), q = as_int(of_q);
    Buffer<T> a(job.c, rows * std::max(columns, of_q)), tau(job.c, reflections);
    transpose(job.x(), rows, columns, a.data());
    T of_geqrf = 0, of_orgqr = 0;
    const int ask = -1;
    int info = 0;
    Lapack<T>::geqrf(&m, &n, a.data(), &m, tau.data(), &of_geqrf, &ask, &info);
    Lapack<T>::orgqr(&m, &q, &k, a.data(), &m, tau.data(), &of_orgqr, &ask, &info);
    const int size = std::max(work_size(of_geqrf), work_size(of_orgqr));
    Buffer<T> work(job.c, size);
    Lapack<T>::geqrf(&m, &n, a.data(), &m, tau.data(), work.data(), &size, &info);
    T *const to_q = job.y(0), *const to_r = job.y(1);
    std::vector<char> turned(static_cast<std::size_t>(of_q));  // so that r's diagonal is not below 0
    for (std::int64_t i = 0; i < of_q; ++i) {
      const bool turn = i < reflections && a.data()[i * rows + i] < 0;
      turned[static_cast<std::size_t>(i)] = turn ? 1 : 0;
      for (std::int64_t j = 0; j < columns; ++j) {
        const T v = i <= j ? a.data()[j * rows + i] : T(0);
        to_r[i * columns + j] = turn && i <= j ? -v : v;
      }
    }
    Lapack<T>::orgqr(&m, &q, &k, a.data(), &m, tau.data(), work.data(), &size, &info);
    transpose(a.data(), of_q, rows, to_q);
    for (std::int64_t j = 0; j < of_q; ++j) {
      if (turned[static_cast<std::size_t>(j)]) negate(to_q + j, rows, of_q);
    }
    return nullptr;
  }
  static void run(ArrayContext& c) { for_each_matrix<T>(c, one); }
};

template <class T>
struct Svd {
  static const char* one(const Job<T>& job) {
    const std::int64_t rows = job.stack.rows, columns = job.stack.columns, least = std::min(rows, columns),
                       of_u = job.c.output(0).shape.back(), of_v = job.size(2) / std::max<std::int64_t>(1, columns);
    if (least == 0) {
      if (of_u > 0) set_identity(job.y(0), rows);
      if (of_v > 0) set_identity(job.y(2), columns);
      return nullptr;
    }
    // x by rows is its transpose by columns: so LAPACK's u is the transpose of vt, and its vt that of u.
    const char* const job_name = job.c.template attributes<DecompositionAttributes>().full ? "A" : "S";
    const int m = as_int(columns), n = as_int(rows), ldu = m, ldvt = as_int(of_u);
    Buffer<T> a(job.c, rows * columns);
    std::copy_n(job.x(), rows * columns, a.data());
    Buffer<int> iwork(job.c, 8 * least);
    T answer = 0;
    const int ask = -1;
    int info = 0;
    Lapack<T>::gesdd(job_name, &m, &n, a.data(), &m, job.y(1), job.y(2), &ldu, job.y(0), &ldvt, &answer, &ask,
                     iwork.data(), &info, 1);
    const int size = work_size(answer);
    Buffer<T> work(job.c, size);
    Lapack<T>::gesdd(job_name, &m, &n, a.data(), &m, job.y(1), job.y(2), &ldu, job.y(0), &ldvt, work.data(), &size,
                     iwork.data(), &info, 1);
    if (info != 0) return kNoConvergence;
    for (std::int64_t j = 0; j < least; ++j) {
      if (!largest_is_negative(job.y(0) + j, rows, of_u)) continue;
      negate(job.y(0) + j, rows, of_u);
      negate(job.y(2) + j * columns, columns, 1);
    }
    return nullptr;
  }
  static void run(ArrayContext& c) { for_each_matrix<T>(c, one); }
};

template <class T>
struct Eigh {
  static const char* one(const Job<T>& job) {
    const std::int64_t size = job.stack.rows;
    if (size == 0) return nullptr;
    const int n = as_int(size), ask = -1;
    Buffer<T> a(job.c, size * size);
    std::copy_n(job.x(), size * size, a.data());
    T answer = 0;
    int of_integers = 0, info = 0;
    Lapack<T>::syevd("V", "U", &n, a.data(), &n, job.y(0), &answer, &ask, &of_integers, &ask, &info, 1, 1);
    const int of_work = work_size(answer);
    Buffer<T> work(job.c, of_work);
    Buffer<int> integers(job.c, of_integers);
    Lapack<T>::syevd("V", "U", &n, a.data(), &n, job.y(0), work.data(), &of_work, integers.data(), &of_integers, &info,
                     1, 1);
    if (info != 0) return kNoConvergence;
    for (std::int64_t i = 0; i < size; ++i) {
      if (largest_is_negative(a.data() + i * size, size, 1)) negate(a.data() + i * size, size, 1);
    }
    transpose(a.data(), size, size, job.y(1));
    return nullptr;
  }
  static void run(ArrayContext& c) { for_each_matrix<T>(c, one, true); }
};

}  // namespace

void add_decomposition_kernels(Registry& registry) {
  constexpr Types<float, double> kTypes;
  add<Cholesky>(registry.get("cholesky"), kCpu, kTypes, kDense);
  add<Qr>(registry.get("qr"), kCpu, kTypes, kDense);
  add<Svd>(registry.get("svd"), kCpu, kTypes, kDense);
  add<Eigh>(registry.get("eigh"), kCpu, kTypes, kDense);
  add<Solve>(registry.get("solve"), kCpu, kTypes, kDense);
  add<Inverse>(registry.get("inv"), kCpu, kTypes, kDense);
  add<Determinant>(registry.get("det"), kCpu, kTypes, kDense);
  add<Determinant>(registry.get("slogdet"), kCpu, kTypes, kDense);
}

}  // namespace sluice::cpu_backend
