// The names that the lines of docs/from-pytorch.md use.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "sluice/sluice.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice::testing {

class FromPyTorch : public ::testing::Test {
 protected:
  struct Net {
    nn::Linear up{4, 8}, down{8, 2};
    NDArray operator()(const NDArray& a) const { return down(relu(up(a))); }
  };
  FromPyTorch() { nn::initialise(net, 1); }
  void TearDown() override { default_engine().wait_all(); }

  RandomStream random{1};
  NDArray x = arange(1, 13).to(DType::f32).reshape({3, 4}), y = ones({3, 4}), v = ones({4}), w = ones({2, 4});
  NDArray batch = ones({2, 3, 4}), square_matrix = eye(3), image = ones({1, 2, 6, 6}), filter = ones({4, 2, 3, 3});
  NDArray mask = x > 5, index = from<std::int64_t>({2, 0}, {2}), labels = from<std::int64_t>({1, 0, 3}, {3});
  NDArray leaf = ones({3, 4}).with_grad();
  Net net;
  nn::Optimizer opt{net, nn::Sgd{}};
  nn::Table table{ones({8, 4}), zeros({8}, DType::u8)};
  NDArray tokens = zeros({1000}, DType::u8);
  const test::TemporaryDirectory folder;
  const std::filesystem::path file = folder / "file";
};

}  // namespace sluice::testing
