#include "sluice/schedule/verify.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sluice/engine/bytes_in_words.h"
#include "sluice/schedule/device_peak.h"
#include "sluice/schedule/excerpt.h"

namespace sluice::parallel {
namespace {

[[noreturn]] void refuse(const Schedule& schedule, const std::string& why, SchedulePart part, int index = -1) {
  throw ScheduleError("schedule '" + excerpt(schedule.name, 40) + "' " + why, part, index);
}

/// `device`: in whose list the mistake is, or -1.
[[noreturn]] void refuse(const Schedule& schedule, const std::string& why, int device = -1) {
  refuse(schedule, why, device < 0 ? SchedulePart::whole : SchedulePart::list, device);
}

void check_sizes(const Schedule& schedule) {
  if (schedule.stages < 1 || schedule.microbatches < 1) {
    refuse(schedule, "needs at least 1 stage and 1 microbatch, not " + std::to_string(schedule.stages) + " and " +
                         std::to_string(schedule.microbatches));
  }
  if (schedule.per_device.empty()) refuse(schedule, "has no devices");
  // The lists must be as long as that too, so a larger product could only be a mistake; it must not overflow an int.
  if (schedule.microbatches > std::numeric_limits<int>::max() / kActionKinds / schedule.stages) {
    refuse(schedule, "has too many microbatches: " + std::to_string(schedule.microbatches));
  }
  if (!schedule.rings.empty() && schedule.rings.size() != static_cast<std::size_t>(schedule.stages)) {
    refuse(schedule,
           "has " + std::to_string(schedule.stages) + " stages, and rings are given for " +
               std::to_string(schedule.rings.size()),
           SchedulePart::rings);
  }
  for (const Rings& rings : schedule.rings) {
    if (rings.saved < 0 || rings.kept < 0) refuse(schedule, "has a ring with fewer than 0 slots", SchedulePart::rings);
  }
}

void check_known(const Schedule& schedule, const Action& action, int device) {
  if (row_of(action.kind).letter == '?') {
    refuse(schedule,
           "lists an action of unknown kind " + std::to_string(static_cast<int>(action.kind)) + " on device " +
               std::to_string(device),
           device);
  }
  if (action.stage < 0 || action.stage >= schedule.stages) {
    refuse(schedule, "lists " + to_text(action) + " but has only " + std::to_string(schedule.stages) + " stages",
           device);
  }
  const int microbatches = row_of(action.kind).of_stage ? 1 : schedule.microbatches;
  if (action.microbatch < 0 || action.microbatch >= microbatches) {
    refuse(schedule, "lists " + to_text(action) + " but has only " + std::to_string(microbatches) + " microbatches",
           device);
  }
}

/// Each microbatch of each stage has its forward pass, and one backward pass of one of the two forms. `owner`: each
/// stage's device.
void check_complete(const Schedule& schedule, const std::vector<bool>& seen, const std::vector<int>& owner) {
  using enum ActionKind;
  const auto has = [&](const Action& a) { return seen[static_cast<std::size_t>(index_of(schedule, a))]; };
  bool steps = false;
  for (int s = 0; s < schedule.stages; ++s) steps = steps || has({step, s, 0});
  for (int s = 0; s < schedule.stages; ++s) {
    const auto refuse_here = [&](const std::string& why) { refuse(schedule, why, owner[static_cast<std::size_t>(s)]); };
    for (int k = 0; k < schedule.microbatches; ++k) {
      const Action f{forward, s, k}, b{backward, s, k}, i{input_gradient, s, k}, w{weight_gradient, s, k};
      if (!has(f)) refuse_here("lacks " + to_text(f));
      for (const Action& half : {i, w}) {
        if (has(b) && has(half)) {
          refuse_here("does the backward pass twice: " + to_text(b) + " and " + to_text(half));
        }
      }
      if (!has(b) && !has(i) && !has(w)) refuse_here("lacks " + to_text(b));
      if (!has(b) && !has(i)) refuse_here("lacks " + to_text(i));
      if (!has(b) && !has(w)) refuse_here("never adds a gradient: it lacks " + to_text(w));
    }
    if (steps && !has({step, s, 0})) refuse_here("lacks " + to_text(Action{step, s, 0}));
  }
}

/// What stops a schedule that does not come to its end.
class Run {
 public:
  explicit Run(const Schedule& schedule)
      : schedule_(schedule), order_(schedule), done_(static_cast<std::size_t>(action_count(schedule))) {}

