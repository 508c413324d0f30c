// What the layers [a, b) are as a stage, for all a < b: costs and bytes, of one microbatch. A part of the planner's
// search (plan_search.h).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "sluice/schedule/layer_cost.h"
#include "sluice/schedule/simulate.h"

namespace sluice::parallel {

/// Immutable after its construction. Memory: some 50 bytes times the square of the layers.
class StageTable {
 public:
  StageTable(std::span<const LayerSample> samples, std::span<const LayerCost> layers, int microbatches);

  int layers() const { return layers_; }
  /// Nobody wants the gradient of the network's input: what only leads there costs nothing, and what the first stage's
  /// I leaves undone is in its W.
  const StageCost& cost(int a, int b) const { return costs_[at(a, b)]; }
  const StageBytes& bytes(int a, int b) const { return bytes_[at(a, b)]; }
  /// All that a device does for a microbatch of the stage.
  double work(int a, int b, bool again) const {
    const StageCost& cost = costs_[at(a, b)];
    return cost.forward + cost.input_gradient + cost.weight_gradient + (again ? cost.recompute : 0);
  }
  /// Of a layer, wherever it is cut; never more than it adds to a stage's work.
  double work(int layer) const { return work_[static_cast<std::size_t>(layer)]; }
  double weight_gradient(int layer) const { return weight_gradient_[static_cast<std::size_t>(layer)]; }
  /// After this share of a whole backward pass the input's gradient can be sent: what it does last is its first layer's
  /// weights.
  double gradient_share(int a, int b) const;
  /// The layers before this one: their forward passes, and the way of a gradient through them.
  double forward_before(int layer) const { return forward_before_[static_cast<std::size_t>(layer)]; }
  double gradient_before(int layer) const { return gradient_before_[static_cast<std::size_t>(layer)]; }

 private:
  /// A triangle, row by row.
  std::size_t at(int a, int b) const {
    const auto row = static_cast<std::size_t>(a), all = static_cast<std::size_t>(layers_);
    return row * (2 * all - row - 1) / 2 + static_cast<std::size_t>(b - 1);
  }

  int layers_;
  std::vector<double> weight_gradient_;
  std::vector<StageCost> costs_;
  std::vector<StageBytes> bytes_;
  std::vector<double> work_, forward_before_, gradient_before_;
};

}  // namespace sluice::parallel
