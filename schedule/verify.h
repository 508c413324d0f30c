// The prover: refuses a schedule that leaves work out, does it twice, can stop before its end, adds gradients in a way
// that is no sum, or does not fit into memory. What it accepts runs to its end on every machine, at every speed.
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "sluice/schedule/action_lists.h"

namespace sluice::parallel {

/// What stages hold, and what devices have: see peak_bytes(). No devices: memory is not looked at.
struct Memory {
  std::vector<StageBytes> stages;  ///< one for each stage
  std::vector<double> devices;     ///< bytes, one for each device of the schedule
};

/// The part of a schedule that a mistake is in.
enum class SchedulePart { whole, list, sum, rings, tied };

/// Why a schedule is refused.
class ScheduleError : public std::invalid_argument {
 public:
  explicit ScheduleError(const std::string& why, SchedulePart part = SchedulePart::whole, int index = -1)
      : std::invalid_argument(why), part_(part), index_(index) {}
  SchedulePart part() const { return part_; }
  /// In whose list the mistake is: of a cycle, the device of its first action. -1: in none.
  int device() const { return part_ == SchedulePart::list ? index_ : -1; }
  /// In which of the tied weights the mistake is. -1: in none.
  int tied() const { return part_ == SchedulePart::tied ? index_ : -1; }

 private:
  SchedulePart part_;
  int index_;
};

/// Returns if the schedule can run to its end, else throws ScheduleError with one line that names the action, the cycle
/// or the device:
///     schedule 'x' cannot finish: B(0,0) waits for B(1,0) waits for F(1,1) (earlier on device 1) waits for ...
///     schedule 'x' needs 4.2 GiB on device 1 at F(1,5), and the device has 4 GiB
/// - Each stage belongs to one device, and has an F of every microbatch exactly once, with either a B, or an I and a W;
///   perhaps an R; and, on all stages or none, one U.
/// - What actions wait for (Order::waits_for) has no cycle. In a fixed order each device's list counts as well. In a
///   free order nothing does but results, slots and the order of sums: so *every* order in which devices take what is
///   ready comes to its end.
/// - The sum counts each microbatch exactly once; a free order sums in index order. A tied weight's stages are those of
///   the tape's order, each once, and its tree counts each use once:
///     schedule 'x' adds the gradients of the tied weight 'head' in the wrong order: W(3,0) before B(0,0), whose uses
///     are earlier on the tape
/// - No device needs more memory than it has. What a tied weight's owner holds is not counted here: gradients of uses
///   that wait for those of another stage.
/// Pure and thread-safe. The time grows with the number of actions.
void verify(const Schedule& schedule, const Memory& memory = {});

/// The first part of verify(): the lists and tied weights alone, action by action.
void check_actions(const Schedule& schedule);

/// How many microbatches' `saved` values the stage holds at most at once, and how many are `kept`, in the listed order.
/// Throws std::invalid_argument if the schedule has no such stage.
int peak_saved(const Schedule& schedule, int stage);
int peak_kept(const Schedule& schedule, int stage);

/// When a device holds most: its bytes, and the action that starts then.
struct PeakBytes {
  double bytes = 0;
  Action at;
};

/// For each device the most that its stages hold at once, by the table of action kinds (action.h): in a fixed order
/// exactly, from the lists; in a free order the most that the rings let any order hold in which a device runs one
/// action at a time, and then `at` is the device's first action. Throws std::invalid_argument for another number of
/// stages, and as check_actions() does.
std::vector<PeakBytes> peak_bytes(const Schedule& schedule, std::span<const StageBytes> stages);

}  // namespace sluice::parallel
