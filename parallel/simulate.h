// An event simulation of a schedule: a model of time, with no hardware and no transfers in it.
#pragma once

#include <span>
#include <vector>

#include "sluice/parallel/schedule.h"
#include "sluice/parallel/timeline.h"

namespace sluice::parallel {

struct SimulatedBox {
  Action action;
  double start = 0, end = 0;
};

/// Times are in the unit of the costs; the first box starts at 0.
struct Simulation {
  int stages = 0;
  std::vector<SimulatedBox> boxes;  ///< By start; boxes that start together by stage.
  double span = 0;                  ///< The end of the last box.
  double busy = 0;                  ///< The lengths of all boxes, summed over stages.
  double bubble = 0;                ///< 1 - busy / (stages x span); 0 where the span is 0.
};

/// Runs the schedule in simulated time: each stage starts its next action as soon as it is idle and all that the action
/// reads is done. costs holds one entry a stage.
/// cores = 0 gives each stage a core of its own. With fewer cores than stages, all actions that could run do so at once
/// and share the cores evenly: while k > cores of them run, each goes on at cores / k of its speed. A box that shares
/// is longer than its cost, just as a clock around it would measure, and busy and bubble are computed from these longer
/// boxes: they say how often a stage had nothing to do, not how well the cores were used.
/// Throws std::invalid_argument for a schedule that verify() refuses, for a number of costs other than the number of
/// stages, for a cost that is negative or not finite, and for cores < 0. Pure and thread-safe.
Simulation simulate(const Schedule& schedule, std::span<const StageCost> costs, int cores = 0);

/// The simulation's boxes as a timeline, for drawing; costs were in seconds.
std::vector<TimelineBox> to_timeline(const Simulation& simulation);

}  // namespace sluice::parallel
