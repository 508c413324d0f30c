// What the search for a cut is given and gives: plan_search.h searches, cut_judge.h judges one cut. Internal to
// schedule/.
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
  int most_simulations = 1000;
  double below = std::numeric_limits<double>::infinity();  ///< only cuts that take less than this
};

struct CutFound {
  bool found = false;
  std::vector<int> first_layer = {};
  std::vector<bool> recompute = {};
  double seconds = 0, bubble = 0;  ///< of a step
  std::vector<double> peak = {};
  double bound = 0;
  bool exact = true;
  /// Where none was found: the device that lacks most in the cut that needs least of those seen.
  std::string needs = {};
};

/// What a cut's stages are for the simulator.
struct CutParts {
  std::vector<StageCost> costs = {};
  std::vector<StageBytes> bytes = {};
  SimulateOptions machine = {};
};

}  // namespace sluice::parallel
