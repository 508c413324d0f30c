#include "sluice/schedule/generators.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <stdexcept>
#include <utility>

namespace sluice::parallel {
namespace {

using enum ActionKind;
using List = std::vector<Action>;

[[noreturn]] void refuse(const Schedule& schedule, const std::string& why) {
  throw std::invalid_argument("schedule '" + schedule.name + "' needs " + why);
}

/// Without actions. `stages_of_a_device` of the stages share a device.
Schedule empty_schedule(std::string name, int stages, int microbatches, int stages_of_a_device = 1) {
  Schedule schedule;
  schedule.stages = stages;
  schedule.microbatches = microbatches;
  schedule.name = std::move(name);
  if (stages < 1) refuse(schedule, "at least 1 stage, not " + std::to_string(stages));
  if (microbatches < 1) refuse(schedule, "at least 1 microbatch, not " + std::to_string(microbatches));
  constexpr std::int64_t most = std::int64_t{1} << 24;  // beyond it the lists of actions take gigabytes
  if (static_cast<std::int64_t>(stages) * microbatches > most) {
    refuse(schedule, "at most 2^24 microbatches of stages, not " + std::to_string(microbatches) + " of " +
                         std::to_string(stages));
  }
  if (stages % stages_of_a_device != 0) {
    refuse(schedule, "a multiple of " + std::to_string(stages_of_a_device) + " stages, not " + std::to_string(stages));
  }
  schedule.per_device.resize(static_cast<std::size_t>(stages / stages_of_a_device));
  return schedule;
}

void add(List& list, ActionKind kind, int stage, int begin, int end) {
  for (int k = begin; k < end; ++k) list.push_back({kind, stage, k});
}

/// So many forwards, then a backward and a forward in turns, then what is left.
List one_by_one(int stage, int microbatches, int ahead) {
  const int m = microbatches, warm_up = std::min(ahead, m);
  List list;
  add(list, forward, stage, 0, warm_up);
  for (int k = 0; k < m; ++k) {
    list.push_back({backward, stage, k});
    add(list, forward, stage, warm_up + k, std::min(warm_up + k + 1, m));
  }
  return list;
}

/// Each B of the list becomes I, with the W of `lag` microbatches before behind it; the last `lag` end the list.
List halved(const List& list, int lag) {
  List halves;
  int last = -1, stage = 0;
  for (Action action : list) {
    if (action.kind != backward) {
      halves.push_back(action);
      continue;
    }
    last = action.microbatch;
    stage = action.stage;
    action.kind = input_gradient;
    halves.push_back(action);
    if (last >= lag) halves.push_back({weight_gradient, stage, last - lag});
  }
  add(halves, weight_gradient, stage, std::max(0, last + 1 - lag), last + 1);
  return halves;
}

/// Schedules with one stage a device, from each device's list.
template <class MakeList>
Schedule stage_by_stage(std::string name, int stages, int microbatches, MakeList list) {
  Schedule schedule = empty_schedule(std::move(name), stages, microbatches);
  for (int i = 0; i < stages; ++i) schedule.per_device[static_cast<std::size_t>(i)] = list(i);
  return schedule;
}

Schedule make_interleaved(int chunks, int stages, int microbatches) {
  const std::string name = "interleaved:" + std::to_string(chunks);
  if (chunks < 1) throw std::invalid_argument("schedule '" + name + "' needs at least 1 chunk");
  if (chunks == 1) {
    Schedule schedule = one_f_one_b(stages, microbatches);
    schedule.name = name;
    return schedule;
  }
  Schedule schedule = empty_schedule(name, stages, microbatches, chunks);
  const int p = schedule.devices(), m = microbatches, all = m * chunks;
  if (m % p != 0) {
    refuse(schedule, "a multiple of its " + std::to_string(p) + " devices as microbatches, not " + std::to_string(m));
  }
  for (int i = 0; i < p; ++i) {
    // The n-th of a device's passes: groups of p microbatches go through its chunks one after the other.
    const auto nth = [&](ActionKind kind, int n) {
      const int chunk = n % (p * chunks) / p;
      const int of_kind = kind == forward ? chunk : chunks - 1 - chunk;
      return Action{kind, of_kind * p + i, n / (p * chunks) * p + n % p};
    };
    List& list = schedule.per_device[static_cast<std::size_t>(i)];
    const int warm_up = std::min(2 * (p - 1 - i) + (chunks - 1) * p, all);
    for (int n = 0; n < all + warm_up; ++n) {
      if (n < all) list.push_back(nth(forward, n));
      if (n >= warm_up) list.push_back(nth(backward, n - warm_up));
    }
  }
  return schedule;
}

/// A device's list of ZBV: the n-th action of a kind on one of its two stages is that of microbatch n.
class VList {
 public:
  VList(int down, int up) : stages_{down, up} {}

