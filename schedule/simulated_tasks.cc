#include "sluice/schedule/simulated_tasks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <utility>

namespace sluice::parallel {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// A backward pass in one piece: what it gives first can be sent before its end.
bool whole(ActionKind kind) { return gives(kind, Result::input_gradient) && gives(kind, Result::weight_gradient); }

}  // namespace

SimulatedTasks::SimulatedTasks(const Schedule& schedule, const SimulateOptions& options, bool in_parts)
    : in_parts_(in_parts) {
  const Order order(schedule);
  for (int d = 0; d < schedule.devices(); ++d) graph_.add_device();
  const bool shares = options.cores > 0 && options.cores < schedule.devices() + (options.push > 0 ? 1 : 0);
  path_ = schedule.fixed_order && !shares && !std::isfinite(options.link.bandwidth);
  if (shares) cores_ = graph_.add_pool(options.cores, 1);
  if (options.push > 0) {
    push_ = graph_.add_task({.device = graph_.add_device(), .pool = cores_, .work = options.push});
  }
  add_actions(schedule, order);
  add_dependencies(schedule, order, options);
  if (path_) sort();
}

void SimulatedTasks::add_actions(const Schedule& schedule, const Order& order) {
  for (const auto& list : schedule.per_device) {
    int rank = 0;
    for (const Action& a : list) {
      Box box{.action = a, .device = order.device(a)};
      box.first = box.last = graph_.add_task({.device = box.device, .pool = cores_, .rank = rank++});
      if (in_parts_ && whole(a.kind)) {
        // Nothing comes between the two parts of a backward pass: the second has the least rank of all.
        box.last = graph_.add_task({.device = box.device, .pool = cores_, .rank = -1});
        depend(box.last, box.first);
      }
      boxes_.push_back(box);
    }
  }
}

void SimulatedTasks::add_dependencies(const Schedule& schedule, const Order& order, const SimulateOptions& options) {
  std::vector<const Box*> box_of(at(action_count(schedule)));
  for (const Box& box : boxes_) box_of[at(index_of(schedule, box.action))] = &box;
  std::map<std::pair<int, int>, int> links;  // by the devices at their ends
  const auto link = [&](int from, int to) {
    const auto [found, is_new] = links.try_emplace(options.shared_link ? std::pair(0, 0) : std::pair(from, to));
    if (is_new) found->second = graph_.add_pool(options.link.bandwidth);
    return found->second;
  };
  const bool instant = options.link.latency == 0 && !std::isfinite(options.link.bandwidth);
  const bool by_cores = options.link_takes_cores && cores_ != TaskGraph::kNone;
  if (by_cores) bytes_of_work_ = options.link.bandwidth;
  for (const Box& box : boxes_) {
    const std::size_t needs = order.needs(box.action).size();
    const std::vector<Action> before = order.waits_for(box.action);
    for (std::size_t i = 0; i < before.size(); ++i) {
      const Box& from = *box_of[at(index_of(schedule, before[i]))];
      if (i >= needs || from.device == box.device) {
        depend(box.first, from.last);
      } else if (instant) {
        depend(box.first, from.first);
      } else {
        // The value between the two stages is the lower one's output, or its gradient.
        const int pool = by_cores ? cores_ : link(from.device, box.device);
        const int transfer = graph_.add_task({.pool = pool, .delay = options.link.latency});
        transfers_.push_back({transfer, std::min(box.action.stage, before[i].stage)});
        depend(transfer, from.first);
        depend(box.first, transfer);
      }
    }
  }
  delay_.assign(at(graph_.tasks()), 0);
  for (const Transfer& transfer : transfers_) delay_[at(transfer.task)] = options.link.latency;
}

void SimulatedTasks::depend(int task, int before) {
  graph_.add_dependency(task, before);
  if (path_) waits_.emplace_back(task, before);
}

void SimulatedTasks::sort() {
  const auto count = at(graph_.tasks());
  takes_.assign(count, 0);
  end_.assign(count, 0);
  std::vector<std::vector<int>> before(count), behind(count);
  std::vector<std::size_t> lacks(count);
  for (const auto& [task, first] : waits_) {
    before[at(task)].push_back(first);
    behind[at(first)].push_back(task);
    ++lacks[at(task)];
  }
  for (int t = 0; t < graph_.tasks(); ++t) {
    if (lacks[at(t)] == 0) sorted_.push_back(t);
  }
  for (std::size_t i = 0; i < sorted_.size(); ++i) {
    const int task = sorted_[i];
    first_before_.push_back(static_cast<int>(before_.size()));
    before_.insert(before_.end(), before[at(task)].begin(), before[at(task)].end());
    for (const int next : behind[at(task)]) {
      if (--lacks[at(next)] == 0) sorted_.push_back(next);
    }
  }
  first_before_.push_back(static_cast<int>(before_.size()));
  waits_ = {};
}

void SimulatedTasks::set(std::span<const StageCost> costs, const SimulateOptions& options,
                         std::span<const double> factors) {
  const auto set = [&](int task, double work) {
    graph_.set_work(task, work);
    if (path_) takes_[at(task)] = work;
  };
  for (std::size_t i = 0; i < boxes_.size(); ++i) {
    const Box& box = boxes_[i];
    const Action& a = box.action;
    const double work = costs[at(a.stage)].of(a.kind) * (factors.empty() ? 1 : factors[i]);
    const double share =
        box.first == box.last || options.gradient_share.empty() ? 1 : options.gradient_share[at(a.stage)];
    set(box.first, share * work);
    if (box.first != box.last) set(box.last, (1 - share) * work);
  }
  if (push_ != TaskGraph::kNone) set(push_, options.push);
  for (const Transfer& transfer : transfers_) {
    const double bytes = options.output_bytes.empty() ? 0 : options.output_bytes[at(transfer.lower)];
    graph_.set_work(transfer.task, bytes / bytes_of_work_);
  }
}

double SimulatedTasks::span() {
  if (!path_) return graph_.run().span;
  double span = 0;
  for (std::size_t i = 0; i < sorted_.size(); ++i) {
    double start = 0;
    for (int b = first_before_[i]; b < first_before_[i + 1]; ++b) start = std::max(start, end_[at(before_[at(b)])]);
    const auto task = at(sorted_[i]);
    span = std::max(span, end_[task] = start + delay_[task] + takes_[task]);
  }
  return span;
}

}  // namespace sluice::parallel
