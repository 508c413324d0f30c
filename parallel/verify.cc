#include "sluice/parallel/verify.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace sluice::parallel {
namespace {

[[noreturn]] void refuse(const Schedule& schedule, const std::string& why) {
  throw std::invalid_argument("schedule '" + schedule.name + "' " + why);
}

void check_sizes(const Schedule& schedule) {
  if (schedule.stages < 1 || schedule.microbatches < 1) {
    refuse(schedule, "needs at least 1 stage and 1 microbatch, not " + std::to_string(schedule.stages) + " and " +
                         std::to_string(schedule.microbatches));
  }
  if (schedule.per_stage.size() != static_cast<std::size_t>(schedule.stages)) {
    refuse(schedule, "lists actions for " + std::to_string(schedule.per_stage.size()) + " stages, not " +
                         std::to_string(schedule.stages));
  }
  // The list must be as long as that too, so a larger product could only be a mistake; it must not overflow an int.
  if (schedule.microbatches > std::numeric_limits<int>::max() / kActionKinds / schedule.stages) {
    refuse(schedule, "has too many microbatches: " + std::to_string(schedule.microbatches));
  }
}

void check_each_action_once(const Schedule& schedule) {
  std::vector<bool> seen(static_cast<std::size_t>(action_count(schedule)));
  for (int s = 0; s < schedule.stages; ++s) {
    for (const Action& action : schedule.per_stage[static_cast<std::size_t>(s)]) {
      if (action.stage != s) refuse(schedule, "lists " + to_text(action) + " on stage " + std::to_string(s));
      const int kind = static_cast<int>(action.kind);
      if (kind < 0 || kind >= kActionKinds) {
        refuse(schedule, "lists an action of unknown kind " + std::to_string(kind) + " on stage " + std::to_string(s));
      }
      if (action.microbatch < 0 || action.microbatch >= schedule.microbatches) {
        refuse(schedule,
               "lists " + to_text(action) + " but has only " + std::to_string(schedule.microbatches) + " microbatches");
      }
      const auto index = static_cast<std::size_t>(index_of(schedule, action));
      if (seen[index]) refuse(schedule, "lists " + to_text(action) + " twice");
      seen[index] = true;
    }
  }
  for (int s = 0; s < schedule.stages; ++s) {
    for (int k = 0; k < schedule.microbatches; ++k) {
      for (const ActionKind kind : {ActionKind::forward, ActionKind::backward}) {
        const Action action{kind, s, k};
        if (!seen[static_cast<std::size_t>(index_of(schedule, action))]) refuse(schedule, "lacks " + to_text(action));
      }
    }
  }
}

// Runs the schedule with nothing but its dependencies. Where no stage can go on, each unfinished stage's next action
// waits for one that another stage (or its own) has not reached, so walking along the waits must close a cycle.
class Run {
 public:
  explicit Run(const Schedule& schedule)
      : schedule_(schedule),
        done_(static_cast<std::size_t>(action_count(schedule))),
        next_(static_cast<std::size_t>(schedule.stages)) {}

  void check_that_it_ends() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int s = 0; s < schedule_.stages; ++s) {
        while (head(s) && !missing(*head(s))) {
          done_[static_cast<std::size_t>(index_of(schedule_, *head(s)))] = true;
          ++next_[static_cast<std::size_t>(s)];
          moved = true;
        }
      }
    }
    for (int s = 0; s < schedule_.stages; ++s) {
      if (head(s)) refuse(schedule_, "cannot finish: " + cycle_from(s));
    }
  }

 private:
  const Action* head(int stage) const {
    const auto s = static_cast<std::size_t>(stage);
    return next_[s] < schedule_.per_stage[s].size() ? &schedule_.per_stage[s][next_[s]] : nullptr;
  }

  std::optional<Action> missing(const Action& action) const {
    for (const Action& needed : data_dependencies(schedule_, action)) {
      if (!done_[static_cast<std::size_t>(index_of(schedule_, needed))]) return needed;
    }
    return std::nullopt;
  }

  std::string cycle_from(int stage) const {
    std::vector<int> walked;
    while (std::ranges::find(walked, stage) == walked.end()) {
      walked.push_back(stage);
      stage = missing(*head(stage))->stage;
    }
    const int first = stage;
    std::string text = to_text(*head(first));
    do {
      const Action needed = *missing(*head(stage));
      text += " waits for " + to_text(needed);
      stage = needed.stage;
      if (*head(stage) != needed) {
        text += " waits for " + to_text(*head(stage)) + " (earlier on stage " + std::to_string(stage) + ")";
      }
    } while (stage != first);
    return text;
  }

  const Schedule& schedule_;
  std::vector<bool> done_;
  std::vector<std::size_t> next_;
};

void check_activations(const Schedule& schedule, std::span<const int> max_activations) {
  if (max_activations.empty()) return;
  if (max_activations.size() != static_cast<std::size_t>(schedule.stages)) {
    refuse(schedule, "has " + std::to_string(schedule.stages) + " stages, but activation limits are given for " +
                         std::to_string(max_activations.size()));
  }
  for (int s = 0; s < schedule.stages; ++s) {
    const int peak = peak_activations(schedule, s), limit = max_activations[static_cast<std::size_t>(s)];
    if (peak > limit) {
      refuse(schedule, "holds " + std::to_string(peak) + " activations at once on stage " + std::to_string(s) +
                           ", over its limit of " + std::to_string(limit));
    }
  }
}

}  // namespace

void verify(const Schedule& schedule, std::span<const int> max_activations) {
  check_sizes(schedule);
  check_each_action_once(schedule);
  Run(schedule).check_that_it_ends();
  check_activations(schedule, max_activations);
}

}  // namespace sluice::parallel
