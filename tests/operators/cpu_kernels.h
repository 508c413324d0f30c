// What the tests of the CPU kernels share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/operators/backends/cpu/conv2d.h"

namespace sluice::test {

using std::int32_t;
using std::int64_t;

inline constexpr unsigned kSeed = 20240607;

template <class T>
std::vector<T> random_values(std::mt19937& random, int64_t n) {
  std::vector<T> values(static_cast<std::size_t>(n));
  std::normal_distribution<double> normal;
  for (T& v : values) v = static_cast<T>(std::is_integral_v<T> ? std::round(normal(random) * 1000) : normal(random));
  return values;
}

inline int64_t pick(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

/// The largest difference, as a part of the largest wanted value.
template <class T>
double relative_error(const std::vector<T>& got, const std::vector<T>& wanted) {
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto a = static_cast<double>(got[i]), b = static_cast<double>(wanted[i]);
    if (std::isnan(a) != std::isnan(b)) return std::numeric_limits<double>::infinity();
    if (std::isnan(b)) continue;
    largest = std::max(largest, std::abs(b));
    difference = std::max(difference, std::abs(a - b));
  }
  return largest == 0 ? difference : difference / largest;
}

template <class T>
double tolerance() {
  return std::is_same_v<T, float> ? 4e-6 : 1e-14;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Runs make() (which returns a vector) in an op on 1, 2 and 4 threads, and says whether all results have the same
/// bits.
template <class Make>
bool same_on_any_width(const Make& make) {
  const auto on_threads = [&](int threads) {
    Engine engine({.mode = EngineMode::threaded, .mode_given = true, .threads = threads});
    decltype(make()) result;
    engine.push([&] { result = make(); }, {}).wait();
    return result;
  };
  const auto one = on_threads(1);
  return same_bits(one, on_threads(2)) && same_bits(one, on_threads(4));
}

inline const auto acquire = [](std::size_t bytes) {
  void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  std::memset(memory, 0xFF, bytes);  // NaN: kernels must not read what they did not write
  return memory;
};
inline const auto release = [](void* memory, std::size_t) { std::free(memory); };
inline const cpu_backend::Workspace kWorkspace{acquire, release};

}  // namespace sluice::test