  /// One round of a pattern: pairs of a kind's letter and 0 for the device's stage on the way down, 1 on the way up.
  void add(std::string_view pattern) {
    for (std::size_t i = 0; i < pattern.size(); i += 2) {
      const ActionKind kind = pattern[i] == 'F' ? forward : pattern[i] == 'I' ? input_gradient : weight_gradient;
      const std::size_t way = pattern[i + 1] == '0' ? 0 : 1;
      list_.push_back({kind, stages_[way], count(kind, way)++});
    }
  }
  void add(int rounds, std::string_view pattern) {
    for (int i = 0; i < rounds; ++i) add(pattern);
  }
  int& count(ActionKind kind, std::size_t way) { return counts_[static_cast<std::size_t>(kind)][way]; }

  List of(int microbatches) && {
    std::erase_if(list_, [&](const Action& a) { return a.microbatch >= microbatches; });
    return std::move(list_);
  }

 private:
  std::array<int, 2> stages_;
  std::array<std::array<int, 2>, kActionKinds> counts_{};
  List list_;
};

Schedule make_zbv(std::string name, int stages, int microbatches) {
  Schedule schedule = empty_schedule(std::move(name), stages, microbatches, 2);
  const int p = schedule.devices();
  // Where there are fewer microbatches than the pattern needs to fill, it is cut down to those that there are.
  const int m = std::max(2 * p - 1, microbatches);
  for (int i = 0; i < p; ++i) {
    VList list(i, stages - 1 - i);
    list.add(2 * (p - i) - 1, "F0");
    list.add(i, "F1F0");
    list.add(p - i, "F1I1W1");
    while (list.count(forward, 1) < list.count(forward, 0) || list.count(forward, 0) < m) {
      if (list.count(forward, 0) < m) list.add("F0");
      list.add("I0W0F1I1W1");
    }
    list.add(i, "I0I1");
    list.add(p - i, "I0W0");
    list.add(m - list.count(weight_gradient, 1), "W1");
    list.add(m - list.count(weight_gradient, 0), "W0");
    schedule.per_device[static_cast<std::size_t>(i)] = std::move(list).of(microbatches);
  }
  return schedule;
}

/// The number behind the colon or the comma of a name.
int number_in(std::string_view name, std::string_view digits) {
  int number = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) {
    throw std::invalid_argument("schedule '" + std::string(name) + "': '" + std::string(digits) + "' is no number");
  }
  return number;
}

Schedule make_dynamic(Rings rings, int stages, int microbatches) {
  const int p = stages;
  if (rings.saved <= 0) rings.saved = p;
  if (rings.kept <= 0) rings.kept = 2 * p - 1;
  // From one device to the next, warm-ups grow by 1 forward where there are p slots, by 2 where there are 2p - 1, and
  // by 1 or 2 in between.
  const int most = std::min(rings.kept, 2 * p - 1) - 1;
  const auto of_slots = [&](int i) { return p == 1 ? 0 : (2 * i * most + p - 1) / (2 * (p - 1)); };
  Schedule schedule = stage_by_stage("dynamic", stages, microbatches, [&](int i) {
    return halved(one_by_one(i, microbatches, 1 + of_slots(p - 1 - i)), of_slots(i));
  });
  schedule = in_free_order(std::move(schedule), std::vector(static_cast<std::size_t>(stages), rings));
  schedule.name = "dynamic";
  return schedule;
}

Schedule make_dynamic_v(const Rings& of_device, int stages, int microbatches) {
  Schedule schedule = make_zbv("dynamic-v", stages, microbatches);
  const int p = schedule.devices();
  const auto share = [&](int slots, int stage) {
    if (slots <= 0) slots = 2 * p;
    if (slots < 2) refuse(schedule, "at least 2 slots on a device, not 1");
    const int device = std::min(stage, stages - 1 - stage);
    const int later = std::clamp(((device + 1) * slots + p) / (2 * p), 1, slots - 1);
    return stage < p ? slots - later : later;
  };
  std::vector<Rings> rings;
  for (int s = 0; s < stages; ++s) rings.push_back({share(of_device.saved, s), share(of_device.kept, s)});
  schedule = in_free_order(std::move(schedule), std::move(rings));
  schedule.name = "dynamic-v";
  return schedule;
}

}  // namespace

Schedule gpipe(int stages, int microbatches) {
  return stage_by_stage("gpipe", stages, microbatches,
                        [&](int i) { return one_by_one(i, microbatches, microbatches); });
}

Schedule one_f_one_b(int stages, int microbatches) {
  return stage_by_stage("1f1b", stages, microbatches, [&](int i) { return one_by_one(i, microbatches, stages - i); });
}

Generator interleaved(int chunks) {
  return [chunks](int stages, int microbatches) { return make_interleaved(chunks, stages, microbatches); };
}

