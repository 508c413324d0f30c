// The planner of pipelines: from what each layer costs to the cut into stages, the schedule, the microbatches and what
// is recomputed. On paper: plan.h measures a network and asks this.
//
// Every candidate is timed by the simulator (simulate.h) and held against memory by the prover (verify.h); nothing else
// judges. Everything in this header is a pure function of its arguments: thread-safe, and never blocks.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "sluice/schedule/action_lists.h"
#include "sluice/schedule/layer_cost.h"
#include "sluice/schedule/simulate.h"

namespace sluice::parallel {

struct PlanOptions {
  int devices = 1;
  std::vector<double> memory = {};  ///< bytes, one for each device; empty: without bound
  std::int64_t rows = 1;            ///< of a batch
  /// Candidates. Empty microbatches: the powers of two up to 64 that divide the rows, or 1. Empty schedules:
  /// plannable_schedules().
  std::vector<int> microbatches = {};
  std::vector<std::string> schedules = {};
  bool recompute = true;          ///< stages may keep their input alone, and run forward again
  Link link = {};                 ///< between devices
  bool shared_link = false;       ///< as in SimulateOptions
  bool link_takes_cores = false;  ///< as in SimulateOptions, and so is `cores`
  int cores = 0;
  /// So many steps follow each other without a wait between them, as in training: the time of a step is that of all of
  /// them divided by their number. A free order counts as if each step waited for the one before.
  int steps = 1;
  int most_simulations = 1000;  ///< for each schedule and number of microbatches; see plan_layers()
};

/// A schedule and a number of microbatches with the best cut for them.
struct Candidate {
  std::string schedule;
  int microbatches = 0;
  std::vector<int> first_layer = {};  ///< of each stage (virtual stages, action_lists.h)
  std::vector<bool> recompute = {};   ///< for each stage
  double seconds = 0;                 ///< a step
  double throughput = 0;              ///< rows a second
  double bubble = 0;
  std::vector<double> peak = {};  ///< bytes, for each device
  /// No cut for this schedule and these microbatches takes less than this; `exact` where it is `seconds`. Of a row that
  /// does not recompute, beside one that does: no cut without recomputation.
  double bound = 0;
  bool exact = true;  ///< the search came to its end
  /// Why there is none; the figures are then 0. Where the search did not end: "no cut found in 5000 tried; ...".
  std::string refused = {};

  int stages() const { return static_cast<int>(first_layer.size()); }
  bool recomputes() const;
  /// The schedule as data, with R actions where stages recompute.
  Schedule make() const;
};

struct Plan {
  std::vector<LayerCost> layers;
  PlanOptions options;
  std::vector<Candidate> table = {};  ///< the quickest first, then what was refused
  int chosen = -1;                    ///< in the table; -1: nothing is left

  /// Throws std::runtime_error with one line where nothing is left.
  const Candidate& best() const;
};

/// Tries every schedule with every number of microbatches. For each it searches the cuts of the layers into as many
/// stages as the schedule wants (each at least one layer), with every choice of stages that recompute, for the one with
/// the least simulated time that fits into memory: by branch and bound. With one stage a device, dynamic programming
/// over layers and stages gives the bounds; with several the loads of devices and the bytes of their stages so far do.
/// The result is that of an exhaustive search, up to rounding, unless it takes more than most_simulations, or a
/// thousand times as many parts of cuts; then `exact` is false, the cut is the best one seen, and `bound` says how much
/// quicker another could be at most. It is never slower than a cut into equally many layers that fits, with all stages
/// recomputing or none. Throws std::invalid_argument for options that make no sense and for layers that are none; a
/// candidate that is not possible, or for which no cut was found, is refused in the table.
Plan plan_layers(std::span<const LayerCost> layers, const PlanOptions& options);

/// A given cut, as a row of that table: its time and its bytes, whatever the devices have. Throws std::invalid_argument
/// where the schedule is not defined, and for a cut that does not begin with layer 0, does not increase, or has another
/// number of stages.
Candidate time_cut(std::span<const LayerCost> layers, const PlanOptions& options, const std::string& schedule,
                   int microbatches, const std::vector<int>& first_layer, const std::vector<bool>& recompute = {});

/// What a candidate's stages hold, and one step of it as simulated, with memory over time, whether it fits or not.
/// Throws as time_cut() does.
std::vector<StageBytes> bytes_of(std::span<const LayerCost> layers, const PlanOptions& options,
                                 const Candidate& candidate);
Simulation simulate(std::span<const LayerCost> layers, const PlanOptions& options, const Candidate& candidate);

/// The table, a line for each candidate, and what was chosen.
std::string to_text(const Plan& plan);

/// "0-2 | 3-7": the layers of each stage; a stage that recomputes has an R behind it.
std::string cut_to_text(const Candidate& candidate, int layers);

/// What plan_layers() tries for so many devices, or for so many rows, where it is not told.
std::vector<std::string> plannable_schedules(int devices);
std::vector<int> plannable_microbatches(std::int64_t rows);

}  // namespace sluice::parallel
