// Timelines: when each action of a pipeline ran, as measured or as simulated, and the figures drawn from that.
#pragma once

#include <span>
#include <vector>

#include "sluice/schedule/action_lists.h"

namespace sluice::parallel {

/// One action with the time it took. Seconds from any origin: only differences are used.
struct TimelineBox {
  ActionKind kind = ActionKind::forward;
  int stage = 0;
  int microbatch = 0;
  double start = 0, end = 0;
};

/// What a timeline says as a whole.
struct TimelineFigures {
  double span = 0;              ///< Seconds from the first start to the last end.
  double busy = 0;              ///< Seconds in which a stage had a box, summed over stages.
  double bubble = 0;            ///< 1 - busy / (stages x span); 0 where the span is 0.
  std::vector<StageCost> mean;  ///< For each stage the mean length of its boxes of each kind; 0 where it has none.
};

/// Measures boxes in any order; meant for those of one step, since time between steps would count as bubble.
/// Where stages share cores, the boxes (and so the means) hold the time spent waiting for a core.
/// Throws std::invalid_argument for stages < 1, a stage outside [0, stages), a time that is not finite, or an end
/// before its start. Pure and thread-safe.
TimelineFigures measure(std::span<const TimelineBox> boxes, int stages);

/// The bubble of GPipe and 1F1B with equal stages: (stages - 1) / (microbatches + stages - 1).
/// Throws std::invalid_argument for stages < 1 or microbatches < 1.
double bubble_formula(int stages, int microbatches);

}  // namespace sluice::parallel
