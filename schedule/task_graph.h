// The simulators' core: tasks with what they wait for, on devices and links, in an event queue. No hardware, no
// threads.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace sluice::parallel {

/// Tasks whose times follow from each other. Filled and run by one thread; run() is a pure function of what was
/// filled in. Numbers of devices, pools and tasks count from 0 as they are added. Memory: some 100 bytes a task and 8 a
/// dependency.
class TaskGraph {
 public:
  static constexpr int kNone = -1;

  struct Task {
    int device = kNone;  ///< runs one task at a time; none: the task needs no device
    int pool = kNone;    ///< what its work is done by; none: the work is seconds
    double delay = 0;    ///< seconds from its start to the beginning of its work: a link's latency
    double work = 0;     ///< in the pool's unit: bytes, or seconds of a core
    int rank = 0;        ///< a device that is free takes the ready task of the least rank, then the one added first
  };

  int add_device();
  /// A link, or the cores of a machine: its jobs share `capacity` (work a second) evenly, and none gets more than
  /// `most`.
  int add_pool(double capacity, double most = std::numeric_limits<double>::infinity());
  /// Throws std::invalid_argument for a device or pool that is not there, and for a delay or work that is negative or
  /// not finite.
  int add_task(const Task& task);
  /// Another work for a task, before the next run(). Throws as add_task() does.
  void set_work(int task, double work);
  /// `task` starts when `before` is over. Throws std::invalid_argument for tasks that are not there.
  void add_dependency(int task, int before);

  struct Times {
    std::vector<double> start, end;  ///< for each task, in seconds from 0
    double span = 0;                 ///< the last end
  };
  /// Each task starts as soon as all it waits for is over and its device is free. Throws std::invalid_argument where
  /// tasks wait for each other in a circle.
  Times run() const;

  int tasks() const { return static_cast<int>(tasks_.size()); }

 private:
  struct Pool {
    double capacity, most;
  };
  class Run;

  int devices_ = 0;
  std::vector<Pool> pools_;
  std::vector<Task> tasks_;
  std::vector<std::pair<std::int32_t, std::int32_t>> dependencies_;  // before, task
};

}  // namespace sluice::parallel
