#include "sluice/schedule/action_lists.h"

#include <algorithm>

#include <cstddef>

namespace sluice::parallel {

int index_of(const Schedule& schedule, const Action& action) {
  return (static_cast<int>(action.kind) * schedule.stages + action.stage) * schedule.microbatches + action.microbatch;
}

int action_count(const Schedule& schedule) { return kActionKinds * schedule.stages * schedule.microbatches; }

Order::Order(const Schedule& schedule)
    : schedule_(schedule),
      at_(static_cast<std::size_t>(action_count(schedule))),
      device_of_stage_(static_cast<std::size_t>(schedule.stages), -1) {
  for (int d = 0; d < schedule.devices(); ++d) {
    int place = 0;
    for (const Action& action : schedule.per_device[static_cast<std::size_t>(d)]) {
      at_[static_cast<std::size_t>(index_of(schedule, action))] = {d, place++};
      device_of_stage_[static_cast<std::size_t>(action.stage)] = d;
    }
  }
  for (std::size_t i = 0; i < schedule.tied.size(); ++i) {
    if (!schedule.tied[i].stages.empty()) tied_.emplace_back(schedule.tied[i].stages.front(), i);
  }
  std::ranges::sort(tied_);
}

Action Order::giver(Result result, int stage, int microbatch) const {
  // From the last kind on: what is recomputed is not taken from F.
  for (int kind = kActionKinds - 1; kind >= 0; --kind) {
    const Action action{static_cast<ActionKind>(kind), stage, microbatch};
    if (gives(action.kind, result) && has(action)) return action;
  }
  return {ActionKind::forward, stage, -1};
}

std::vector<Action> Order::needs(const Action& action) const {
  std::vector<Action> needed;
  for (const Need& need : row_of(action.kind).needed()) {
    const int stage = action.stage + need.stage;
    if (stage < 0 || stage >= schedule_.stages) continue;
    const int first = need.every_microbatch ? 0 : action.microbatch;
    const int end = need.every_microbatch ? schedule_.microbatches : action.microbatch + 1;
    for (int k = first; k < end; ++k) needed.push_back(giver(need.result, stage, k));
  }
  return needed;
}

std::vector<Action> Order::frees_slots_for(const Action& action) const {
  std::vector<Action> before;
  if (!gives(action.kind, Result::output)) return before;
  const auto ring = [&](int slots, Result freed) {
    if (slots > 0 && action.microbatch >= slots)
      before.push_back(giver(freed, action.stage, action.microbatch - slots));
  };
  if (schedule_.rings.empty()) return before;
  const Rings& rings = schedule_.rings[static_cast<std::size_t>(action.stage)];
  ring(rings.saved, Result::input_gradient);
  ring(rings.kept, Result::weight_gradient);
  return before;
}

std::vector<Action> Order::tied_uses_for(const Action& action) const {
  std::vector<Action> uses;
  if (!row_of(action.kind).of_stage) return uses;
  const auto owned = std::ranges::equal_range(tied_, action.stage, {}, &std::pair<int, std::size_t>::first);
  std::size_t count = 0;
  for (const auto& [owner, place] : owned) {
    count += (schedule_.tied[place].stages.size() - 1) * static_cast<std::size_t>(schedule_.microbatches);
  }
  uses.reserve(count);
  for (const auto& [owner, place] : owned) {
    const TiedWeight& tied = schedule_.tied[place];
    for (std::size_t i = 1; i < tied.stages.size(); ++i) {
      for (int k = 0; k < schedule_.microbatches; ++k) {
        uses.push_back(giver(Result::weight_gradient, tied.stages[i], k));
      }
    }
  }
  return uses;
}

std::vector<Action> Order::waits_for(const Action& action) const {
  std::vector<Action> before = needs(action);
  const std::vector<Action> slots = frees_slots_for(action);
  before.insert(before.end(), slots.begin(), slots.end());
  const std::vector<Action> uses = tied_uses_for(action);
  before.insert(before.end(), uses.begin(), uses.end());
  const int place = this->place(action);
  if (schedule_.fixed_order && place > 0) {
    const auto& list = schedule_.per_device[static_cast<std::size_t>(device(action))];
    before.push_back(list[static_cast<std::size_t>(place) - 1]);
  }
  // Whatever else is free, gradients are added in index order, and none waits beside the sum.
  if (!schedule_.fixed_order && action.microbatch > 0 && gives(action.kind, Result::weight_gradient)) {
    before.push_back(giver(Result::weight_gradient, action.stage, action.microbatch - 1));
  }
  return before;
}

}  // namespace sluice::parallel
