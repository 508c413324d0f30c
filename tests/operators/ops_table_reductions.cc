// Cases of ops_table.cc: reductions beyond the table's, scans, sorts and searches.
#include <limits>

#include "ops_table.h"

namespace sluice::testing {

/// x, but 0 where i % 3 == 1 of its elements in order. The zeros are where finite differences begin: what is taken away
/// is what make_inputs() makes, and a step stays a step.
static NDArray with_zeros(const NDArray& x, std::uint64_t seed = 5) {
  NDArray start;
  {
    const DeviceScope scope(x.device().kind == DeviceKind::gpu ? cpu(0) : x.device());
    RandomStream stream(seed);
    start = uniform(x.shape(), stream, -2, 2, DType::f64).to(x.dtype());
    std::vector<double> pattern;
    for (std::int64_t i = 0; i < x.count(); ++i) pattern.push_back(i % 3 == 1 ? 1 : 0);
    start = start * from(pattern, x.shape()).to(x.dtype());
  }
  return x - start.to(x.device());
}

void add_reduction_cases(std::vector<OperatorCase>& list) {
  const Dims s{5, 7}, cube{3, 4, 5};
  const auto add = [&](std::string name, std::vector<Dims> shapes, std::function<NDArray(const Arrays&)> call,
                       double low = -2, double high = 2) {
    list.push_back({std::move(name), std::move(shapes), std::move(call), low, high});
  };
  /// Results that are no function of x that could have a gradient.
  const auto add_plain = [&](std::string name, std::vector<Dims> shapes, std::function<NDArray(const Arrays&)> call) {
    list.push_back({.name = std::move(name),
                    .shapes = std::move(shapes),
                    .call = std::move(call),
                    .second_order = false,
                    .gradient = false});
  };

  // ---- reductions
  for (const Dims& axes : {Dims{}, Dims{0}, Dims{1}, Dims{0, 2}}) {
    const Axes over = axes.empty() ? Axes(all) : Axes(axes);
    const std::string where = axes.empty() ? "" : " over " + to_string(axes);
    add("prod with zeros" + where, {{2, 3, 2}}, [over](const Arrays& x) { return prod(with_zeros(x[0]), over); });
    add("variance" + where, {cube}, [over](const Arrays& x) { return variance(x[0], over); });
    add("stddev" + where, {cube},
        [over](const Arrays& x) { return square(stddev(x[0], over, {.correction = 0, .keep = true})); });
    for (const double ord : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
      add("norm " + Scalar(ord).text() + where, {cube},
          [over, ord](const Arrays& x) { return square(norm(x[0], over, {.ord = ord})); });
    }
    add("median" + where, {cube}, [over](const Arrays& x) { return square(median(x[0], over, {.keep = true})); });
    add("quantile" + where, {cube}, [over](const Arrays& x) { return square(quantile(x[0], 0.3, over)); });
    add("quantiles" + where, {cube}, [over](const Arrays& x) {
      return square(quantile(x[0], {0.3, 0.0, 0.85}, over, {.keep = true}));
    });
    add_plain("any" + where, {cube}, [over](const Arrays& x) { return any(x[0] > 1.8, over); });
    add_plain("all" + where, {cube}, [over](const Arrays& x) { return all(x[0] > -1.8, over, {.keep = true}); });
    add_plain("count_nonzero" + where, {cube},
              [over](const Arrays& x) { return count_nonzero(with_zeros(x[0]), over); });
  }
  add("prod of one zero", {{4}}, [](const Arrays& x) { return square(prod(with_zeros(x[0]))); });
  add("logsumexp of a transposed slice", {s},
      [](const Arrays& x) { return logsumexp(x[0](slice(1, 5, 2), reversed()).transpose() * 20, 0); });
  add_plain("argmax, all", {cube}, [](const Arrays& x) { return argmax(x[0], all); });
  add_plain("argmin", {cube}, [](const Arrays& x) { return argmin(x[0], 1, {.keep = true}); });
  add_plain("argmin, all", {cube}, [](const Arrays& x) { return argmin(x[0].transpose(), all); });

  // ---- scans
  for (const int axis : {0, 1, -1}) {
    for (const bool reverse : {false, true}) {
      const std::string where = ", axis " + std::to_string(axis) + (reverse ? ", reverse" : "");
      const ScanOptions options{.reverse = reverse};
      add("cumsum" + where, {cube}, [=](const Arrays& x) { return square(cumsum(x[0], axis, options)); });
      add("cumprod" + where, {cube}, [=](const Arrays& x) { return square(cumprod(x[0], axis, options)); });
      add("cumprod with zeros" + where, {cube},
          [=](const Arrays& x) { return cumprod(with_zeros(x[0]), axis, options); });
      add("logcumsumexp" + where, {cube}, [=](const Arrays& x) { return square(logcumsumexp(x[0], axis, options)); });
      add("linear_scan" + where, {cube, cube}, [=](const Arrays& x) { return linear_scan(x[0], x[1], axis, options); });
    }
    const std::string where = ", axis " + std::to_string(axis);
    add("cummax" + where, {cube}, [=](const Arrays& x) { return square(cummax(x[0], axis).values); });
    add("cummin" + where, {cube}, [=](const Arrays& x) { return square(cummin(x[0], axis).values); });
    add_plain("cummax, indices" + where, {cube}, [=](const Arrays& x) { return cummax(x[0], axis).indices; });
    add("diff" + where, {cube}, [=](const Arrays& x) { return square(diff(x[0], 2, axis)); });
  }
  add("cumsum of a view", {s},
      [](const Arrays& x) { return square(cumsum(x[0](slice(1, 5), reversed()).transpose(), 0)); });
  add("cumsum of a scalar", {{}}, [](const Arrays& x) { return square(cumsum(x[0], 0)); });

  // ---- sorts
  for (const int axis : {0, 1, -1}) {
    for (const bool descending : {false, true}) {
      const std::string where = ", axis " + std::to_string(axis) + (descending ? ", descending" : "");
      add("sort" + where, {cube},
          [=](const Arrays& x) { return square(sort(x[0], axis, {.descending = descending})); });
      add_plain("argsort" + where, {cube},
                [=](const Arrays& x) { return argsort((x[0] * 2).to(DType::i32), axis, {.descending = descending}); });
      add("topk" + where, {cube},
          [=](const Arrays& x) { return square(topk(x[0], 2, axis, {.largest = descending}).values); });
      add_plain("topk, indices" + where, {cube}, [=](const Arrays& x) {
        return topk((x[0] * 2).to(DType::i32), 2, axis, {.largest = descending}).indices;
      });
    }
  }
  add("take_along_axis", {s}, [](const Arrays& x) {
    return square(take_along_axis(x[0], labels_for(10, 7).reshape({5, 2}), 1));
  });
  add("take_along_axis, broadcast", {s}, [](const Arrays& x) {
    return square(take_along_axis(x[0], labels_for(3, 5).reshape({3, 1}), 0));
  });
  add_plain("searchsorted", {{40}, s}, [](const Arrays& x) { return searchsorted(sort(x[0]), x[1]); });
  add_plain("searchsorted, lines", {{5, 20}, s}, [](const Arrays& x) {
    const NDArray sorted = sort((x[0] * 3).to(DType::i32));
    return searchsorted(sorted, (x[1] * 3).to(DType::i32), {.right = true}) +
           searchsorted(sorted, (x[1] * 3).to(DType::i32)) * 100;
  });
  add_plain("bincount", {s}, [](const Arrays& x) { return bincount((x[0] * 3 + 6).to(DType::i64), 12); });
  add_plain("bincount, waiting", {s}, [](const Arrays& x) { return bincount((x[0] * 3 + 6).to(DType::i32)); });
  add("bincount with weights", {s},
      [s](const Arrays& x) { return square(bincount(labels_for(35, 6).reshape(s), x[0], 8)); });
  add_plain("histogram", {s}, [](const Arrays& x) { return histogram(x[0], 6, -1, 1.5).counts; });
  add_plain("unique", {{5, 20}}, [](const Arrays& x) {
    const Unique found = unique((x[0] * 3).to(DType::i32));
    return concat({found.values, found.counts, found.inverse.flatten()});
  });
}

}  // namespace sluice::testing
