// Decompositions of the reference backend: textbook loops in double. LU with row exchanges, Householder's QR, Jacobi's
// rotations for eigenvalues and singular values.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "sluice/operators/backends/reference/kernels.h"
#include "sluice/operators/decomposition_conventions.h"

namespace sluice::reference {
namespace {

using namespace backends;
using namespace decompositions;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Row-major.
struct Matrix {
  std::int64_t rows, columns;
  std::vector<double> elements;
  Matrix(std::int64_t m, std::int64_t n) : rows(m), columns(n), elements(static_cast<std::size_t>(m * n)) {}
  double& operator()(std::int64_t i, std::int64_t j) { return elements[static_cast<std::size_t>(i * columns + j)]; }
  double operator()(std::int64_t i, std::int64_t j) const {
    return elements[static_cast<std::size_t>(i * columns + j)];
  }
  double largest() const {
    double most = 0;
    for (const double v : elements) most = std::max(most, std::abs(v));
    return most;
  }
};

Matrix identity(std::int64_t n) {
  Matrix x(n, n);
  for (std::int64_t i = 0; i < n; ++i) x(i, i) = 1;
  return x;
}
Matrix transposed(const Matrix& x) {
  Matrix y(x.columns, x.rows);
  for (std::int64_t i = 0; i < x.rows; ++i) {
    for (std::int64_t j = 0; j < x.columns; ++j) y(j, i) = x(i, j);
  }
  return y;
}

template <class T>
Matrix read(const T* from, std::int64_t m, std::int64_t n) {
  Matrix x(m, n);
  for (std::int64_t i = 0; i < m * n; ++i) x.elements[static_cast<std::size_t>(i)] = from[i];
  return x;
}
template <class T>
void write(const std::vector<double>& x, T* into) {
  for (const double v : x) *into++ = static_cast<T>(v);
}

/// run(matrix, number of the matrix) for each of the stack whose elements are all finite; other(number) for the rest.
template <class T, class Run, class Other>
void for_each_matrix(const ArrayContext& c, const Run& run, const Other& other, bool symmetric = false) {
  const Stack stack(c.input(0).shape);
  for (std::int64_t i = 0; i < stack.count; ++i) {
    const T* const x = c.input(0).as<T>() + i * stack.size();
    if (symmetric ? lower_is_finite(x, stack.rows) : all_finite(x, stack.size())) {
      if (const char* why = run(read(x, stack.rows, stack.columns), i)) fail(why, i, stack);
    } else {
      other(i);
    }
  }
}
/// The part of output k that matrix i of the stack has.
template <class T>
T* part(const ArrayContext& c, int k, std::int64_t i) {
  const Stack stack(c.input(0).shape);
  return c.output(k).as<T>() + (stack.count == 0 ? 0 : c.output(k).count() / stack.count * i);
}
template <class T>
auto fills_nan(const ArrayContext& c) {
  return [&c](std::int64_t i) {
    const Stack stack(c.input(0).shape);
    for (int k = 0; k < c.outputs(); ++k) {
      std::fill_n(part<T>(c, k, i), c.output(k).count() / stack.count, static_cast<T>(kNaN));
    }
  };
}

/// Turns a into L and U, and exchanges the rows of b likewise. The sign of the permutation; 0 if a pivot is 0.
int decompose(Matrix& a, Matrix& b) {
  int sign = 1;
  for (std::int64_t k = 0; k < a.rows; ++k) {
    std::int64_t pivot = k;
    for (std::int64_t i = k + 1; i < a.rows; ++i) {
      if (std::abs(a(i, k)) > std::abs(a(pivot, k))) pivot = i;
    }
    if (a(pivot, k) == 0) return 0;
    if (pivot != k) {
      for (std::int64_t j = 0; j < a.columns; ++j) std::swap(a(k, j), a(pivot, j));
      for (std::int64_t j = 0; j < b.columns; ++j) std::swap(b(k, j), b(pivot, j));
      sign = -sign;
    }
    for (std::int64_t i = k + 1; i < a.rows; ++i) {
      const double factor = a(i, k) /= a(k, k);
      for (std::int64_t j = k + 1; j < a.columns; ++j) a(i, j) -= factor * a(k, j);
    }
  }
  return sign;
}

const char* solve_in_place(Matrix a, Matrix& b) {
  if (decompose(a, b) == 0) return kSingular;
  for (std::int64_t j = 0; j < b.columns; ++j) {
    for (std::int64_t i = 0; i < a.rows; ++i) {
      for (std::int64_t k = 0; k < i; ++k) b(i, j) -= a(i, k) * b(k, j);
    }
    for (std::int64_t i = a.rows - 1; i >= 0; --i) {
      for (std::int64_t k = i + 1; k < a.rows; ++k) b(i, j) -= a(i, k) * b(k, j);
      b(i, j) /= a(i, i);
    }
  }
  return nullptr;
}

template <class T>
struct Solve {
  static void run(ArrayContext& c) {
    const std::int64_t n = c.output().shape[c.output().shape.rank() - 2], k = c.output().shape.back();
    const auto solved = [&](const Matrix& a, std::int64_t i) {
      Matrix b = read(c.input(1).as<T>() + i * n * k, n, k);
      const char* const why = solve_in_place(a, b);
      write(b.elements, part<T>(c, 0, i));
      return why;
    };
    for_each_matrix<T>(c, solved, fills_nan<T>(c));
  }
};

template <class T>
struct Inverse {
  static void run(ArrayContext& c) {
    const auto inverted = [&](const Matrix& a, std::int64_t i) {
      Matrix b = identity(a.rows);
      const char* const why = solve_in_place(a, b);
      write(b.elements, part<T>(c, 0, i));
      return why;
    };
    for_each_matrix<T>(c, inverted, fills_nan<T>(c));
  }
};

/// det, and with two outputs slogdet.
template <class T>
struct Determinant {
  static void run(ArrayContext& c) {
    const auto determined = [&](Matrix a, std::int64_t i) -> const char* {
      Matrix none(a.rows, 0);
      int sign = decompose(a, none);
      double product = sign, logarithm = sign == 0 ? -std::numeric_limits<double>::infinity() : 0;
      for (std::int64_t k = 0; k < a.rows && sign != 0; ++k) {
        product *= a(k, k);
        logarithm += std::log(std::abs(a(k, k)));
        if (a(k, k) < 0) sign = -sign;
      }
      *part<T>(c, 0, i) = static_cast<T>(c.outputs() == 1 ? product : sign);
      if (c.outputs() == 2) *part<T>(c, 1, i) = static_cast<T>(logarithm);
      return nullptr;
    };
    for_each_matrix<T>(c, determined, fills_nan<T>(c));
  }
};

template <class T>
struct Cholesky {
  static void run(ArrayContext& c) {
    const auto decomposed = [&](const Matrix& a, std::int64_t at) -> const char* {
      Matrix l(a.rows, a.rows);
      for (std::int64_t j = 0; j < a.rows; ++j) {
        for (std::int64_t i = j; i < a.rows; ++i) {
          double rest = a(i, j);
          for (std::int64_t k = 0; k < j; ++k) rest -= l(i, k) * l(j, k);
          if (i == j && !(rest > 0)) return kNotPositive;
          l(i, j) = i == j ? std::sqrt(rest) : rest / l(j, j);
        }
      }
      write(l.elements, part<T>(c, 0, at));
      return nullptr;
    };
    for_each_matrix<T>(c, decomposed, fills_nan<T>(c), true);
  }
};

template <class T>
struct Qr {
  static void run(ArrayContext& c) {
    const auto decomposed = [&](Matrix r, std::int64_t at) -> const char* {
      const std::int64_t m = r.rows, n = r.columns;
      const double unit = r.largest() > 0 ? r.largest() : 1;
      for (double& v : r.elements) v /= unit;
      Matrix q = identity(m);
      for (std::int64_t k = 0; k < std::min(m, n); ++k) {
        double below = 0;
        for (std::int64_t i = k + 1; i < m; ++i) below += r(i, k) * r(i, k);
        if (below == 0) continue;
        const double norm = std::sqrt(below + r(k, k) * r(k, k));
        std::vector<double> v(static_cast<std::size_t>(m));  // the axis of the reflection
        for (std::int64_t i = k; i < m; ++i) v[static_cast<std::size_t>(i)] = r(i, k);
        v[static_cast<std::size_t>(k)] += r(k, k) < 0 ? -norm : norm;
        const double square = std::inner_product(v.begin(), v.end(), v.begin(), 0.0);
        for (std::int64_t j = 0; j < n; ++j) {
          double dot = 0;
          for (std::int64_t i = k; i < m; ++i) dot += v[static_cast<std::size_t>(i)] * r(i, j);
          for (std::int64_t i = k; i < m; ++i) r(i, j) -= 2 * dot / square * v[static_cast<std::size_t>(i)];
        }
        for (std::int64_t i = 0; i < m; ++i) {
          double dot = 0;
          for (std::int64_t j = k; j < m; ++j) dot += q(i, j) * v[static_cast<std::size_t>(j)];
          for (std::int64_t j = k; j < m; ++j) q(i, j) -= 2 * dot / square * v[static_cast<std::size_t>(j)];
        }
      }
      const std::int64_t k = c.output(0).shape.back();
      T *to_q = part<T>(c, 0, at), *to_r = part<T>(c, 1, at);
      for (std::int64_t j = 0; j < k; ++j) {
        const bool turn = j < n && r(j, j) < 0;
        for (std::int64_t i = 0; i < m; ++i) to_q[i * k + j] = static_cast<T>(turn ? -q(i, j) : q(i, j));
        for (std::int64_t i = 0; i < n; ++i) {
          to_r[j * n + i] = i < j ? T(0) : static_cast<T>((turn ? -r(j, i) : r(j, i)) * unit);
        }
      }
      return nullptr;
    };
    for_each_matrix<T>(c, decomposed, fills_nan<T>(c));
  }
};

constexpr int kMostSweeps = 100;
constexpr double kSmall = 1e-17;

template <class T>
struct Eigh {
  static void run(ArrayContext& c) {
    const auto decomposed = [&](Matrix a, std::int64_t at) -> const char* {
      const std::int64_t n = a.rows;
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t j = i + 1; j < n; ++j) a(i, j) = a(j, i);
      }
      const double unit = a.largest() > 0 ? a.largest() : 1;
      for (double& v : a.elements) v /= unit;
      Matrix v = identity(n);
      for (int sweep = 0;; ++sweep) {
        if (sweep == kMostSweeps) return kNoConvergence;
        double off = 0;
        for (std::int64_t i = 0; i < n; ++i) {
          for (std::int64_t j = 0; j < i; ++j) off = std::max(off, std::abs(a(i, j)));
        }
        if (off <= kSmall) break;
        for (std::int64_t p = 0; p < n; ++p) {
          for (std::int64_t q = p + 1; q < n; ++q) {
            if (std::abs(a(p, q)) <= kSmall / 10) continue;
            const double zeta = (a(q, q) - a(p, p)) / (2 * a(p, q));
            const double t = (zeta < 0 ? -1 : 1) / (std::abs(zeta) + std::sqrt(1 + zeta * zeta));
            const double cosine = 1 / std::sqrt(1 + t * t), sine = t * cosine;
            for (std::int64_t k = 0; k < n; ++k) {
              const double x = a(k, p), y = a(k, q);
              a(k, p) = cosine * x - sine * y;
              a(k, q) = sine * x + cosine * y;
            }
            for (std::int64_t k = 0; k < n; ++k) {
              const double x = a(p, k), y = a(q, k);
              a(p, k) = cosine * x - sine * y;
              a(q, k) = sine * x + cosine * y;
              const double vx = v(k, p), vy = v(k, q);
              v(k, p) = cosine * vx - sine * vy;
              v(k, q) = sine * vx + cosine * vy;
            }
            a(p, q) = a(q, p) = 0;
          }
        }
      }
      std::vector<std::int64_t> order(static_cast<std::size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t j) { return a(i, i) < a(j, j); });
      T *values = part<T>(c, 0, at), *vectors = part<T>(c, 1, at);
      for (std::int64_t j = 0; j < n; ++j) {
        const std::int64_t from = order[static_cast<std::size_t>(j)];
        values[j] = static_cast<T>(a(from, from) * unit);
        const double sign = largest_is_negative(&v(0, from), n, n) ? -1 : 1;
        for (std::int64_t i = 0; i < n; ++i) vectors[i * n + j] = static_cast<T>(sign * v(i, from));
      }
      return nullptr;
    };
    for_each_matrix<T>(c, decomposed, fills_nan<T>(c), true);
  }
};

