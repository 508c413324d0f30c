// What the planner's search (plan_search.cc) knows of cuts: whether one fits, how long it takes, and which is the best
// so far.
#pragma once

#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sluice/schedule/cut_problem.h"
#include "sluice/schedule/device_peak.h"
#include "sluice/schedule/simulated_tasks.h"
#include "sluice/schedule/stage_table.h"

namespace sluice::parallel {

/// Where stages begin and which recompute. In a search it may end early: with the first of its stages.
struct Cut {
  std::vector<int> first_layer;
  std::vector<bool> recompute;
  auto operator<=>(const Cut&) const = default;
};

/// Two times that differ by this share are the same.
inline constexpr double kSameTime = 1e-9;

/// Of the room, above 1 where they do not fit, whatever the room is.
double share_of(double bytes, double room);

/// Used by one thread.
class CutJudge {
 public:
  explicit CutJudge(const CutProblem& problem);

  const StageTable& table() const { return table_; }
  int layers() const { return table_.layers(); }
  int stages() const { return problem_.schedule.stages; }
  int devices() const { return problem_.schedule.devices(); }
  int device_of(int stage) const { return device_of_[static_cast<std::size_t>(stage)]; }
  const std::vector<int>& stages_of(int device) const { return stages_of_[static_cast<std::size_t>(device)]; }
  /// Each device has one stage.
  bool one_each() const { return stages() == devices(); }
  /// More work never ends sooner: nothing is shared and nothing is chosen.
  bool monotone() const { return monotone_; }
  /// So many devices can work at once.
  int cores() const { return cores_; }
  double room(int device) const;

  /// All that a device does for the layers [a, b) as a stage, in all microbatches and steps.
  double work(int a, int b, bool again) const { return passes_ * table_.work(a, b, again); }
  /// No device does anything for stage s, whose first layer is a, before its first microbatch is there.
  double start(int s, int a) const { return table_.forward_before(a) + hops(s); }
  /// Where the device's list ends with that stage's gradient: what must come behind all the device's work. It leaves
  /// before the weights' gradients of the first layer are done.
  double tail(int s, int a) const;
  /// Of a whole cut: no run takes less.
  double least(const Cut& cut) const;

  /// What the device holds at most with those of its stages that the cut names, the last of which ends at `end`.
  double peak(int device, const Cut& cut, int end);
  /// The same for a stage on a device of its own.
  double peak(int stage, int a, int b, bool again);
  bool fits(const Cut& cut);
  /// By how much devices need more than they have, as shares of that: the sum and the most; 0 if the cut fits.
  struct Lack {
    double sum = 0, most = 0;
  };
  Lack lack(const Cut& cut);

  /// Simulates a cut that fits, once. True if it is the best so far. Nothing is simulated where the cut is known, where
  /// `least` says that it is worse, and where all simulations are used up, `at_any_price` or not.
  bool evaluate(const Cut& cut, bool at_any_price = false);
  int simulations() const { return simulations_; }
  /// True once a cut was left out for want of simulations.
  bool is_used_up() const { return used_up_; }

  bool found() const { return found_; }
  /// No cut that takes as long is wanted; of a step chain, all of it.
  double limit() const { return best_ * problem_.steps * (1 - kSameTime); }
  const Cut& best() const { return cut_; }
  CutFound result() const;
  /// What simulate() and peak_bytes() say of a cut, whether it fits or not.
  CutFound time(const Cut& cut) const;

  CutParts parts_of(const Cut& cut) const;
  std::vector<double> peaks_of(const Cut& cut) const;
  /// "device 1 needs 56.00 MiB of 40.00 MiB": the device that lacks most of its own memory.
  std::string lack_in_words(const Cut& cut) const;

 private:
  int end_of(const Cut& cut, int stage) const;
  double hops(int stage) const { return hops_[static_cast<std::size_t>(stage)] * problem_.machine.link.latency; }
  double span(const Cut& cut);

  const CutProblem& problem_;
  StageTable table_;
  double passes_;
  int cores_ = 1;
  bool monotone_ = true;
  std::vector<int> device_of_, hops_;
  std::vector<bool> ends_;  // the stage's gradient is the last that its device's list gives
  std::vector<std::vector<int>> stages_of_;
  std::vector<Schedule> part_;                                  // of each device
  std::vector<std::map<std::vector<bool>, DevicePeak>> peaks_;  // of each device, by the stages that recompute
  std::vector<StageBytes> bytes_;                               // of peak()
  std::vector<bool> again_;
  std::optional<SimulatedTasks> tasks_;
  std::set<Cut> seen_;

  double best_;
  bool found_ = false, used_up_ = false;
  int simulations_ = 0;
  Cut cut_;
  std::vector<double> best_peaks_;
};

}  // namespace sluice::parallel
