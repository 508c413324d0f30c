// The quickstart's network, and made-up images for it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sluice/sluice.h"

namespace sluice::bench {

/// Eight functions, with values on the device of the thread's scope.
inline nn::Sequential quickstart_net() {
  nn::Sequential net{nn::Conv2d{.in = 1, .out = 32, .kernel = 3, .relu = true},
                     nn::MaxPool2d{2},
                     nn::Conv2d{.in = 32, .out = 32, .kernel = 3, .padding = 1, .relu = true},
                     nn::Conv2d{.in = 32, .out = 64, .kernel = 3, .relu = true},
                     nn::MaxPool2d{2},
                     nn::Flatten{},
                     nn::Linear{.in = 1600, .out = 128, .relu = true},
                     nn::Linear{128, 10}};
  nn::initialise(net, 1);
  return net;
}

/// In one stage or in two, cut where the quickstart cuts it, on a logical CPU each.
inline parallel::PipelineOptions quickstart_stages(int stages) {
  if (stages == 2) return {.devices = {cpu(0), cpu(1)}, .cut = {0, 3}};
  return {.devices = {cpu(0)}};
}

/// Images on the first device, and labels on the last.
inline std::pair<NDArray, NDArray> quickstart_batch(std::int64_t rows, int stages) {
  RandomStream random(2);
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < rows; ++i) labels.push_back(i % 10);
  return {normal({rows, 1, 28, 28}, random).to(cpu(0)), from(labels, {rows}).to(cpu(stages - 1))};
}

inline nn::Sgd quickstart_sgd() { return {.lr = 0.01, .momentum = 0.9}; }

}  // namespace sluice::bench
