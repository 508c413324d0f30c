#include "sluice/parallel/schedule.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

#include "sluice/parallel/verify.h"

namespace sluice::parallel {
namespace {

Schedule empty_schedule(std::string name, int stages, int microbatches) {
  if (stages < 1) {
    throw std::invalid_argument("schedule '" + name + "' needs at least 1 stage, not " + std::to_string(stages));
  }
  if (microbatches < 1) {
    throw std::invalid_argument("schedule '" + name + "' needs at least 1 microbatch, not " +
                                std::to_string(microbatches));
  }
  return {stages, microbatches, std::move(name), std::vector<std::vector<Action>>(static_cast<std::size_t>(stages))};
}

char letter_of(ActionKind kind) { return kind == ActionKind::forward ? 'F' : 'B'; }

}  // namespace

Schedule gpipe(int stages, int microbatches) {
  Schedule schedule = empty_schedule("gpipe", stages, microbatches);
  for (int s = 0; s < stages; ++s) {
    auto& lane = schedule.per_stage[static_cast<std::size_t>(s)];
    for (int k = 0; k < microbatches; ++k) lane.push_back({ActionKind::forward, s, k});
    for (int k = 0; k < microbatches; ++k) lane.push_back({ActionKind::backward, s, k});
  }
  return schedule;
}

Schedule one_f_one_b(int stages, int microbatches) {
  Schedule schedule = empty_schedule("1f1b", stages, microbatches);
  for (int s = 0; s < stages; ++s) {
    auto& lane = schedule.per_stage[static_cast<std::size_t>(s)];
    const int warm_up = std::min(stages - 1 - s, microbatches);
    for (int k = 0; k < warm_up; ++k) lane.push_back({ActionKind::forward, s, k});
    for (int k = warm_up; k < microbatches; ++k) {
      lane.push_back({ActionKind::forward, s, k});
      lane.push_back({ActionKind::backward, s, k - warm_up});
    }
    for (int k = microbatches - warm_up; k < microbatches; ++k) lane.push_back({ActionKind::backward, s, k});
  }
  return schedule;
}

Schedule make_schedule(std::string_view name, int stages, int microbatches) {
  if (name == "gpipe") return gpipe(stages, microbatches);
  if (name == "1f1b") return one_f_one_b(stages, microbatches);
  throw std::invalid_argument("unknown schedule '" + std::string(name) + "': known are gpipe, 1f1b");
}

int peak_activations(const Schedule& schedule, int stage) {
  if (stage < 0 || static_cast<std::size_t>(stage) >= schedule.per_stage.size()) {
    throw std::invalid_argument("schedule '" + schedule.name + "' has no stage " + std::to_string(stage));
  }
  int held = 0, peak = 0;
  for (const Action& action : schedule.per_stage[static_cast<std::size_t>(stage)]) {
    held += action.kind == ActionKind::forward ? 1 : -1;
    peak = std::max(peak, held);
  }
  return peak;
}

std::vector<Action> data_dependencies(const Schedule& schedule, const Action& action) {
  const auto [kind, s, k] = action;
  std::vector<Action> needed;
  if (kind == ActionKind::forward) {
    if (s > 0) needed.push_back({ActionKind::forward, s - 1, k});
  } else {
    if (s + 1 < schedule.stages) needed.push_back({ActionKind::backward, s + 1, k});
    needed.push_back({ActionKind::forward, s, k});
  }
  return needed;
}

int index_of(const Schedule& schedule, const Action& action) {
  return (static_cast<int>(action.kind) * schedule.stages + action.stage) * schedule.microbatches + action.microbatch;
}

int action_count(const Schedule& schedule) { return kActionKinds * schedule.stages * schedule.microbatches; }

std::vector<Action> program_order(const Schedule& schedule) {
  verify(schedule);
  const auto total = static_cast<std::size_t>(action_count(schedule));
  std::vector<Action> order;
  order.reserve(total);
  std::vector<bool> done(total);
  std::vector<std::size_t> next(schedule.per_stage.size());
  const auto is_done = [&](const Action& a) { return done[static_cast<std::size_t>(index_of(schedule, a))]; };
  while (order.size() < total) {
    const std::size_t step_begin = order.size();
    for (std::size_t s = 0; s < next.size(); ++s) {
      if (next[s] == schedule.per_stage[s].size()) continue;
      const Action& action = schedule.per_stage[s][next[s]];
      if (!std::ranges::all_of(data_dependencies(schedule, action), is_done)) continue;
      order.push_back(action);
      ++next[s];
    }
    // Only now do they count as done: within one time step no stage sees what another has just finished.
    for (std::size_t i = step_begin; i < order.size(); ++i) {
      done[static_cast<std::size_t>(index_of(schedule, order[i]))] = true;
    }
  }
  return order;
}

std::string to_text(const Action& action) {
  return std::string(1, letter_of(action.kind)) + "(" + std::to_string(action.stage) + "," +
         std::to_string(action.microbatch) + ")";
}

std::string to_text(const Schedule& schedule) {
  std::string text;
  for (std::size_t s = 0; s < schedule.per_stage.size(); ++s) {
    const auto& lane = schedule.per_stage[s];
    text.append("s").append(std::to_string(s));
    for (std::size_t i = 0; i < lane.size();) {
      std::size_t run = 1;
      while (i + run < lane.size() && lane[i + run].kind == lane[i].kind &&
             lane[i + run].microbatch == lane[i].microbatch + static_cast<int>(run)) {
        ++run;
      }
      if (run < 3) run = 1;
      text.append(" ").append(1, letter_of(lane[i].kind)).append(std::to_string(lane[i].microbatch));
      if (run > 1) text.append("-").append(std::to_string(lane[i + run - 1].microbatch));
      i += run;
    }
    text += "\n";
  }
  return text;
}

}  // namespace sluice::parallel
