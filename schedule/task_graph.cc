#include "sluice/schedule/task_graph.h"

#include "sluice/engine/number_text.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <queue>
#include <stdexcept>
#include <string>
#include <utility>

namespace sluice::parallel {

int TaskGraph::add_device() { return devices_++; }

int TaskGraph::add_pool(double capacity, double most) {
  if (!(capacity > 0) || !(most > 0))
    throw std::invalid_argument("a pool's capacity and the most of a job are above 0");
  pools_.push_back({capacity, most});
  return static_cast<int>(pools_.size()) - 1;
}

int TaskGraph::add_task(const Task& task) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument("task " + std::to_string(tasks_.size()) + " " + why);
  };
  if (task.device < kNone || task.device >= devices_) refuse("is on no device");
  if (task.pool < kNone || task.pool >= static_cast<int>(pools_.size())) refuse("is done by no pool");
  if (!(task.delay >= 0) || !std::isfinite(task.delay)) refuse("has a delay of " + general_text(task.delay, 6));
  if (!(task.work >= 0) || !std::isfinite(task.work)) refuse("has work of " + general_text(task.work, 6));
  tasks_.push_back(task);
  return static_cast<int>(tasks_.size()) - 1;
}

void TaskGraph::set_work(int task, double work) {
  if (task < 0 || task >= tasks() || !(work >= 0) || !std::isfinite(work)) {
    throw std::invalid_argument("task " + std::to_string(task) + " of " + std::to_string(tasks()) +
                                " cannot have work of " + general_text(work, 6));
  }
  tasks_[static_cast<std::size_t>(task)].work = work;
}

void TaskGraph::add_dependency(int task, int before) {
  if (task < 0 || before < 0 || task >= tasks() || before >= tasks()) {
    throw std::invalid_argument("task " + std::to_string(task) + " cannot wait for task " + std::to_string(before) +
                                ": there are " + std::to_string(tasks()));
  }
  dependencies_.emplace_back(before, task);
}

/// One simulation. At each moment first everything ends that ends then; only then do devices choose what to start.
class TaskGraph::Run {
 public:
  explicit Run(const TaskGraph& graph)
      : graph_(graph),
        lacks_(graph.tasks_.size()),
        first_behind_(graph.tasks_.size() + 1),
        behind_(graph.dependencies_.size()),
        devices_(static_cast<std::size_t>(graph.devices_)),
        pools_(graph.pools_.size()) {
    times_.start.assign(graph.tasks_.size(), 0);
    times_.end.assign(graph.tasks_.size(), -1);
    for (const auto& [before, task] : graph.dependencies_) {
      ++first_behind_[static_cast<std::size_t>(before) + 1];
      ++lacks_[static_cast<std::size_t>(task)];
    }
    for (std::size_t i = 1; i < first_behind_.size(); ++i) first_behind_[i] += first_behind_[i - 1];
    std::vector<std::size_t> at(first_behind_.begin(), first_behind_.end() - 1);
    for (const auto& [before, task] : graph.dependencies_) behind_[at[static_cast<std::size_t>(before)]++] = task;
  }

  Times times() {
    for (int t = 0; t < graph_.tasks(); ++t) {
      if (lacks_[static_cast<std::size_t>(t)] == 0) make_ready(t);
    }
    start_all();
    while (!events_.empty()) {
      now_ = events_.top().time;
      while (!events_.empty() && events_.top().time <= now_) {
        const Event event = events_.top();
        events_.pop();
        handle(event);
      }
      start_all();
    }
    const auto left = std::ranges::find_if(times_.end, [](double end) { return end < 0; });
    if (left != times_.end.end()) {
      throw std::invalid_argument("task " + std::to_string(left - times_.end.begin()) +
                                  " never starts: tasks wait for each other in a circle");
    }
    for (const double end : times_.end) times_.span = std::max(times_.span, end);
    return std::move(times_);
  }

 private:
  enum class What : std::uint8_t { arrives, ends, pool };
  struct Event {
    double time;
    std::uint64_t number;  // those of one moment in the order in which they were made
    What what;
    std::int32_t which;     // the task or the pool
    std::uint32_t version;  // of the pool when it was made
    bool operator<(const Event& other) const { return time != other.time ? time > other.time : number > other.number; }
  };
  struct Device {
    bool busy = false;
    std::vector<std::pair<int, std::int32_t>> ready;  // a heap: rank and task, the least on top
  };
  /// All jobs of a pool go on at the same speed, so one clock of work done serves them all.
  struct Shared {
    double clock = 0, at = 0;
    std::vector<std::pair<double, std::int32_t>> jobs;  // a heap: where the clock stands at their end, the least on top
    std::uint32_t version = 0;
  };

