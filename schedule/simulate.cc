#include "sluice/schedule/simulate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numbers>
#include <stdexcept>
#include <string>

#include "sluice/schedule/task_graph.h"
#include "sluice/schedule/verify.h"

namespace sluice::parallel {
namespace {

void check_costs(const Schedule& schedule, std::span<const StageCost> costs) {
  verify(schedule);
  if (costs.size() != static_cast<std::size_t>(schedule.stages)) {
    throw std::invalid_argument("schedule '" + schedule.name + "' has " + std::to_string(schedule.stages) +
                                " stages, but costs are given for " + std::to_string(costs.size()));
  }
  for (std::size_t s = 0; s < costs.size(); ++s) {
    for (int kind = 0; kind < kActionKinds; ++kind) {
      const double cost = costs[s].of(static_cast<ActionKind>(kind));
      if (std::isfinite(cost) && cost >= 0) continue;
      throw std::invalid_argument("stage " + std::to_string(s) + " cannot take " + std::to_string(cost) +
                                  " s for its " + row_of(static_cast<ActionKind>(kind)).name);
    }
  }
}

/// The number is in [0, 1), and follows from its arguments (a mix of bits after Steele et al., SplitMix, 2014).
double random_number(std::uint64_t seed, std::uint64_t what) {
  std::uint64_t z = seed * 0x9E3779B97F4A7C15u + what;
  for (const std::uint64_t factor : {0xBF58476D1CE4E5B9u, 0x94D049BB133111EBu, 0xD6E8FEB86659FD93u}) {
    z = (z ^ (z >> 31)) * factor;
  }
  return static_cast<double>((z ^ (z >> 32)) >> 11) * 0x1p-53;
}

double factor(const Jitter& jitter, std::uint64_t what) {
  const double u = random_number(jitter.seed, 2 * what);
  switch (jitter.kind) {
    case Jitter::Kind::none:
      return 1;
    case Jitter::Kind::uniform:
      return std::max(0.0, 1 + jitter.amount * (2 * u - 1));
    case Jitter::Kind::normal:
      break;
  }
  // Box and Muller, 1958.
  const double v = random_number(jitter.seed, 2 * what + 1);
  const double z = std::sqrt(-2 * std::log(1 - u)) * std::cos(2 * std::numbers::pi * v);
  return std::max(0.05, 1 + jitter.amount * z);
}

/// A backward pass in one piece: what it gives first can be sent before its end.
bool whole(ActionKind kind) { return gives(kind, Result::input_gradient) && gives(kind, Result::weight_gradient); }

/// What an action's factor follows from, whatever the schedule is.
std::uint64_t number_of(const Action& a, std::uint64_t copy = 0) {
  return ((copy * 4096 + static_cast<std::uint64_t>(a.stage)) * kActionKinds + static_cast<std::uint64_t>(a.kind)) *
             1'048'576 +
         static_cast<std::uint64_t>(a.microbatch);
}

/// Calls each(action, rank) for all actions; what stands first in a device's list has the least rank.
template <class Each>
void for_all(const Schedule& schedule, Each each) {
  for (const auto& list : schedule.per_device) {
    int rank = 0;
    for (const Action& action : list) each(action, rank++);
  }
}

/// Memory by the table of action kinds, over time.
std::vector<std::vector<MemoryPoint>> memory_of(const Schedule& schedule, const Order& order,
                                                std::span<const SimulatedBox> boxes,
                                                std::span<const StageBytes> bytes) {
  std::vector<std::vector<MemoryPoint>> changes(schedule.per_device.size());
  std::vector<double> always(schedule.per_device.size());
  for (int s = 0; s < schedule.stages; ++s) {
    always[static_cast<std::size_t>(order.device_of_stage(s))] += bytes[static_cast<std::size_t>(s)].weights;
  }
  for (const auto& [a, start, end] : boxes) {
    const StageBytes& of = bytes[static_cast<std::size_t>(a.stage)];
    auto& device = changes[static_cast<std::size_t>(order.device(a))];
    const double more = held_at_start(a.kind, of, order.recomputes(a.stage, a.microbatch));
    const double less = held_at_end(a.kind, of);
    if (more != 0) device.push_back({start, more});
    if (less != 0) device.push_back({end, less});
  }
  double begin = std::numeric_limits<double>::infinity();
  for (const SimulatedBox& box : boxes) begin = std::min(begin, box.start);
  if (boxes.empty()) begin = 0;
  std::vector<std::vector<MemoryPoint>> curves(changes.size());
  for (std::size_t d = 0; d < changes.size(); ++d) {
    // What ends at a moment is free before what starts then.
    std::ranges::sort(changes[d], {}, [](const MemoryPoint& p) { return std::pair(p.time, p.bytes); });
    double held = always[d];
    curves[d].push_back({begin, held});
    for (const auto& [time, change] : changes[d]) {
      held += change;
      if (curves[d].back().time == time) {
        curves[d].back().bytes = held;
      } else {
        curves[d].push_back({time, held});
      }
    }
  }
  return curves;
}

}  // namespace

Simulation simulate(const Schedule& schedule, std::span<const StageCost> costs, const SimulateOptions& options) {
  check_costs(schedule, costs);
  if (!(options.push >= 0 && std::isfinite(options.push))) {
    throw std::invalid_argument("cannot simulate a thread that pushes for " + std::to_string(options.push) + " s");
  }
  if (options.cores < 0) throw std::invalid_argument("cannot simulate on " + std::to_string(options.cores) + " cores");
  for (const std::size_t given : {options.output_bytes.size(), options.gradient_share.size(), options.bytes.size()}) {
    if (given == 0 || given == costs.size()) continue;
    throw std::invalid_argument("schedule '" + schedule.name + "' has " + std::to_string(schedule.stages) +
                                " stages, but bytes or shares are given for " + std::to_string(given));
  }
  for (const double share : options.gradient_share) {
    if (!(share >= 0 && share <= 1))
      throw std::invalid_argument("a gradient cannot be sent after " + std::to_string(share) + " of a backward pass");
  }
  const Order order(schedule);
  TaskGraph graph;
  for (int d = 0; d < schedule.devices(); ++d) graph.add_device();
  const bool shares = options.cores > 0 && options.cores < schedule.devices() + (options.push > 0 ? 1 : 0);
  const int cores = shares ? graph.add_pool(options.cores, 1) : TaskGraph::kNone;
  if (options.push > 0) graph.add_task({.device = graph.add_device(), .pool = cores, .work = options.push});
  std::vector<int> task(static_cast<std::size_t>(action_count(schedule)), TaskGraph::kNone);
  const auto task_of = [&](const Action& a) -> int& { return task[static_cast<std::size_t>(index_of(schedule, a))]; };
  std::vector<Action> actions;
  std::vector<int> begins;                 // each action's first task
  std::vector<int> sends(task.size(), 0);  // whose end a transfer waits for
  for_all(schedule, [&](const Action& a, int rank) {
    const double cost = costs[static_cast<std::size_t>(a.stage)].of(a.kind);
    const double work = cost * factor(options.jitter, number_of(a));
    const double share = whole(a.kind) && !options.gradient_share.empty()
                             ? options.gradient_share[static_cast<std::size_t>(a.stage)]
                             : 1;
    const auto add = [&](double part, int at) {
      return graph.add_task({.device = order.device(a), .pool = cores, .work = part * work, .rank = at});
    };
    // Nothing comes between the two parts of a backward pass: the second has the least rank of all.
    const int first = share < 1 ? add(share, rank) : TaskGraph::kNone;
    task_of(a) = share < 1 ? add(1 - share, -1) : add(1, rank);
    if (share < 1) graph.add_dependency(task_of(a), first);
    begins.push_back(share < 1 ? first : task_of(a));
    sends[static_cast<std::size_t>(index_of(schedule, a))] = begins.back();
    actions.push_back(a);
  });
  std::map<std::pair<int, int>, int> links;  // by the devices at their ends
  const auto link = [&](int from, int to) {
    const auto [at, is_new] = links.try_emplace(options.shared_link ? std::pair(0, 0) : std::pair(from, to));
    if (is_new) at->second = graph.add_pool(options.link.bandwidth);
    return at->second;
  };
  const bool instant = options.link.latency == 0 && !std::isfinite(options.link.bandwidth);
  for (std::size_t n = 0; n < actions.size(); ++n) {
    const Action& a = actions[n];
    const int here = begins[n];
    const std::size_t needs = order.needs(a).size();
    const std::vector<Action> before = order.waits_for(a);
    for (std::size_t i = 0; i < before.size(); ++i) {
      const Action& b = before[i];
      const int from = order.device(b), to = order.device(a);
      if (i >= needs || from == to) {
        graph.add_dependency(here, task_of(b));
        continue;
      }
      const int there = sends[static_cast<std::size_t>(index_of(schedule, b))];
      if (instant) {
        graph.add_dependency(here, there);
        continue;
      }
      // The value between the two stages is the lower one's output, or its gradient.
      const auto lower = static_cast<std::size_t>(std::min(a.stage, b.stage));
      const double bytes = options.output_bytes.empty() ? 0 : options.output_bytes[lower];
      const int transfer =
          options.link_takes_cores && shares
              ? graph.add_task({.pool = cores, .delay = options.link.latency, .work = bytes / options.link.bandwidth})
              : graph.add_task({.pool = link(from, to), .delay = options.link.latency, .work = bytes});
      graph.add_dependency(transfer, there);
      graph.add_dependency(here, transfer);
    }
  }
  const TaskGraph::Times times = graph.run();

  Simulation result;
  result.devices = schedule.devices();
  std::vector<double> first(schedule.per_device.size(), std::numeric_limits<double>::infinity()), last(first.size());
  for (std::size_t n = 0; n < actions.size(); ++n) {
    const Action& a = actions[n];
    const auto d = static_cast<std::size_t>(order.device(a));
    const SimulatedBox box{a, times.start[static_cast<std::size_t>(begins[n])],
                           times.end[static_cast<std::size_t>(task_of(a))]};
    result.boxes.push_back(box);
    result.busy += box.end - box.start;
    result.span = std::max(result.span, box.end);
    first[d] = std::min(first[d], box.start);
    last[d] = std::max(last[d], box.end);
    result.longest_device = std::max(result.longest_device, last[d] - first[d]);
  }
  result.span = std::max(result.span, times.span);
  std::ranges::stable_sort(result.boxes, {}, &SimulatedBox::start);
  if (result.span > 0) result.bubble = 1 - result.busy / (result.devices * result.span);
  if (!options.bytes.empty()) result.memory = memory_of(schedule, order, result.boxes, options.bytes);
  return result;
}

std::vector<std::vector<MemoryPoint>> memory_over_time(const Schedule& schedule, std::span<const TimelineBox> boxes,
                                                       std::span<const StageBytes> stages) {
  check_actions(schedule);
  if (stages.size() != static_cast<std::size_t>(schedule.stages)) {
    throw std::invalid_argument("schedule '" + schedule.name + "' has " + std::to_string(schedule.stages) +
                                " stages, but bytes are given for " + std::to_string(stages.size()));
  }
  const Order order(schedule);
  std::vector<SimulatedBox> all;
  std::vector<bool> there(static_cast<std::size_t>(action_count(schedule)));
  for (const TimelineBox& box : boxes) {
    const Action action{box.kind, box.stage, box.microbatch};
    const bool known = box.stage >= 0 && box.stage < schedule.stages && box.microbatch >= 0 &&
                       box.microbatch < schedule.microbatches && order.has(action);
    if (!known) {
      throw std::invalid_argument("schedule '" + schedule.name + "' has no " + to_text(action) + ", which has a box");
    }
    there[static_cast<std::size_t>(index_of(schedule, action))] = true;
    all.push_back({action, box.start, box.end});
  }
  for (const TimelineBox& box : boxes) {
    if (box.kind != ActionKind::weight_gradient) continue;
    const Action half{ActionKind::input_gradient, box.stage, box.microbatch};
    if (!there[static_cast<std::size_t>(index_of(schedule, half))]) all.push_back({half, box.start, box.start});
  }
  return memory_of(schedule, order, all, stages);
}

std::vector<TimelineBox> to_timeline(const Simulation& simulation) {
  std::vector<TimelineBox> boxes;
  boxes.reserve(simulation.boxes.size());
  for (const auto& [action, start, end] : simulation.boxes) {
    boxes.push_back({action.kind, action.stage, action.microbatch, start, end});
  }
  return boxes;
}

ClusterTimes simulate_cluster(const Schedule& schedule, std::span<const StageCost> costs, const Cluster& cluster) {
  check_costs(schedule, costs);
  if (cluster.replicas < 1 || cluster.shards < 1 || cluster.devices_of_a_link < 1) {
    throw std::invalid_argument("a cluster has at least 1 replica, 1 shard and 1 device of a link");
  }
  const Order order(schedule);
  const std::int64_t devices = std::int64_t{cluster.replicas} * cluster.shards * schedule.devices();
  TaskGraph graph;
  for (std::int64_t d = 0; d < devices; ++d) graph.add_device();
  const auto device = [&](int replica, int shard, int d) {
    return (replica * schedule.devices() + d) * cluster.shards + shard;
  };
  // Shards of one stage are neighbours.
  std::vector<int> outward, between;
  for (std::int64_t first = 0; first < devices; first += cluster.devices_of_a_link) {
    outward.push_back(graph.add_pool(cluster.stage_link.bandwidth));
    between.push_back(graph.add_pool(cluster.replica_link.bandwidth));
  }
  const auto of = [&](const std::vector<int>& links, int d) {
    return links[static_cast<std::size_t>(d / cluster.devices_of_a_link)];
  };
  std::vector<Action> actions;
  std::vector<int> ranks;
  for_all(schedule, [&](const Action& a, int rank) {
    actions.push_back(a);
    ranks.push_back(rank);
  });
  // For the gradients of each stage and shard: all replicas' last tasks.
  std::vector<std::vector<int>> sums(static_cast<std::size_t>(schedule.stages) *
                                     static_cast<std::size_t>(cluster.shards));
  std::vector<int> compute(static_cast<std::size_t>(action_count(schedule)) * static_cast<std::size_t>(cluster.shards));
  std::vector<int> over(compute.size());  // what others wait for: the all-reduce of the shards, if there is one
  std::vector<int> is_compute;
  for (int r = 0; r < cluster.replicas; ++r) {
    const auto at = [&](const Action& a, int shard) {
      return static_cast<std::size_t>(index_of(schedule, a)) * static_cast<std::size_t>(cluster.shards) +
             static_cast<std::size_t>(shard);
    };
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action& a = actions[i];
      const double cost = costs[static_cast<std::size_t>(a.stage)].of(a.kind);
      for (int t = 0; t < cluster.shards; ++t) {
        const int d = device(r, t, order.device(a));
        const double work = cost * factor(cluster.jitter, number_of(a, static_cast<std::uint64_t>(d) + 1));
        over[at(a, t)] = compute[at(a, t)] = graph.add_task({.device = d, .work = work, .rank = ranks[i]});
        is_compute.push_back(compute[at(a, t)]);
      }
      // Nobody wants the gradient of the first stage's input.
      const bool reduced = gives(a.kind, Result::output) || (a.stage > 0 && gives(a.kind, Result::input_gradient));
      if (cluster.shards == 1 || !reduced) continue;
      // A ring: each shard sends its bytes twice, but for the parts that stay. Each shard has a link to the next.
      const double sent = 2.0 * (cluster.shards - 1) / cluster.shards * cluster.shard_bytes;
      const int all = graph.add_task(
          {.work = 2.0 * (cluster.shards - 1) * cluster.shard_link.latency + sent / cluster.shard_link.bandwidth});
      for (int t = 0; t < cluster.shards; ++t) {
        graph.add_dependency(all, compute[at(a, t)]);
        over[at(a, t)] = all;
      }
    }
    for (const Action& a : actions) {
      const std::size_t needs = order.needs(a).size();
      const std::vector<Action> before = order.waits_for(a);
      for (int t = 0; t < cluster.shards; ++t) {
        for (std::size_t i = 0; i < before.size(); ++i) {
          const int from = order.device(before[i]), ended = over[at(before[i], t)];
          if (i >= needs || from == order.device(a)) {
            graph.add_dependency(compute[at(a, t)], ended);
            continue;
          }
          const int transfer = graph.add_task({.pool = of(outward, device(r, t, from)),
                                               .delay = cluster.stage_link.latency,
                                               .work = cluster.output_bytes});
          graph.add_dependency(transfer, ended);
          graph.add_dependency(compute[at(a, t)], transfer);
        }
        if (gives(a.kind, Result::weight_gradient)) {
          sums[static_cast<std::size_t>(a.stage) * static_cast<std::size_t>(cluster.shards) +
               static_cast<std::size_t>(t)]
              .push_back(compute[at(a, t)]);
        }
      }
    }
  }
  if (cluster.replicas > 1) {
    for (int s = 0; s < schedule.stages; ++s) {
      for (int t = 0; t < cluster.shards; ++t) {
        const auto& ended =
            sums[static_cast<std::size_t>(s) * static_cast<std::size_t>(cluster.shards) + static_cast<std::size_t>(t)];
        const double sent = 2.0 * (cluster.replicas - 1) / cluster.replicas * cluster.gradient_bytes;
        // All replicas have their gradients before any of them sends its share.
        const int ready = graph.add_task({});
        for (const int task : ended) graph.add_dependency(ready, task);
        for (int r = 0; r < cluster.replicas; ++r) {
          const int send = graph.add_task({.pool = of(between, device(r, t, order.device_of_stage(s))),
                                           .delay = 2.0 * (cluster.replicas - 1) * cluster.replica_link.latency,
                                           .work = sent});
          graph.add_dependency(send, ready);
        }
      }
    }
  }
  const TaskGraph::Times times = graph.run();
  ClusterTimes result{.span = times.span, .devices = devices, .tasks = graph.tasks()};
  double busy = 0;
  for (const int task : is_compute) {
    busy += times.end[static_cast<std::size_t>(task)] - times.start[static_cast<std::size_t>(task)];
  }
  if (times.span > 0) result.bubble = 1 - busy / (static_cast<double>(devices) * times.span);
  return result;
}

}  // namespace sluice::parallel