  void check_that_it_ends() {
    // How much each action still waits for, and who waits for it: from first[i] to first[i + 1] of `behind`.
    const auto count = static_cast<std::size_t>(action_count(schedule_));
    std::vector<int> lacks(count), ready;
    std::vector<std::size_t> first(count + 1);
    std::size_t left = 0;
    for (const auto& list : schedule_.per_device) {
      left += list.size();
      for (const Action& action : list) {
        const std::vector<Action> before = order_.waits_for(action);
        for (const Action& b : before) ++first[index(b)];
        lacks[index(action)] = static_cast<int>(before.size());
        if (before.empty()) ready.push_back(index_of(schedule_, action));
      }
    }
    std::partial_sum(first.begin(), first.end(), first.begin());
    std::vector<int> behind(first.back());
    for (const auto& list : schedule_.per_device) {
      for (const Action& action : list) {
        for (const Action& b : order_.waits_for(action)) behind[--first[index(b)]] = index_of(schedule_, action);
      }
    }
    while (!ready.empty()) {
      const auto over = static_cast<std::size_t>(ready.back());
      ready.pop_back();
      done_[over] = true;
      --left;
      for (std::size_t i = first[over]; i < first[over + 1]; ++i) {
        if (--lacks[static_cast<std::size_t>(behind[i])] == 0) ready.push_back(behind[i]);
      }
    }
    if (left == 0) return;
    const auto [begin, text] = cycle();
    refuse(schedule_, "cannot finish: " + text, order_.device(begin));
  }

 private:
  std::size_t index(const Action& a) const { return static_cast<std::size_t>(index_of(schedule_, a)); }

  /// The first of a device that is not done, in its list.
  const Action* head(int device) const {
    const auto& list = schedule_.per_device[static_cast<std::size_t>(device)];
    const auto at = std::ranges::find_if(list, [&](const Action& a) { return !done_[index(a)]; });
    return at == list.end() ? nullptr : &*at;
  }

  /// What keeps the action, which is not done, from starting; and why it does, in words.
  std::pair<Action, std::string> obstacle(const Action& action) const {
    for (const Action& needed : order_.needs(action)) {
      if (!done_[index(needed)]) return {needed, ""};
    }
    for (const Action& frees : order_.frees_slots_for(action)) {
      if (!done_[index(frees)]) return {frees, " (for its slot)"};
    }
    for (const Action& use : order_.tied_uses_for(action)) {
      if (!done_[index(use)]) return {use, " (a use of a tied weight)"};
    }
    for (const Action& before : order_.waits_for(action)) {
      if (!done_[index(before)]) return {before, ""};
    }
    return {action, ""};
  }

  /// Each action that is not done waits for another, so walking along must close a circle. In a fixed order the walk
  /// goes from one device's next action to another's. Returns the first of the circle, and the circle in words.
  std::pair<Action, std::string> cycle() const {
    Action at;
    for (int d = schedule_.devices() - 1; d >= 0; --d) {
      if (const Action* const first = head(d)) at = *first;
    }
    const auto next = [&](const Action& a) {
      const Action needed = obstacle(a).first;
      return schedule_.fixed_order ? *head(order_.device(needed)) : needed;
    };
    std::vector<bool> walked(done_.size());
    while (!walked[index(at)]) {
      walked[index(at)] = true;
      at = next(at);
    }
    const Action first = at;
    std::string text = to_text(first);
    do {
      const auto [needed, why] = obstacle(at);
      text += " waits for " + to_text(needed) + why;
      at = next(at);
      if (at != needed) {
        text += " waits for " + to_text(at) + " (earlier on device " + std::to_string(order_.device(at)) + ")";
      }
    } while (at != first);
    return {first, text};
  }

