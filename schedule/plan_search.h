// The search for the cut of a network into a schedule's stages: the part of the planner (planner.h) that it calls for
// each schedule and number of microbatches. Pure.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "sluice/schedule/layer_cost.h"
#include "sluice/schedule/simulate.h"

namespace sluice::parallel {

/// A schedule of one step without R, and what its stages are to be made of.
struct CutProblem {
  std::vector<LayerSample> samples;  ///< of each layer, for one microbatch
  std::vector<LayerCost> layers;
  Schedule schedule;
  int steps = 1;
  std::vector<double> memory;
  SimulateOptions machine;
  bool recompute = false;
  int most_simulations = 300;
  double below = std::numeric_limits<double>::infinity();  ///< only cuts that take less than this
};

struct CutFound {
  bool found = false;
  std::vector<int> first_layer;
  std::vector<bool> recompute;
  double seconds = 0, bubble = 0;  ///< of a step
  std::vector<double> peak;
  double bound = 0;
  bool exact = true;
  std::string needs;  ///< where no cut fits: the device that lacks most in the cut that needs least
};

/// What a cut's stages are for the simulator.
struct CutParts {
  std::vector<StageCost> costs = {};
  std::vector<StageBytes> bytes = {};
  SimulateOptions machine = {};
};

CutFound search_cuts(const CutProblem& problem);

/// What it says of one cut.
CutFound time_cut(const CutProblem& problem, const std::vector<int>& first_layer, const std::vector<bool>& recompute);
CutParts parts_of(const CutProblem& problem, const std::vector<int>& first_layer);

}  // namespace sluice::parallel
