#include "sluice/schedule/verify.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sluice/engine/bytes_in_words.h"

namespace sluice::parallel {
namespace {

[[noreturn]] void refuse(const Schedule& schedule, const std::string& why, int device = -1) {
  throw ScheduleError("schedule '" + schedule.name + "' " + why, device);
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
    refuse(schedule, "has " + std::to_string(schedule.stages) + " stages, and rings are given for " +
                         std::to_string(schedule.rings.size()));
  }
  for (const Rings& rings : schedule.rings) {
    if (rings.saved < 0 || rings.kept < 0) refuse(schedule, "has a ring with fewer than 0 slots");
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
    // How much each action still waits for, and who waits for it.
    const auto count = static_cast<std::size_t>(action_count(schedule_));
    std::vector<int> lacks(count);
    std::vector<std::vector<Action>> behind(count);
    std::vector<Action> ready;
    std::size_t left = 0;
    for (const auto& list : schedule_.per_device) {
      for (const Action& action : list) {
        const std::vector<Action> before = order_.waits_for(action);
        for (const Action& b : before) behind[index(b)].push_back(action);
        lacks[index(action)] = static_cast<int>(before.size());
        if (before.empty()) ready.push_back(action);
        ++left;
      }
    }
    while (!ready.empty()) {
      const Action action = ready.back();
      ready.pop_back();
      done_[index(action)] = true;
      --left;
      for (const Action& next : behind[index(action)]) {
        if (--lacks[index(next)] == 0) ready.push_back(next);
      }
    }
    if (left == 0) return;
    const auto [first, text] = cycle();
    refuse(schedule_, "cannot finish: " + text, order_.device(first));
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
    std::vector<Action> walked;
    while (std::ranges::find(walked, at) == walked.end()) {
      walked.push_back(at);
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
    refuse(schedule, std::string("cannot add its gradients: ") + e.what());
  }
  if (!schedule.fixed_order && !is_in_order(schedule.sum)) {
    refuse(schedule, "has a free order, which adds gradients in index order, and not by " + to_text(schedule.sum));
  }
}

/// The action that gives the gradients of the stage's weights, of its first microbatch.
std::string first_use(const Order& order, int stage) { return to_text(order.giver(Result::weight_gradient, stage, 0)); }

void check_tied(const Schedule& schedule) {
  const Order order(schedule);
  std::set<std::pair<std::string, int>> known;
  for (const TiedWeight& tied : schedule.tied) {
    const std::string name = "tied weight '" + tied.name + "'";
    if (tied.name.empty() || tied.name.find_first_of(" \t\r\n#") != std::string::npos) {
      refuse(schedule, "has a " + name + ", and the name must be one word");
    }
    if (tied.stages.empty()) refuse(schedule, "has a " + name + " without stages");
    for (std::size_t i = 0; i < tied.stages.size(); ++i) {
      const int here = tied.stages[i];
      if (here < 0 || here >= schedule.stages) {
        refuse(schedule, "has a " + name + " in stage " + std::to_string(here) + ", but only " +
                             std::to_string(schedule.stages) + " stages");
      }
      const auto before = tied.stages.begin() + static_cast<std::ptrdiff_t>(i);
      if (std::find(tied.stages.begin(), before, here) != before) {
        refuse(schedule, "counts the gradient of the " + name + " twice: " + first_use(order, here));
      }
      if (i > 0 && here < tied.stages[i - 1]) {
        refuse(schedule, "adds the gradients of the " + name +
                             " in the wrong order: " + first_use(order, tied.stages[i - 1]) + " before " +
                             first_use(order, here) + ", whose uses are earlier on the tape");
      }
    }
    if (!known.emplace(tied.name, tied.stages.front()).second) {
      refuse(schedule, "counts the gradient of the " + name + " twice: it is listed twice");
    }
    const int uses = static_cast<int>((tied.uses.postfix.size() + 1) / 2);
    try {
      check(tied.uses, uses, "use");
    } catch (const std::invalid_argument& e) {
      refuse(schedule, "cannot add the gradients of the " + name + ": " + e.what());
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
    if (peaks[d].bytes <= memory.devices[d]) continue;
    refuse(schedule,
           "needs " + bytes_in_words(peaks[d].bytes) + " on device " + std::to_string(d) +
               (schedule.fixed_order ? " at " + to_text(peaks[d].at) : " in its worst order") +
               ", and the device has " + bytes_in_words(memory.devices[d]),
           static_cast<int>(d));
  }
}

/// What a stage holds at most in any order that its rings allow.
struct InAnyOrder {
  double between = 0;  ///< between two actions
  double running = 0;  ///< so much more while one of its actions runs
};

InAnyOrder most_in_any_order(const Schedule& schedule, const Order& order, int stage, const StageBytes& bytes) {
  const Rings rings = schedule.rings.empty() ? Rings{} : schedule.rings[static_cast<std::size_t>(stage)];
  const auto slots = [&](int ring) { return ring > 0 ? std::min(ring, schedule.microbatches) : schedule.microbatches; };
  const int begun = slots(rings.kept), saved = std::min(slots(rings.saved), begun);
  bool splits = false, recomputes = false;
  for (int k = 0; k < schedule.microbatches; ++k) {
    splits = splits || order.giver(Result::kept, stage, k).microbatch == k;
    recomputes = recomputes || order.recomputes(stage, k);
  }
  // All slots of the first ring are full, and the others wait for W; or all wait for W.
  const double first = recomputes ? std::max(bytes.input, bytes.saved) : bytes.saved;
  const double kept = splits ? bytes.kept : 0;
  return {.between = std::max(saved * first + (begun - saved) * kept, begun * kept),
          .running = std::max(splits ? std::min(bytes.saved, kept) - bytes.both : 0,
                              recomputes ? std::min(bytes.input, bytes.saved) : 0)};
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
      const InAnyOrder most = most_in_any_order(schedule, order, a.stage, stages[s]);
      held += most.between;
      running = std::max(running, most.running + stages[s].work);
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
