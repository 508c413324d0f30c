// The quickstart's network, and made-up images for it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "sluice/sluice.h"

namespace sluice::bench {

/// In one stage or in two, cut where the quickstart cuts it, on a logical CPU each.
inline std::vector<parallel::Stage> quickstart_stages(int stages) {
  RandomStream random(1);
  const ConvOptions with_relu{.relu = true};
  const auto lower = std::make_shared<Sequential>(Sequential{Conv2d(1, 32, 3, random, with_relu), MaxPool2d(2),
                                                             Conv2d(32, 32, 3, random, {.padding = 1, .relu = true})});
  const auto upper =
      std::make_shared<Sequential>(Sequential{Conv2d(32, 64, 3, random, with_relu), MaxPool2d(2), Flatten(),
                                              Linear(1600, 128, random, {.relu = true}), Linear(128, 10, random)});
  if (stages == 2) return {{lower, cpu(0)}, {upper, cpu(1)}};
  return {{std::make_shared<Sequential>(Sequential{ModulePtr(lower), ModulePtr(upper)}), cpu(0)}};
}

/// Images on the first device, and labels on the last.
inline std::pair<NDArray, NDArray> quickstart_batch(std::int64_t rows, int stages) {
  RandomStream random(2);
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < rows; ++i) labels.push_back(i % 10);
  return {normal({rows, 1, 28, 28}, random).to(cpu(0)), from(labels, {rows}).to(cpu(stages - 1))};
}

inline constexpr SgdOptions kQuickstartSgd{.lr = 0.01, .momentum = 0.9};

}  // namespace sluice::bench
