// Cases of ops_table.cc: decompositions of matrices.
#include "ops_table.h"

namespace sluice::testing {

void add_decomposition_cases(std::vector<OperatorCase>& list) {
  const auto add = [&](std::string name, std::vector<Dims> shapes, std::function<NDArray(const Arrays&)> call) {
    OperatorCase made{std::move(name), std::move(shapes), std::move(call), -1, 1};
    made.tolerance = 5e-5;
    made.by_lapack = true;
    list.push_back(made);
  };
  /// x and 4, 8, 12, ... on the diagonal: far from singular, and with eigenvalues that are far apart.
  const auto apart = [](const NDArray& x) {
    const std::int64_t n = x.size(-1);
    std::vector<double> diagonal(static_cast<std::size_t>(n * n));
    for (std::int64_t i = 0; i < n; ++i)
      diagonal[static_cast<std::size_t>(i * n + i)] = 4.0 * static_cast<double>(i + 1);
    return x + from(diagonal, {n, n}).to(x.dtype()).to(x.device());
  };
  const auto symmetric = [apart](const NDArray& x) { return apart(0.5 * (x + x.swapaxes(-2, -1))); };
  for (const Dims& s : {Dims{3, 3}, Dims{2, 3, 3}}) {
    const std::string stack = s.rank() == 3 ? " of a stack" : "";
    add("cholesky" + stack, {s}, [=](const Arrays& x) { return square(cholesky(symmetric(x[0]))); });
    add("eigh" + stack, {s}, [=](const Arrays& x) {
      const auto [values, vectors] = eigh(symmetric(x[0]));
      return concat({square(values.unsqueeze(-2)), square(vectors)}, -2);
    });
    add("eigh, values" + stack, {s}, [=](const Arrays& x) { return square(eigh(symmetric(x[0])).values); });
    add("solve" + stack, {s, s}, [=](const Arrays& x) { return square(solve(apart(x[0]), x[1])); });
    add("solve, vector" + stack, {s, {3}}, [=](const Arrays& x) { return solve(apart(x[0]), x[1]); });
    add("inv" + stack, {s}, [=](const Arrays& x) { return square(inv(apart(x[0]))); });
    add("det" + stack, {s}, [=](const Arrays& x) { return det(apart(x[0])); });
    add("slogdet" + stack, {s}, [=](const Arrays& x) { return square(slogdet(apart(x[0])).logabs); });
    add("qr" + stack, {s}, [=](const Arrays& x) {
      const auto [q, r] = qr(apart(x[0]));
      return concat({square(q), square(r)}, -2);
    });
    add("svd" + stack, {s}, [=](const Arrays& x) {
      const auto [u, values, vt] = svd(apart(x[0]));
      return concat({square(u) * 2, square(values).unsqueeze(-2), square(vt)}, -2);
    });
  }
  add("solve, broadcast", {{2, 1, 2, 2}, {3, 2, 4}}, [=](const Arrays& x) { return solve(apart(x[0]), x[1]); });
  add("solve of views", {{2, 6}, {3, 2}}, [=](const Arrays& x) {
    return solve(apart(x[0](all, slice(0, 6, 3)).transpose()), x[1].transpose()(reversed()));
  });
  add("inv of a 1x1 matrix", {{1, 1}}, [=](const Arrays& x) { return inv(apart(x[0])); });
  add("det of nothing", {{2, 0, 0}, {2}}, [](const Arrays& x) { return det(x[0]) * x[1]; });
  const auto tall = [apart](const NDArray& x) { return concat({apart(x.narrow(0, 0, 2)), x.narrow(0, 2, 4)}, 0); };
  add("qr, tall", {{4, 2}}, [=](const Arrays& x) {
    const auto [q, r] = qr(tall(x[0]));
    return concat({square(q), square(r)}, 0);
  });
  add("svd, tall", {{4, 2}}, [=](const Arrays& x) {
    const auto [u, values, vt] = svd(tall(x[0]));
    return concat({square(u) * 2, square(values.unsqueeze(0)), square(vt)}, 0);
  });
  add("svd, wide", {{4, 2}}, [=](const Arrays& x) {
    const auto [u, values, vt] = svd(tall(x[0]).transpose());
    return concat({square(u), square(values.unsqueeze(1)), square(vt) * 2}, 1);
  });
}

}  // namespace sluice::testing
