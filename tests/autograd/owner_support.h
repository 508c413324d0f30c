// What the tests of arrays of owners have in common.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "sluice/tests/support/halves.h"

namespace sluice::testing {

/// Numbers between -1 and 1.
inline NDArray numbers(const Dims& shape, std::uint64_t seed) {
  RandomStream stream(seed);
  return uniform(shape, stream, -1, 1, DType::f64);
}

inline std::vector<double> values(const NDArray& x) { return Halves::join(x).to_vector<double>(); }

inline void expect_near(const NDArray& got, const NDArray& wanted, double tolerance = 1e-12) {
  ASSERT_TRUE(got.defined());
  ASSERT_EQ(got.shape(), wanted.shape());
  const std::vector<double> a = values(got), b = values(wanted);
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << "element " << i;
}

inline std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

/// Runs f on plain arrays and on halves: the values and all gradients must be equal.
inline void compare(const std::function<NDArray(const NDArray& x, const std::vector<NDArray>& w)>& f,
                    const NDArray& data, const std::vector<NDArray>& weights, int axis = 0) {
  std::vector<NDArray> results[2], leaves[2];
  for (const int owned : {0, 1}) {
    const NDArray x = (owned ? Halves::split(data, axis) : data.copy()).with_grad();
    std::vector<NDArray> w;
    for (const NDArray& one : weights) w.push_back(one.copy().with_grad());
    const NDArray y = f(x, w);
    y.backward();
    results[owned].push_back(y);
    leaves[owned].push_back(x.grad());
    for (const NDArray& one : w) leaves[owned].push_back(one.grad());
  }
  expect_near(results[1][0], results[0][0]);
  for (std::size_t i = 0; i < leaves[0].size(); ++i) {
    SCOPED_TRACE("leaf " + std::to_string(i));
    ASSERT_EQ(leaves[0][i].defined(), leaves[1][i].defined());
    if (leaves[0][i].defined()) expect_near(leaves[1][i], leaves[0][i]);
  }
}

}  // namespace sluice::testing
