// What the tests of layers share: nets of f64, and gradients against differences.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "nn_support.h"

namespace sluice::test {

inline constexpr DType kWide = DType::f64;

template <class Net>
Net made(Net net) {
  nn::initialise(net, 7, {}, {.dtype = kWide});
  return net;
}
inline std::vector<double> doubles(const NDArray& x) { return x.to(kWide).to_vector<double>(); }
inline void expect_equal(const NDArray& a, const NDArray& b, double tolerance = 1e-12) {
  ASSERT_EQ(a.shape(), b.shape());
  expect_close(doubles(a), doubles(b), tolerance);
}

/// The gradients of sum(f() * c) with respect to all parameters and x against differences.
template <class Net>
void check_gradients(const Net& net, const NDArray& at_x, const std::function<NDArray(const NDArray&)>& f) {
  const NDArray x = at_x.copy().with_grad();
  const auto loss = [&] {
    const NDArray y = f(x);
    return sum(y * made_up(y.shape(), 99));
  };
  loss().backward();
  std::vector<std::pair<std::string, NDArray>> list{{"x", x}};
  for (const nn::Named& p : nn::parameters(net)) list.emplace_back(p.name, p.state->value);
  for (const auto& [name, array] : list) {
    ASSERT_TRUE(array.grad().defined()) << name;
    const std::vector<double> gradient = doubles(array.grad());
    std::vector<double> values = doubles(array);
    const NoGrad off;
    for (std::size_t i = 0; i < values.size(); i += 1 + values.size() / 7) {
      const double at = values[i], step = 1e-6;
      double sides[2];
      for (int k = 0; k < 2; ++k) {
        values[i] = at + (k ? step : -step);
        array.assign(from(values, array.shape()));
        sides[k] = loss().template item<double>();
      }
      values[i] = at;
      array.assign(from(values, array.shape()));
      EXPECT_NEAR(gradient[i], (sides[1] - sides[0]) / (2 * step), 1e-6) << name << " at " << i;
    }
  }
}

}  // namespace sluice::test
