// The simulation of a cluster (simulate.h): pipelines of shards beside each other.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "sluice/schedule/simulate_parts.h"
#include "sluice/schedule/task_graph.h"

namespace sluice::parallel {
namespace {

using detail::check_costs;
using detail::factor;
using detail::number_of;

/// Calls each(action, rank) for all actions; what stands first in a device's list has the least rank.
template <class Each>
void for_all(const Schedule& schedule, Each each) {
  for (const auto& list : schedule.per_device) {
    int rank = 0;
    for (const Action& action : list) each(action, rank++);
  }
}

}  // namespace

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