double dot_of_columns(const Matrix& x, std::int64_t p, std::int64_t q) {
  double dot = 0;
  for (std::int64_t i = 0; i < x.rows; ++i) dot += x(i, p) * x(i, q);
  return dot;
}

/// Fills the columns from `first` on, so that all are orthogonal and of length 1: from the axis that the columns before
/// hold least of.
void complete(Matrix& u, std::int64_t first) {
  for (std::int64_t j = first; j < u.columns; ++j) {
    std::int64_t axis = 0;
    double least = 2;
    for (std::int64_t i = 0; i < u.rows; ++i) {
      double held = 0;
      for (std::int64_t k = 0; k < j; ++k) held += u(i, k) * u(i, k);
      if (held < least) {
        least = held;
        axis = i;
      }
    }
    for (std::int64_t i = 0; i < u.rows; ++i) u(i, j) = i == axis ? 1 : 0;
    for (int twice = 0; twice < 2; ++twice) {
      for (std::int64_t k = 0; k < j; ++k) {
        const double dot = dot_of_columns(u, k, j);
        for (std::int64_t i = 0; i < u.rows; ++i) u(i, j) -= dot * u(i, k);
      }
    }
    const double norm = std::sqrt(dot_of_columns(u, j, j));
    for (std::int64_t i = 0; i < u.rows; ++i) u(i, j) /= norm;
  }
}

