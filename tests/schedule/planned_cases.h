// Cases for the planner, and an exhaustive search that knows nothing of it.
#pragma once

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

#include "sluice/schedule/generators.h"
#include "sluice/schedule/planner.h"
#include "sluice/schedule/verify.h"

namespace sluice::parallel {

/// One sample at one row; bytes are whole numbers, so that their sums are exact.
inline LayerCost layer(double f, double i, double w, double weights = 0, double saved = 0, double kept = 0,
                       double input = 0) {
  return {.name = "layer",
          .samples = {{.rows = 1,
                       .forward = f,
                       .input_gradient = i,
                       .weight_gradient = w,
                       .saved = saved,
                       .kept = kept,
                       .input = input}},
          .weights = weights,
          .gradients = weights / 4};
}

struct Case {
  std::vector<LayerCost> layers;
  PlanOptions options;
};

/// The time of a cut by simulate(), or infinity where it does not fit.
inline double time_of(const Case& c, const Schedule& base, const std::vector<int>& first,
                      const std::vector<bool>& again) {
  const int m = base.microbatches, stages = base.stages;
  std::vector<StageCost> costs;
  std::vector<StageBytes> bytes;
  SimulateOptions machine{.cores = c.options.cores,
                          .link = c.options.link,
                          .shared_link = c.options.shared_link,
                          .link_takes_cores = c.options.link_takes_cores};
  const double rows = static_cast<double>(c.options.rows) / m;
  for (int s = 0; s < stages; ++s) {
    const int a = first[static_cast<std::size_t>(s)];
    const int b = s + 1 < stages ? first[static_cast<std::size_t>(s) + 1] : static_cast<int>(c.layers.size());
    StageCost cost;
    StageBytes held;
    bool weights_below = false;
    for (int l = a; l < b; ++l) {
      const LayerCost& layer = c.layers[static_cast<std::size_t>(l)];
      const LayerSample at = layer.at(rows);
      cost.forward += at.forward;
      cost.weight_gradient += at.weight_gradient + layer.step / m;
      // The gradient of the network's input is nobody's.
      if (s > 0) cost.input_gradient += at.input_gradient;
      if (s == 0 && weights_below) cost.weight_gradient += at.input_gradient;
      weights_below = weights_below || layer.gradients > 0;
      held.weights += layer.weights;
      held.gradients += layer.gradients;
      held.saved += at.saved - (l > a ? at.shared : 0);
      held.kept += at.kept - (l > a ? at.kept_shared : 0);
      held.both += at.both - (l > a ? at.kept_shared : 0);
      held.work = std::max(held.work, at.work);
      if (l == b - 1) held.saved += at.output;
      machine.push += layer.push * m * (base.fixed_order ? c.options.steps : 1);
      if (l == a) held.input = at.input;
    }
    if (s == 0) held.kept = held.both = held.saved;
    cost.backward = cost.input_gradient + cost.weight_gradient;
    cost.recompute = cost.forward;
    // The last that a whole backward pass does is its first layer's weights: nobody below waits for those.
    const double last = c.layers[static_cast<std::size_t>(a)].at(rows).weight_gradient;
    machine.gradient_share.push_back(cost.backward > 0 ? (cost.backward - last) / cost.backward : 1);
    costs.push_back(cost);
    bytes.push_back(held);
    machine.output_bytes.push_back(
        b < static_cast<int>(c.layers.size()) ? c.layers[static_cast<std::size_t>(b)].at(rows).input : 0);
  }
  const Schedule whole = with_recompute(base, again);
  if (!c.options.memory.empty()) {
    try {
      verify(whole, {.stages = bytes, .devices = c.options.memory});
    } catch (const std::invalid_argument&) {
      return std::numeric_limits<double>::infinity();
    }
  }
  const int steps = whole.fixed_order ? c.options.steps : 1;
  return simulate(chained(whole, steps), costs, machine).span / steps;
}

/// The least time over all cuts and all choices of stages that recompute.
inline double exhaustive(const Case& c, const Schedule& base) {
  const int layers = static_cast<int>(c.layers.size()), stages = base.stages;
  double best = std::numeric_limits<double>::infinity();
  for (unsigned cut = 0; cut < 1U << (layers - 1); ++cut) {
    std::vector<int> first{0};
    for (int l = 1; l < layers; ++l) {
      if ((cut >> (l - 1) & 1) != 0) first.push_back(l);
    }
    if (static_cast<int>(first.size()) != stages) continue;
    const bool recompute = c.options.recompute && base.fixed_order;
    for (unsigned marks = 0; marks < (recompute ? 1U << stages : 1U); ++marks) {
      std::vector<bool> again;
      for (int s = 0; s < stages; ++s) again.push_back((marks >> s & 1) != 0);
      best = std::min(best, time_of(c, base, first, again));
    }
  }
  return best;
}

}  // namespace sluice::parallel