  void add_event(double time, What what, std::int32_t which, std::uint32_t version = 0) {
    events_.push({time, numbers_++, what, which, version});
  }

  void make_ready(std::int32_t task) {
    const Task& t = graph_.tasks_[static_cast<std::size_t>(task)];
    if (t.device == kNone) return start_.push_back(task);
    Device& device = devices_[static_cast<std::size_t>(t.device)];
    device.ready.emplace_back(t.rank, task);
    std::ranges::push_heap(device.ready, std::greater());
    if (!device.busy) choosing_.push_back(t.device);
  }

  void start_all() {
    for (const int d : choosing_) {
      Device& device = devices_[static_cast<std::size_t>(d)];
      if (device.busy || device.ready.empty()) continue;
      std::ranges::pop_heap(device.ready, std::greater());
      start_.push_back(device.ready.back().second);
      device.ready.pop_back();
      device.busy = true;
    }
    choosing_.clear();
    for (const std::int32_t task : start_) {
      const double delay = graph_.tasks_[static_cast<std::size_t>(task)].delay;
      times_.start[static_cast<std::size_t>(task)] = now_;
      delay > 0 ? add_event(now_ + delay, What::arrives, task) : work(task);
    }
    start_.clear();
  }

  void work(std::int32_t task) {
    const Task& t = graph_.tasks_[static_cast<std::size_t>(task)];
    if (t.pool == kNone) return add_event(now_ + t.work, What::ends, task);
    Shared& pool = pools_[static_cast<std::size_t>(t.pool)];
    pass(t.pool);
    pool.jobs.emplace_back(pool.clock + t.work, task);
    std::ranges::push_heap(pool.jobs, std::greater());
    expect(t.pool);
  }

  double speed(int pool) const {
    const auto p = static_cast<std::size_t>(pool);
    return std::min(graph_.pools_[p].most, graph_.pools_[p].capacity / static_cast<double>(pools_[p].jobs.size()));
  }
  /// Brings a pool's clock to now.
  void pass(int pool) {
    Shared& p = pools_[static_cast<std::size_t>(pool)];
    if (!p.jobs.empty() && now_ > p.at) p.clock = std::min(p.clock + (now_ - p.at) * speed(pool), p.jobs.front().first);
    p.at = now_;
  }
  void expect(int pool) {
    Shared& p = pools_[static_cast<std::size_t>(pool)];
    ++p.version;
    if (!p.jobs.empty()) {
      add_event(now_ + (p.jobs.front().first - p.clock) / speed(pool), What::pool, pool, p.version);
    }
  }

  void handle(const Event& event) {
    if (event.what == What::arrives) return work(event.which);
    if (event.what == What::ends) return end(event.which);
    Shared& pool = pools_[static_cast<std::size_t>(event.which)];
    if (event.version != pool.version) return;
    pool.clock = pool.jobs.front().first;
    pool.at = now_;
    while (!pool.jobs.empty() && pool.jobs.front().first <= pool.clock) {
      const std::int32_t task = pool.jobs.front().second;
      std::ranges::pop_heap(pool.jobs, std::greater());
      pool.jobs.pop_back();
      end(task);
    }
    expect(event.which);
  }

  void end(std::int32_t task) {
    const auto t = static_cast<std::size_t>(task);
    times_.end[t] = now_;
    if (const int device = graph_.tasks_[t].device; device != kNone) {
      devices_[static_cast<std::size_t>(device)].busy = false;
      choosing_.push_back(device);
    }
    for (std::size_t i = first_behind_[t]; i < first_behind_[t + 1]; ++i) {
      if (--lacks_[static_cast<std::size_t>(behind_[i])] == 0) make_ready(behind_[i]);
    }
  }

  const TaskGraph& graph_;
  std::vector<std::int32_t> lacks_;  // for each task, how many of those before it are not over
  std::vector<std::size_t> first_behind_;
  std::vector<std::int32_t> behind_;
  std::vector<Device> devices_;
  std::vector<Shared> pools_;
  std::vector<int> choosing_;        // devices that may start something now
  std::vector<std::int32_t> start_;  // tasks that start now
  std::priority_queue<Event> events_;
  std::uint64_t numbers_ = 0;
  double now_ = 0;
  Times times_;
};

TaskGraph::Times TaskGraph::run() const { return Run(*this).times(); }

}  // namespace sluice::parallel