struct Parts {
  Matrix u;
  std::vector<double> s;
  Matrix v;  ///< its columns, not those of its transpose
};

/// Of x with at least as many rows as columns: u has `columns` of them.
Parts svd_of_tall(Matrix w, std::int64_t columns) {
  const std::int64_t m = w.rows, n = w.columns;
  const double unit = w.largest() > 0 ? w.largest() : 1;
  for (double& x : w.elements) x /= unit;
  Matrix v = identity(n);
  bool turned = true;
  for (int sweep = 0; turned; ++sweep) {
    if (sweep == kMostSweeps) throw std::runtime_error(kNoConvergence);
    turned = false;
    for (std::int64_t p = 0; p < n; ++p) {
      for (std::int64_t q = p + 1; q < n; ++q) {
        const double alpha = dot_of_columns(w, p, p), beta = dot_of_columns(w, q, q), gamma = dot_of_columns(w, p, q);
        if (std::abs(gamma) <= 1e-15 * std::sqrt(alpha * beta) || std::abs(gamma) < 1e-300) continue;
        turned = true;
        const double zeta = (beta - alpha) / (2 * gamma);
        const double t = (zeta < 0 ? -1 : 1) / (std::abs(zeta) + std::sqrt(1 + zeta * zeta));
        const double cosine = 1 / std::sqrt(1 + t * t), sine = t * cosine;
        for (Matrix* x : {&w, &v}) {
          for (std::int64_t k = 0; k < x->rows; ++k) {
            const double a = (*x)(k, p), b = (*x)(k, q);
            (*x)(k, p) = cosine * a - sine * b;
            (*x)(k, q) = sine * a + cosine * b;
          }
        }
      }
    }
  }
  std::vector<double> norms;
  for (std::int64_t j = 0; j < n; ++j) norms.push_back(std::sqrt(dot_of_columns(w, j, j)));
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  const auto norm = [&](std::int64_t j) { return norms[static_cast<std::size_t>(j)]; };
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t j) { return norm(i) > norm(j); });
  Parts y{Matrix(m, columns), {}, Matrix(n, n)};
  std::int64_t known = 0;  // columns of u that w tells
  for (std::int64_t j = 0; j < n; ++j) {
    const std::int64_t from = order[static_cast<std::size_t>(j)];
    y.s.push_back(norm(from) * unit);
    for (std::int64_t i = 0; i < n; ++i) y.v(i, j) = v(i, from);
    if (known < j || norm(from) <= 1e-16 * static_cast<double>(m) * norm(order[0])) continue;
    for (std::int64_t i = 0; i < m; ++i) y.u(i, j) = w(i, from) / norm(from);
    known = j + 1;
  }
  complete(y.u, known);
  return y;
}

