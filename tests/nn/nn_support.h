// What the tests of nn/ share: engines of their own, operations that fail, and arrays of made-up numbers.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "../support/devices.h"
#include "sluice/ndarray/push.h"
#include "sluice/nn/nets.h"
#include "sluice/sluice.h"

namespace sluice::test {

class TestEngine : public DefaultEngine {
 public:
  explicit TestEngine(const EngineOptions& options = {.threads = 2}) : DefaultEngine(options) {
    engine().on_unobserved_error([](const ErrorRoot&) {});
  }
  Engine* operator->() { return &engine(); }
};

/// The text of what f throws.
template <class F>
std::string what_of(const F& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// x, but by an operation that fails.
inline NDArray broken(const NDArray& x) {
  NDArray y = empty(x.shape(), x.dtype(), x.device());
  push_op([](ArrayContext&) { throw std::runtime_error("bad batch"); }, {x}, {y}, {.name = "broken"});
  return y;
}

/// Numbers that look random and are the same everywhere, in (-1, 1).
inline std::vector<double> numbers(std::int64_t n, std::uint64_t seed) {
  std::vector<double> list;
  const ElementKey key(RandomKey{seed, 7, 0});
  for (std::int64_t i = 0; i < n; ++i) list.push_back(2 * uniform01_f64(key, static_cast<std::uint64_t>(i)) - 1);
  return list;
}

inline NDArray made_up(const Dims& shape, std::uint64_t seed, DType dtype = DType::f64) {
  return from(numbers(shape.count(), seed), shape).to(dtype);
}

/// The elements' bytes. Compare with EXPECT_TRUE(a == b): what differs is of no use to a reader.
inline std::string bits(const NDArray& x) {
  const std::vector<std::byte> bytes = x.to_bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline void expect_close(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i], b[i], tolerance * std::max(1.0, std::abs(b[i]))) << "at " << i;
  }
}

}  // namespace sluice::test
