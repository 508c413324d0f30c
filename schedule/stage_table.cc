#include "sluice/schedule/stage_table.h"

#include <algorithm>

namespace sluice::parallel {

StageTable::StageTable(std::span<const LayerSample> samples, std::span<const LayerCost> layers, int microbatches)
    : layers_(static_cast<int>(samples.size())),
      costs_(samples.size() * (samples.size() + 1) / 2),
      bytes_(costs_.size()),
      forward_before_{0},
      gradient_before_{0} {
  std::size_t first_weights = 0;
  while (first_weights + 1 < layers.size() && layers[first_weights].gradients == 0) ++first_weights;
  for (std::size_t a = 0; a < samples.size(); ++a) {
    double f = 0, i = 0, w = 0, step = 0;
    StageBytes bytes{.input = samples[a].input};
    for (std::size_t l = a; l < samples.size(); ++l) {
      const LayerSample& layer = samples[l];
      f += layer.forward;
      w += layer.weight_gradient;
      step += layers[l].step / microbatches;
      if (a > 0) {
        i += layer.input_gradient;
      } else if (l > first_weights) {
        w += layer.input_gradient;
      }
      bytes.weights += layers[l].weights;
      bytes.gradients += layers[l].gradients;
      bytes.saved += layer.saved - (l > a ? layer.shared : 0);
      bytes.kept += layer.kept - (l > a ? layer.kept_shared : 0);
      bytes.both += layer.both - (l > a ? layer.kept_shared : 0);
      bytes.work = std::max(bytes.work, layer.work);
      const std::size_t here = at(static_cast<int>(a), static_cast<int>(l) + 1);
      costs_[here] = cost_of_halves(f, i, w + step);
      costs_[here].recompute = f;
      bytes_[here] = bytes;
      bytes_[here].saved += layer.output;
      // The whole backward pass of the first stage is its W.
      if (a == 0) bytes_[here].kept = bytes_[here].both = bytes_[here].saved;
    }
  }
  for (std::size_t l = 0; l < samples.size(); ++l) {
    const LayerSample& layer = samples[l];
    const double back = l > first_weights ? layer.input_gradient : 0;
    weight_gradient_.push_back(layer.weight_gradient);
    work_.push_back(layer.forward + layer.weight_gradient + back + layers[l].step / microbatches);
    forward_before_.push_back(forward_before_.back() + layer.forward);
    gradient_before_.push_back(gradient_before_.back() + (l == 0 ? layer.weight_gradient : 0) + back);
  }
}

double StageTable::gradient_share(int a, int b) const {
  const double whole = cost(a, b).backward;
  return whole > 0 ? std::clamp(1 - weight_gradient_[static_cast<std::size_t>(a)] / whole, 0.0, 1.0) : 1;
}

}  // namespace sluice::parallel