Schedule zb_h1(int stages, int microbatches) {
  return stage_by_stage("zb-h1", stages, microbatches,
                        [&](int i) { return halved(one_by_one(i, microbatches, stages - i), i); });
}

Schedule zb_h2(int stages, int microbatches) {
  return stage_by_stage("zb-h2", stages, microbatches,
                        [&](int i) { return halved(one_by_one(i, microbatches, 2 * (stages - 1 - i) + 1), 2 * i); });
}

Schedule zbv(int stages, int microbatches) { return make_zbv("zbv", stages, microbatches); }

Schedule in_free_order(Schedule schedule, std::vector<Rings> rings) {
  if (rings.size() != static_cast<std::size_t>(schedule.stages)) {
    refuse(schedule, "a pair of rings for each of its " + std::to_string(schedule.stages) + " stages, not " +
                         std::to_string(rings.size()));
  }
  schedule.name = "free " + schedule.name;
  schedule.fixed_order = false;
  schedule.rings = std::move(rings);
  return schedule;
}

Generator dynamic(Rings rings) {
  return [rings](int stages, int microbatches) { return make_dynamic(rings, stages, microbatches); };
}

Generator dynamic_v(Rings of_device) {
  return [of_device](int stages, int microbatches) { return make_dynamic_v(of_device, stages, microbatches); };
}

Schedule with_recompute(Schedule schedule, const std::vector<bool>& stages) {
  if (stages.size() != static_cast<std::size_t>(schedule.stages)) {
    throw std::invalid_argument("schedule '" + schedule.name + "' has " + std::to_string(schedule.stages) +
                                " stages, and " + std::to_string(stages.size()) + " marks say which recompute");
  }
  for (auto& list : schedule.per_device) {
    std::vector<Action> more;
    for (const Action& a : list) {
      if (row_of(a.kind).frees == Result::saved && stages[static_cast<std::size_t>(a.stage)]) {
        more.push_back({ActionKind::recompute, a.stage, a.microbatch});
      }
      more.push_back(a);
    }
    list = std::move(more);
  }
  return schedule;
}

Schedule with_updates(Schedule schedule) {
  const Order order(schedule);
  for (int s = 0; s < schedule.stages; ++s) {
    schedule.per_device[static_cast<std::size_t>(order.device_of_stage(s))].push_back({ActionKind::step, s, 0});
  }
  return schedule;
}

Schedule chained(const Schedule& step, int steps) {
  if (steps == 1) return step;
  if (!step.fixed_order) throw std::invalid_argument("schedule '" + step.name + "' has a free order: it has no chain");
  Schedule all = step;
  all.microbatches *= steps;
  all.sum = {};
  for (auto& list : all.per_device) {
    const std::vector<Action> once = list;
    for (int i = 1; i < steps; ++i) {
      for (Action a : once) {
        a.microbatch += i * step.microbatches;
        list.push_back(a);
      }
    }
  }
  return all;
}

std::string known_schedules() {
  return "gpipe, 1f1b, interleaved:CHUNKS, zb-h1, zb-h2, zbv, dynamic, dynamic:SAVED,KEPT, dynamic-v, "
         "dynamic-v:SAVED,KEPT";
}

Generator generator(std::string_view name) {
  const std::string_view head = name.substr(0, name.find(':'));
  const bool bare = head.size() == name.size();
  const std::string_view options = bare ? std::string_view() : name.substr(head.size() + 1);
  if (bare && head == "gpipe") return gpipe;
  if (bare && head == "1f1b") return one_f_one_b;
  if (bare && head == "zb-h1") return zb_h1;
  if (bare && head == "zb-h2") return zb_h2;
  if (bare && head == "zbv") return zbv;
  if (bare && head == "dynamic") return dynamic();
  if (!bare && head == "interleaved") return interleaved(number_in(name, options));
  if (bare && head == "dynamic-v") return dynamic_v();
  if (const auto comma = options.find(','); comma != std::string_view::npos) {
    const auto rings = [&] {
      return Rings{number_in(name, options.substr(0, comma)), number_in(name, options.substr(comma + 1))};
    };
    if (head == "dynamic") return dynamic(rings());
    if (head == "dynamic-v") return dynamic_v(rings());
  }
  throw std::invalid_argument("unknown schedule '" + std::string(name) + "': known are " + known_schedules());
}

int stages_of_a_device(std::string_view name) {
  (void)generator(name);
  if (name == "zbv" || name.starts_with("dynamic-v")) return 2;
  constexpr std::string_view interleaved = "interleaved:";
  if (!name.starts_with(interleaved)) return 1;
  return std::clamp(number_in(name, name.substr(interleaved.size())), 1, 1 << 20);
}

Schedule make_schedule(std::string_view name, int stages, int microbatches) {
  return generator(name)(stages, microbatches);
}

}  // namespace sluice::parallel
