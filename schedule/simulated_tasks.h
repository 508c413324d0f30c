// A schedule as the tasks of its simulation (task_graph.h): made once, and run with many costs. simulate() runs them
// once, the planner's search for each cut that it times.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "sluice/schedule/simulate.h"
#include "sluice/schedule/task_graph.h"

namespace sluice::parallel {

/// Not thread-safe: one thread sets costs and runs.
class SimulatedTasks {
 public:
  /// The schedule must have passed verify(). Of the options, all but what belongs to costs is fixed here. `in_parts`:
  /// whole backward passes are two tasks, and gradients are sent after the first (SimulateOptions::gradient_share).
  SimulatedTasks(const Schedule& schedule, const SimulateOptions& options, bool in_parts);

  /// Of the options: output_bytes, gradient_share and push. `factors`: of boxes(), what each one's cost is multiplied
  /// by; empty: 1. Throws std::invalid_argument for a cost that is negative or not finite.
  void set(std::span<const StageCost> costs, const SimulateOptions& options, std::span<const double> factors = {});

  TaskGraph::Times run() const { return graph_.run(); }
  /// run().span. A fixed order without shared bandwidth or cores is a longest path, and needs no event queue.
  double span();

  struct Box {
    Action action;
    int first = 0, last = 0;  ///< its tasks
    int device = 0;
  };
  /// One for each action, device by device.
  const std::vector<Box>& boxes() const { return boxes_; }

 private:
  struct Transfer {
    int task;
    int lower;  // the lower one of its stages
  };

  void add_actions(const Schedule& schedule, const Order& order);
  void add_dependencies(const Schedule& schedule, const Order& order, const SimulateOptions& options);
  void depend(int task, int before);
  /// The tasks in an order in which each comes behind what it waits for.
  void sort();

  TaskGraph graph_;
  bool in_parts_, path_;
  int cores_ = TaskGraph::kNone, push_ = TaskGraph::kNone;
  double bytes_of_work_ = 1;  // of a transfer
  std::vector<Box> boxes_;
  std::vector<Transfer> transfers_;
  // For the longest path: what the tasks take, and what each waits for.
  std::vector<double> takes_, delay_, end_;
  std::vector<std::pair<int, int>> waits_;  // task, before: until they are sorted
  std::vector<int> sorted_, first_before_, before_;
};

}  // namespace sluice::parallel
