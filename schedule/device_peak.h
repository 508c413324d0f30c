// What a device holds at most (peak_bytes(), verify.h), for many stages' bytes: what does not depend on the bytes is
// counted once. For the planner's search, which asks for each cut.
#pragma once

#include <span>
#include <vector>

#include "sluice/schedule/action_lists.h"

namespace sluice::parallel {

/// Whether a device has room. Sums of fractions that are the same differ in their last bits by the order of their
/// terms.
inline bool has_room(double room, double bytes) { return bytes <= room * (1 + 1e-9); }

/// Of a stage in a free order: how far its rings let it run.
struct FreeStage {
  int begun = 0, saved = 0;  ///< microbatches
  bool splits = false, recomputes = false;

  double between(const StageBytes& bytes) const;  ///< held at most between two actions, without weights
  double running(const StageBytes& bytes) const;  ///< so much more while one of its actions runs, without `work`
};
FreeStage free_stage(const Schedule& schedule, const Order& order, int stage);

/// Immutable after its construction.
class DevicePeak {
 public:
  /// The device's list, as a schedule that passes check_actions() and has this one device.
  explicit DevicePeak(const Schedule& of_one_device);

  /// peak_bytes(of_one_device, stages).front().bytes up to rounding. A stage whose bytes are 0 counts nothing, so with
  /// some of the stages alone it is no more than with all.
  double most(std::span<const StageBytes> stages) const;

 private:
  /// How many of each the device holds, of one stage.
  struct Counts {
    float saved = 0, kept = 0, input = 0, both = 0, work = 0, gradients = 0;
    auto operator<=>(const Counts&) const = default;
  };
  using Moment = std::vector<Counts>;  // for each stage

  void add(const Moment& moment);
  static bool covers(const Moment& more, const Moment& less);

  std::size_t stages_;
  std::vector<Moment> moments_;  // until they are flat
  std::vector<Counts> flat_;
  std::vector<FreeStage> free_;
};

}  // namespace sluice::parallel
