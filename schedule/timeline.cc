#include "sluice/schedule/timeline.h"

#include "sluice/engine/number_text.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>

namespace sluice::parallel {

TimelineFigures measure(std::span<const TimelineBox> boxes, int stages) {
  if (stages < 1) throw std::invalid_argument("a timeline needs at least 1 stage, not " + std::to_string(stages));
  TimelineFigures figures;
  figures.mean.resize(static_cast<std::size_t>(stages));
  if (boxes.empty()) return figures;
  std::vector<StageCost> count(static_cast<std::size_t>(stages));
  double first = boxes.front().start, last = boxes.front().end;
  for (const TimelineBox& box : boxes) {
    const std::string name = to_text(Action{box.kind, box.stage, box.microbatch});
    if (box.stage < 0 || box.stage >= stages) {
      throw std::invalid_argument("timeline box " + name + " is outside of " + std::to_string(stages) + " stages");
    }
    if (!std::isfinite(box.start) || !std::isfinite(box.end) || box.end < box.start) {
      throw std::invalid_argument("timeline box " + name + " runs from " + general_text(box.start, 6) + " s to " +
                                  general_text(box.end, 6) + " s");
    }
    const auto s = static_cast<std::size_t>(box.stage);
    figures.mean[s].of(box.kind) += box.end - box.start;
    count[s].of(box.kind) += 1;
    first = std::min(first, box.start);
    last = std::max(last, box.end);
  }
  for (std::size_t s = 0; s < count.size(); ++s) {
    for (int kind = 0; kind < kActionKinds; ++kind) {
      const auto k = static_cast<ActionKind>(kind);
      if (count[s].of(k) > 0) figures.mean[s].of(k) /= count[s].of(k);
    }
  }
  // In a free order the boxes of a stage overlap: its operations take turns.
  std::vector<TimelineBox> in_order(boxes.begin(), boxes.end());
  std::ranges::stable_sort(in_order, {}, &TimelineBox::start);
  std::vector<double> covered_to(static_cast<std::size_t>(stages), first);
  for (const TimelineBox& box : in_order) {
    double& covered = covered_to[static_cast<std::size_t>(box.stage)];
    figures.busy += std::max(0.0, box.end - std::max(box.start, covered));
    covered = std::max(covered, box.end);
  }
  figures.span = last - first;
  if (figures.span > 0) figures.bubble = 1 - figures.busy / (stages * figures.span);
  return figures;
}

double bubble_formula(int stages, int microbatches) {
  if (stages < 1 || microbatches < 1) {
    throw std::invalid_argument("the bubble formula needs at least 1 stage and 1 microbatch, not " +
                                std::to_string(stages) + " and " + std::to_string(microbatches));
  }
  return (stages - 1.0) / (microbatches + stages - 1.0);
}

}  // namespace sluice::parallel
