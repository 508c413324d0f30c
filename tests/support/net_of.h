// A net of arrays that a test has at hand, for an optimiser of them.
#pragma once

#include <vector>

#include "sluice/nn/net/parameter.h"

namespace sluice::test {

/// Its parameters are these leaves themselves, not copies. In paths they are "0", "1", ...
inline std::vector<nn::Parameter> net_of(const std::vector<NDArray>& leaves) {
  std::vector<nn::Parameter> net;
  for (const NDArray& leaf : leaves) {
    net.emplace_back(leaf.shape(), nn::Init());
    net.back().state()->value = leaf;
  }
  return net;
}

}  // namespace sluice::test