template <class T>
struct Svd {
  static void run(ArrayContext& c) {
    const auto decomposed = [&](const Matrix& x, std::int64_t at) -> const char* {
      const std::int64_t m = x.rows, n = x.columns, k = c.output(0).shape.back(),
                         rows = c.output(2).shape[c.output(2).shape.rank() - 2];
      Parts y = m >= n ? svd_of_tall(x, k) : svd_of_tall(transposed(x), rows);
      if (m < n) std::swap(y.u, y.v);
      Matrix vt = transposed(y.v);
      for (std::int64_t j = 0; j < std::min(m, n); ++j) {
        if (!largest_is_negative(&y.u(0, j), m, k)) continue;
        negate(&y.u(0, j), m, k);
        negate(&vt(j, 0), n, 1);
      }
      write(y.u.elements, part<T>(c, 0, at));
      write(y.s, part<T>(c, 1, at));
      write(vt.elements, part<T>(c, 2, at));
      return nullptr;
    };
    for_each_matrix<T>(c, decomposed, fills_nan<T>(c));
  }
};

}  // namespace

void add_decomposition_kernels(Registry& registry) {
  constexpr Types<float, double> kTypes;
  add<Cholesky>(registry.get("cholesky"), kReference, kTypes, kDense);
  add<Qr>(registry.get("qr"), kReference, kTypes, kDense);
  add<Svd>(registry.get("svd"), kReference, kTypes, kDense);
  add<Eigh>(registry.get("eigh"), kReference, kTypes, kDense);
  add<Solve>(registry.get("solve"), kReference, kTypes, kDense);
  add<Inverse>(registry.get("inv"), kReference, kTypes, kDense);
  add<Determinant>(registry.get("det"), kReference, kTypes, kDense);
  add<Determinant>(registry.get("slogdet"), kReference, kTypes, kDense);
}

}  // namespace sluice::reference