  const Schedule& schedule_;
  const Order order_;
  std::vector<bool> done_;
};

void check_sum(const Schedule& schedule) {
  try {
    check(schedule.sum, schedule.microbatches);
  } catch (const std::invalid_argument& e) {
    refuse(schedule, std::string("cannot add its gradients: ") + e.what(), SchedulePart::sum);
  }
  if (!schedule.fixed_order && !is_in_order(schedule.sum)) {
    refuse(schedule, "has a free order, which adds gradients in index order, and not by " + quoted(schedule.sum),
           SchedulePart::sum);
  }
}

/// The action that gives the gradients of the stage's weights, of its first microbatch.
std::string first_use(const Order& order, int stage) { return to_text(order.giver(Result::weight_gradient, stage, 0)); }

void check_tied(const Schedule& schedule) {
  const Order order(schedule);
  std::set<std::pair<std::string, int>> known;
  for (std::size_t t = 0; t < schedule.tied.size(); ++t) {
    const TiedWeight& tied = schedule.tied[t];
    const std::string name = "tied weight '" + excerpt(tied.name, 40) + "'";
    const auto refuse_here = [&](const std::string& why) {
      refuse(schedule, why, SchedulePart::tied, static_cast<int>(t));
    };
    if (tied.name.empty() || tied.name.find_first_of(" \t\r\n#") != std::string::npos) {
      refuse_here("has a " + name + ", and the name must be one word");
    }
    if (tied.stages.empty()) refuse_here("has a " + name + " without stages");
    for (std::size_t i = 0; i < tied.stages.size(); ++i) {
      const int here = tied.stages[i];
      if (here < 0 || here >= schedule.stages) {
        refuse_here("has a " + name + " in stage " + std::to_string(here) + ", but only " +
                    std::to_string(schedule.stages) + " stages");
      }
      if (i == 0 || here > tied.stages[i - 1]) continue;
      const auto before = tied.stages.begin() + static_cast<std::ptrdiff_t>(i);
      if (std::find(tied.stages.begin(), before, here) != before) {
        refuse_here("counts the gradient of the " + name + " twice: " + first_use(order, here));
      }
      refuse_here("adds the gradients of the " + name + " in the wrong order: " + first_use(order, tied.stages[i - 1]) +
                  " before " + first_use(order, here) + ", whose uses are earlier on the tape");
    }
    if (!known.emplace(tied.name, tied.stages.front()).second) {
      refuse_here("counts the gradient of the " + name + " twice: it is listed twice");
    }
    const int uses = static_cast<int>((tied.uses.postfix.size() + 1) / 2);
    try {
      check(tied.uses, uses, "use");
    } catch (const std::invalid_argument& e) {
      refuse_here("cannot add the gradients of the " + name + ": " + e.what());
    }
  }
}

void check_memory(const Schedule& schedule, const Memory& memory) {
  if (memory.devices.empty()) return;
  if (memory.devices.size() != schedule.per_device.size()) {
    refuse(schedule, "has " + std::to_string(schedule.devices()) + " devices, and memory is given for " +
                         std::to_string(memory.devices.size()));
  }
  const std::vector<PeakBytes> peaks = peak_bytes(schedule, memory.stages);
  for (std::size_t d = 0; d < peaks.size(); ++d) {
    if (has_room(memory.devices[d], peaks[d].bytes)) continue;
    refuse(schedule,
           "needs " + bytes_in_words(peaks[d].bytes) + " on device " + std::to_string(d) +
               (schedule.fixed_order ? " at " + to_text(peaks[d].at) : " in its worst order") +
               ", and the device has " + bytes_in_words(memory.devices[d]),
           static_cast<int>(d));
  }
}

/// The most that lie between actions that begin to hold and actions that free, in the stage's order.
int peak(const Schedule& schedule, int stage, Result held) {
  check_actions(schedule);
  if (stage < 0 || stage >= schedule.stages) {
    throw std::invalid_argument("schedule '" + schedule.name + "' has no stage " + std::to_string(stage));
  }
  const Order order(schedule);
  int now = 0, most = 0;
  for (const Action& a : schedule.per_device[static_cast<std::size_t>(order.device_of_stage(stage))]) {
    if (a.stage != stage || row_of(a.kind).of_stage) continue;
    if (order.giver(held, stage, a.microbatch) == a) most = std::max(most, ++now);
    if (row_of(a.kind).frees == held) --now;
  }
  return most;
}

}  // namespace

void check_actions(const Schedule& schedule) {
  check_sizes(schedule);
  std::vector<bool> seen(static_cast<std::size_t>(action_count(schedule)));
  std::vector<int> owner(static_cast<std::size_t>(schedule.stages), -1);
  for (int d = 0; d < schedule.devices(); ++d) {
    for (const Action& action : schedule.per_device[static_cast<std::size_t>(d)]) {
      check_known(schedule, action, d);
      int& of_stage = owner[static_cast<std::size_t>(action.stage)];
      if (of_stage >= 0 && of_stage != d) {
        refuse(schedule,
               "lists " + to_text(action) + " on device " + std::to_string(d) + ", and stage " +
                   std::to_string(action.stage) + " is on device " + std::to_string(of_stage),
               d);
      }
      of_stage = d;
      const auto index = static_cast<std::size_t>(index_of(schedule, action));
      if (seen[index]) refuse(schedule, "lists " + to_text(action) + " twice", d);
      seen[index] = true;
    }
  }
  check_complete(schedule, seen, owner);
  if (!schedule.tied.empty()) check_tied(schedule);
}

int peak_saved(const Schedule& schedule, int stage) { return peak(schedule, stage, Result::saved); }

int peak_kept(const Schedule& schedule, int stage) { return peak(schedule, stage, Result::kept); }

std::vector<PeakBytes> peak_bytes(const Schedule& schedule, std::span<const StageBytes> stages) {
  check_actions(schedule);
  check_sum(schedule);
  if (stages.size() != static_cast<std::size_t>(schedule.stages)) {
    refuse(schedule, "has " + std::to_string(schedule.stages) + " stages, and bytes are given for " +
                         std::to_string(stages.size()));
  }
  const Order order(schedule);
  std::vector<PeakBytes> peaks;
  std::vector<int> waiting(static_cast<std::size_t>(schedule.stages));  // of each stage's sums, but for the first
  std::vector<PartialSums> sums(static_cast<std::size_t>(schedule.stages), {schedule.sum, schedule.microbatches});
  for (const auto& list : schedule.per_device) {
    double held = 0, running = 0;
    std::vector<bool> counted(static_cast<std::size_t>(schedule.stages));
    for (const Action& a : list) {
      const auto s = static_cast<std::size_t>(a.stage);
      if (counted[s]) continue;
      counted[s] = true;
      held += stages[s].weights;
      if (schedule.fixed_order) continue;
      const FreeStage free = free_stage(schedule, order, a.stage);
      held += free.between(stages[s]);
      running = std::max(running, free.running(stages[s]) + stages[s].work);
    }
    PeakBytes peak{held + running, list.empty() ? Action{} : list.front()};
    if (!schedule.fixed_order) {
      peaks.push_back(peak);
      continue;
    }
    for (const Action& a : list) {
      const StageBytes& bytes = stages[static_cast<std::size_t>(a.stage)];
      // While it runs it holds both what it takes and what it gives.
      held += held_at_start(a.kind, bytes, order.recomputes(a.stage, a.microbatch));
      const double now = held + bytes.work;
      if (now > peak.bytes) peak = {now, a};
      held += held_at_end(a.kind, bytes);
      if (gives(a.kind, Result::weight_gradient)) {
        // The first sum is the gradient itself, which counts as weights.
        int& more = waiting[static_cast<std::size_t>(a.stage)];
        const int sets = sums[static_cast<std::size_t>(a.stage)].arrive(a.microbatch) - 1;
        held += (sets - std::exchange(more, sets)) * bytes.gradients;
        if (held > peak.bytes) peak = {held, a};
      }
    }
    peaks.push_back(peak);
  }
  return peaks;
}

void verify(const Schedule& schedule, const Memory& memory) {
  check_actions(schedule);
  check_sum(schedule);
  Run(schedule).check_that_it_ends();
  check_memory(schedule, memory);
}

}  // namespace sluice::parallel
