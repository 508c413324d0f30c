// What the tests of pipelines share beside network.h: an engine of so many devices, labels, the oracle, and refusals.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "network.h"

namespace sluice::test {

struct ManyDevices : DefaultEngine {
  explicit ManyDevices(int devices, int threads = 2)
      : DefaultEngine({.threads = threads, .logical_cpus = devices}), engine(DefaultEngine::engine()) {}
  Engine& engine;
};

inline std::vector<Device> devices(int count) {
  std::vector<Device> list;
  for (int i = 0; i < count; ++i) list.push_back(test::device(i));
  return list;
}

inline NDArray labels(std::int64_t rows, std::int64_t classes = 5) {
  std::vector<std::int64_t> list;
  for (std::int64_t i = 0; i < rows; ++i) list.push_back((i * 7 + 3) % classes);
  return from(list, {rows});
}
/// The oracle: the net on one device, microbatches in order. Adds to the gradients; gives the loss.
template <class Net>
NDArray one_after_another(const Net& net, const nn::Arrays& x, const NDArray& y, int microbatches) {
  const std::int64_t rows = y.size(0);
  std::vector<NDArray> losses;
  std::int64_t begin = 0;
  for (int k = 0; k < microbatches; ++k) {
    const nn::Microbatch microbatch(k);
    const std::int64_t end = begin + rows / microbatches + (k < rows % microbatches ? 1 : 0);
    nn::Arrays part;
    for (const NDArray& array : x) part.push_back(array.narrow(0, begin, end));
    const NDArray output = nn::run(nn::stages_of(net), std::move(part))[0];
    const NDArray loss = cross_entropy(output, y.narrow(0, begin, end), static_cast<double>(rows));
    loss.backward();
    losses.push_back(loss.detach());
    begin = end;
  }
  return add_n(losses);
}

/// The class of what f throws, and the text without the line of the call.
template <class E, class F>
std::string refused(F&& f) {
  try {
    f();
  } catch (const E& e) {
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    return e.what();
  } catch (const std::exception& e) {
    return std::string("of another class: ") + e.what();
  }
  return "accepted";
}

}  // namespace sluice::test
