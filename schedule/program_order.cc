#include "sluice/schedule/program_order.h"

#include <cstddef>
#include <set>

#include "sluice/schedule/verify.h"

namespace sluice::parallel {

std::vector<Action> program_order(const Schedule& schedule) {
  verify(schedule);
  const Order order(schedule);
  const auto index = [&](const Action& a) { return static_cast<std::size_t>(index_of(schedule, a)); };
  const auto count = static_cast<std::size_t>(action_count(schedule));
  std::vector<int> lacks(count);  // how much each action still waits for
  std::vector<std::vector<Action>> behind(count);
  std::vector<std::set<int>> ready(schedule.per_device.size());  // places in each device's list
  for (const auto& list : schedule.per_device) {
    for (const Action& a : list) {
      const std::vector<Action> before = order.waits_for(a);
      for (const Action& b : before) behind[index(b)].push_back(a);
      lacks[index(a)] = static_cast<int>(before.size());
      if (before.empty()) ready[static_cast<std::size_t>(order.device(a))].insert(order.place(a));
    }
  }
  std::vector<Action> sequence;
  for (std::size_t step_begin = 0;; step_begin = sequence.size()) {
    for (std::size_t d = 0; d < ready.size(); ++d) {
      if (ready[d].empty()) continue;
      const auto first = ready[d].begin();
      sequence.push_back(schedule.per_device[d][static_cast<std::size_t>(*first)]);
      ready[d].erase(first);
    }
    if (sequence.size() == step_begin) return sequence;  // verify() has shown that nothing is left
    // Only now are they over: within one time step no device sees what another has just finished.
    for (std::size_t i = step_begin; i < sequence.size(); ++i) {
      for (const Action& next : behind[index(sequence[i])]) {
        if (--lacks[index(next)] == 0) ready[static_cast<std::size_t>(order.device(next))].insert(order.place(next));
      }
    }
  }
}

}  // namespace sluice::parallel
