#include "sluice/schedule/layer_cost.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

namespace sluice::parallel {
namespace {

constexpr double LayerSample::*kFigures[] = {
    &LayerSample::forward,     &LayerSample::input_gradient, &LayerSample::weight_gradient,
    &LayerSample::saved,       &LayerSample::shared,         &LayerSample::output,
    &LayerSample::kept,        &LayerSample::both,           &LayerSample::work,
    &LayerSample::kept_shared, &LayerSample::input};

}  // namespace

LayerSample LayerCost::at(double rows) const {
  if (samples.empty()) throw std::invalid_argument("layer '" + name + "' has no samples");
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].rows > (i == 0 ? 0 : samples[i - 1].rows)) continue;
    throw std::invalid_argument("layer '" + name + "' has samples whose rows do not increase");
  }
  // No rows cost nothing, where there is but one sample.
  LayerSample low, high = samples.front();
  low.rows = 0;
  if (samples.size() > 1) {
    std::size_t i = 1;
    while (i + 1 < samples.size() && samples[i].rows < rows) ++i;
    low = samples[i - 1];
    high = samples[i];
  }
  const double share = (rows - low.rows) / (high.rows - low.rows);
  LayerSample here;
  here.rows = rows;
  for (const auto figure : kFigures) {
    here.*figure = std::max(0.0, low.*figure + share * (high.*figure - low.*figure));
  }
  return here;
}

}  // namespace sluice::parallel
