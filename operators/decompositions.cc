// Rows and functions of decompositions of matrices.
#include "sluice/operators/decompositions.h"

#include <algorithm>

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/along_axis.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/decomposition_conventions.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/linear_algebra.h"
#include "sluice/operators/operand_dtypes.h"
#include "sluice/operators/placement.h"
#include "sluice/operators/rearranging.h"

namespace sluice {
namespace {

const Operator& named(const char* name) { return Registry::instance().get(name); }

/// Checks that input 0 is of matrices, and gives their rows and columns.
struct Sizes {
  Dims stack;
  std::int64_t m, n;
  explicit Sizes(Signature& s, int i = 0) {
    if (s.dtype(i) != DType::f32 && s.dtype(i) != DType::f64) {
      s.fail("needs f32 or f64, not " + std::string(name_of(s.dtype(i))));
    }
    const Dims& shape = s.shape(i);
    if (shape.rank() < 2) s.fail("needs a matrix");
    for (int axis = 0; axis < shape.rank() - 2; ++axis) stack.push_back(shape[axis]);
    m = shape[shape.rank() - 2];
    n = shape.back();
  }
  void square(Signature& s) const {
    if (m != n) s.fail("needs square matrices");
  }
  Dims with(std::initializer_list<std::int64_t> sizes) const {
    Dims shape = stack;
    for (const std::int64_t size : sizes) shape.push_back(size);
    return shape;
  }
};

NDArray turned(const NDArray& x) { return x.swapaxes(-2, -1); }
NDArray as_columns(const NDArray& line) { return line.unsqueeze(-2); }  // x * it scales the columns of x
NDArray as_rows(const NDArray& line) { return line.unsqueeze(-1); }
NDArray symmetric(const NDArray& x) { return 0.5 * (x + turned(x)); }

/// 1 / (v[j] - v[i]), and 0 where they are equal.
NDArray one_over_differences(const NDArray& v) {
  const NDArray differences = as_columns(v) - as_rows(v), equals = differences == 0;
  return where(equals, 0, 1 / where(equals, 1, differences));
}

// ---- gradients

void cholesky_gradient(GradientContext& c) {
  const NDArray& l = c.output();
  const NDArray product = matmul(l, c.gradient(), {.transpose_a = true});
  const NDArray half = 0.5 * (tril(product) + tril(product, -1));
  c.set(0, symmetric(turned(solve(turned(l), turned(solve(turned(l), half))))));
}

void qr_gradient(GradientContext& c) {
  const NDArray &q = c.output(0), &r = c.output(1);
  const std::int64_t m = q.size(-2), n = r.size(-1);
  if (m < n || q.size(-1) != n) {
    throw ArrayError("qr", c.where(), "has no gradient where m < n, or where q has more columns than x");
  }
  const NDArray of_product =
      matmul(r, c.gradient(1), {.transpose_b = true}) - matmul(c.gradient(0), q, {.transpose_a = true});
  const NDArray mirrored = tril(of_product) + turned(tril(of_product, -1));
  c.set(0, turned(solve(r, turned(c.gradient(0) + matmul(q, mirrored)))));
}

void svd_gradient(GradientContext& c) {
  const NDArray &s = c.output(1), &full_u = c.output(0), &full_vt = c.output(2);
  const std::int64_t k = s.size(-1);
  const int rank = full_u.rank();
  const NDArray u = full_u.narrow(rank - 1, 0, k), vt = full_vt.narrow(rank - 2, 0, k);
  const bool of_vectors = c.has_gradient(0) || c.has_gradient(2);
  if (of_vectors && (full_u.size(-1) != k || full_vt.size(-2) != k)) {
    throw ArrayError("svd", c.where(), "the vectors have no gradient with .full = true where m != n");
  }
  if (!of_vectors) {
    c.set(0, matmul(u * as_columns(c.gradient(1)), vt));
    return;
  }
  const NDArray &of_u = c.gradient(0), of_v = turned(c.gradient(2));
  // The squares of the singular values may be out of range; those of their parts of the largest are not.
  NDArray largest = k > 0 ? s.narrow(rank - 2, 0, 1).detach() : ones_like(s);
  largest = where(largest > 0, largest, 1);
  const NDArray parts = s / largest, over = one_over_differences(parts * parts);
  const NDArray from_u = matmul(u, of_u, {.transpose_a = true}), from_v = matmul(vt, of_v);
  const NDArray middle =
      (over * (from_u - turned(from_u)) * as_columns(parts) + as_rows(parts) * (over * (from_v - turned(from_v)))) /
      as_rows(largest);
  NDArray g = matmul(matmul(u, middle) + u * as_columns(c.gradient(1)), vt);
  // What leaves the space of the k vectors; there is nothing beside it in a square matrix.
  if (u.size(-2) > k) g = g + matmul((of_u - matmul(u, from_u)) / as_columns(s), vt);
  if (vt.size(-1) > k) g = g + matmul(u / as_columns(s), of_v - matmul(turned(vt), from_v), {.transpose_b = true});
  c.set(0, g);
}

void eigh_gradient(GradientContext& c) {
  const NDArray &values = c.output(0), &v = c.output(1);
  NDArray left = v * as_columns(c.gradient(0));
  if (c.has_gradient(1)) {
    left = left + matmul(v, one_over_differences(values) * matmul(v, c.gradient(1), {.transpose_a = true}));
  }
  c.set(0, symmetric(matmul(left, v, {.transpose_b = true})));
}

void solve_gradient(GradientContext& c) {
  const NDArray& of_b = c.common([](GradientContext& x) { return solve(turned(x.input(0)), x.gradient()); });
  if (c.wanted(0)) c.set(0, -matmul(of_b, c.output(), {.transpose_b = true}));
  if (c.wanted(1)) c.set(1, of_b);
}

void inv_gradient(GradientContext& c) {
  const NDArray& y = c.output();
  c.set(0, -matmul(matmul(y, c.gradient(), {.transpose_a = true}), y, {.transpose_b = true}));
}

/// g, a number for each matrix, times the transposed inverse of x.
NDArray times_inverse(const NDArray& g, const NDArray& x) { return as_rows(as_rows(g)) * turned(inv(x)); }

/// The derivative of det(x): det(x) times the transposed inverse of x; where there is none, by x = u s vt, whose others
/// are det(u) det(vt) u diag(the products of the other singular values) vt. That has derivatives itself where the rank
/// lacks one.
NDArray cofactors(const NDArray& x, const NDArray& det_of_x) {
  const std::int64_t n = x.size(-1);
  if (x.count() == 0) return zeros_like(x);
  const NDArray det = as_rows(as_rows(det_of_x)), singular = det == 0;
  const NDArray regular = where(singular, eye(n, x.dtype()), x);
  const NDArray unequal = eye(n, x.dtype()) * (arange(n) + 1);  // for the others: no two singular values are the same
  const Svd parts = svd(where(singular, x, unequal));
  const NDArray others =
      builtin::product_of_others(parts.s.reshape({x.count() / (n * n), n}), std::source_location::current())
          .reshape(parts.s.shape());
  const NDArray sign = slogdet(parts.u).sign * slogdet(parts.vt).sign;
  return where(singular, as_rows(as_rows(sign)) * matmul(parts.u * as_columns(others), parts.vt),
               times_inverse(det_of_x, regular));
}

}  // namespace

// Of Golub and Van Loan, Matrix Computations, 4th edition: Householder QR with its q, 5.2.2 (the larger side goes
// first), and the SVD with both factors, figure 8.6.1.
namespace {
Cost qr_cost(const Signature& s) {
  return costs::each_matrix(s, [](double m, double n) {
    const double k = std::min(m, n), large = std::max(m, n);
    return 4 * (large * k * k - k * k * k / 3);
  });
}
Cost svd_cost(const Signature& s) {
  return costs::each_matrix(s, [](double m, double n) {
    const double k = std::min(m, n), large = std::max(m, n);
    return 4 * large * large * k + 8 * large * k * k + 9 * k * k * k;
  });
}
}  // namespace

void builtin::add_decomposition_rows(Registry& registry) {
  add_operator(registry, "cholesky", [](Operator& op) {
    op.place = [](Placing& p) { p.letters("...__->...__"); };
    op.cost = [](const Signature& s) { return costs::each_matrix(s, [](double, double n) { return n * n * n / 3; }); };
    op.infer = [](Signature& s) {
      Sizes(s).square(s);
      s.output(s.shape(0), s.dtype());
    };
    op.needs = {needs::output()};
    op.gradient = cholesky_gradient;
  });
  // Outputs: q and r.
  add_operator(registry, "qr", [](Operator& op) {
    op.place = [](Placing& p) { p.letters("...__->...__,...__"); };
    op.cost = qr_cost;
    op.infer = [](Signature& s) {
      const Sizes x(s);
      const std::int64_t k = s.attributes<DecompositionAttributes>().full ? x.m : std::min(x.m, x.n);
      s.output(x.with({x.m, k}), s.dtype());
      s.output(x.with({k, x.n}), s.dtype());
    };
    op.needs = {needs::output(0) | needs::output(1)};
    op.gradient = qr_gradient;
  });
  // Outputs: u, s and vt.
  add_operator(registry, "svd", [](Operator& op) {
    op.place = [](Placing& p) { p.letters("...__->...__,..._,...__"); };
    op.cost = svd_cost;
    op.infer = [](Signature& s) {
      const Sizes x(s);
      const std::int64_t k = std::min(x.m, x.n);
      const bool full = s.attributes<DecompositionAttributes>().full;
      s.output(x.with({x.m, full ? x.m : k}), s.dtype());
      s.output(x.with({k}), s.dtype());
      s.output(x.with({full ? x.n : k, x.n}), s.dtype());
    };
    op.needs = {needs::output(0) | needs::output(1) | needs::output(2)};
    op.gradient = svd_gradient;
  });
  // Outputs: values and vectors.
  add_operator(registry, "eigh", [](Operator& op) {
    op.place = [](Placing& p) { p.letters("...__->..._,...__"); };
    op.cost = [](const Signature& s) { return costs::each_matrix(s, [](double, double n) { return 9 * n * n * n; }); };
    op.infer = [](Signature& s) {
      const Sizes x(s);
      x.square(s);
      s.output(x.with({x.n}), s.dtype());
      s.output(s.shape(0), s.dtype());
    };
    op.needs = {needs::output(0) | needs::output(1)};
    op.gradient = eigh_gradient;
  });
  add_operator(registry, "solve", [](Operator& op) {
    op.place = [](Placing& p) { p.letters("...__,...__->...__"); };
    op.cost = [](const Signature& s) {
      const Dims& b = s.shape(1);
      const double columns = static_cast<double>(b[b.rank() - 1]);
      return costs::each_matrix(s, [&](double, double n) { return 2 * n * n * n / 3 + 2 * n * n * columns; });
    };
    op.min_inputs = op.max_inputs = 2;
    op.infer = [](Signature& s) {
      s.same_dtypes();
      const Sizes a(s), b(s, 1);
      a.square(s);
      if (!(a.stack == b.stack) || a.n != b.m) s.fail("sizes do not fit");
      s.output(s.shape(1), s.dtype());
    };
    op.needs = {needs::input(0) | needs::output(), needs::input(0)};
    op.common_needs = needs::input(0);
    op.gradient = solve_gradient;
  });
  add_operator(registry, "inv", [](Operator& op) {
    op.place = [](Placing& p) { p.letters("...__->...__"); };
    op.cost = [](const Signature& s) { return costs::each_matrix(s, [](double, double n) { return 2 * n * n * n; }); };
    op.infer = [](Signature& s) {
      Sizes(s).square(s);
      s.output(s.shape(0), s.dtype());
    };
    op.needs = {needs::output()};
    op.gradient = inv_gradient;
  });
  add_operator(registry, "det", [](Operator& op) {
    op.place = [](Placing& p) { p.letters("...__->..."); };
    op.cost = [](const Signature& s) {
      return costs::each_matrix(s, [](double, double n) { return 2 * n * n * n / 3; });
    };
    op.infer = [](Signature& s) {
      const Sizes x(s);
      x.square(s);
      s.output(x.stack, s.dtype());
    };
    op.needs = {needs::input(0) | needs::output()};
    op.gradient = [](GradientContext& c) {
      const ScopeGuard scope;  // what it makes from nothing lies beside x
      current_scope().device = c.input(0).device();
      c.set(0, as_rows(as_rows(c.gradient())) * cofactors(c.input(0), c.output()));
    };
  });
  // Outputs: the sign and the logarithm of the magnitude.
  add_operator(registry, "slogdet", [](Operator& op) {
    op.place = [](Placing& p) { p.letters("...__->...,..."); };
    op.cost = [](const Signature& s) {
      return costs::each_matrix(s, [](double, double n) { return 2 * n * n * n / 3; });
    };
    op.infer = [](Signature& s) {
      const Sizes x(s);
      x.square(s);
      s.output(x.stack, s.dtype());
      s.output(x.stack, s.dtype());
    };
    op.needs = {needs::input(0)};
    op.gradient = [](GradientContext& c) { c.set(0, times_inverse(c.gradient(1), c.input(0))); };
  });
}

NDArray cholesky(const Operand& x) {
  const Operator& row = detail::first_use([] { return &named("cholesky"); });
  return apply(row, {&x.array}, {}, {.where = x.where});
}

Qr qr(const Operand& x, const QrOptions& options) {
  const Operator& row = detail::first_use([] { return &named("qr"); });
  const NDArray* const inputs[] = {&x.array};
  std::vector<NDArray> both = apply_all(row, inputs, DecompositionAttributes{options.complete}, {.where = x.where});
  return {std::move(both[0]), std::move(both[1])};
}

Svd svd(const Operand& x, const SvdOptions& options) {
  const Operator& row = detail::first_use([] { return &named("svd"); });
  const NDArray* const inputs[] = {&x.array};
  std::vector<NDArray> parts = apply_all(row, inputs, DecompositionAttributes{options.full}, {.where = x.where});
  return {std::move(parts[0]), std::move(parts[1]), std::move(parts[2])};
}

Eigh eigh(const Operand& x) {
  const Operator& row = detail::first_use([] { return &named("eigh"); });
  const NDArray* const inputs[] = {&x.array};
  std::vector<NDArray> both = apply_all(row, inputs, {}, {.where = x.where});
  return {std::move(both[0]), std::move(both[1])};
}

NDArray solve(const Operand& a, const Operand& b) {
  const Operator& row = detail::first_use([] { return &named("solve"); });
  const builtin::Composition made("solve", a);
  b.array.checked("solve", made.where());
  std::vector<const NDArray*> inputs{&a.array, &b.array};
  const std::vector<NDArray> converted = builtin::in_one_dtype("solve", inputs, made.where());
  NDArray matrices = *inputs[0], right = *inputs[1];
  const auto misfit = [&] {
    made.fail(to_string(a.array.shape()) + " x " + to_string(b.array.shape()) +
              ": needs matrices (..., n, n), and b (..., n, k) or (n,)");
  };
  const bool vector = right.rank() == 1;
  if (vector) right = right.unsqueeze(1);
  if (matrices.rank() < 2 || right.rank() < 2) misfit();
  // The stacks broadcast, from the last of their axes.
  Dims of_a = matrices.shape(), of_b = right.shape();
  if (of_a[of_a.rank() - 1] != of_a[of_a.rank() - 2] || of_a.back() != of_b[of_b.rank() - 2]) misfit();
  const int rank = std::max(of_a.rank(), of_b.rank());
  Dims stack;
  for (int i = 0; i < rank - 2; ++i) {
    const int at_a = i - (rank - of_a.rank()), at_b = i - (rank - of_b.rank());
    const std::int64_t n = at_a < 0 ? 1 : of_a[at_a], m = at_b < 0 ? 1 : of_b[at_b];
    if (n != m && n != 1 && m != 1) misfit();
    stack.push_back(n == 1 ? m : n);
  }
  const auto widened = [&](const NDArray& x) {
    Dims shape = stack;
    shape.push_back(x.size(-2));
    shape.push_back(x.size(-1));
    return x.shape() == shape ? x : x.broadcast_to(shape);
  };
  matrices = widened(matrices);
  right = widened(right);
  const NDArray y = apply(row, {&matrices, &right}, {}, {.where = made.where()});
  return vector ? y.squeeze(-1) : y;
}

NDArray inv(const Operand& x) {
  const Operator& row = detail::first_use([] { return &named("inv"); });
  return apply(row, {&x.array}, {}, {.where = x.where});
}

NDArray det(const Operand& x) {
  const Operator& row = detail::first_use([] { return &named("det"); });
  return apply(row, {&x.array}, {}, {.where = x.where});
}

Slogdet slogdet(const Operand& x) {
  const Operator& row = detail::first_use([] { return &named("slogdet"); });
  const NDArray* const inputs[] = {&x.array};
  std::vector<NDArray> both = apply_all(row, inputs, {}, {.where = x.where});
  return {std::move(both[0]), std::move(both[1])};
}

}  // namespace sluice
