// Pipeline schedules as data: which stage runs which microbatch, forward or backward, in which order.
//
// The same list is proved (verify.h), timed (simulate.h), drawn (render.h) and run by the engine (pipeline.h).
// Everything in this header is a pure function of its arguments: thread-safe, and never blocks.
#pragma once

#include <compare>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::parallel {

/// What a stage does with a microbatch: the forward pass, or the backward pass (gradients of input and weights).
/// A schedule that splits the backward pass adds its kinds at the end.
enum class ActionKind { forward, backward };

inline constexpr int kActionKinds = 2;

/// One step of one stage. Stages and microbatches count from 0.
struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;
  int microbatch = 0;
  friend auto operator<=>(const Action&, const Action&) = default;
};

/// For each stage the order in which it runs its actions; per_stage[s] belongs to stage s.
struct Schedule {
  int stages = 0;
  int microbatches = 0;
  std::string name;
  std::vector<std::vector<Action>> per_stage;
};

/// All forwards, then all backwards, both in index order (so that gradients add up as in a sequential run).
/// Throws std::invalid_argument unless stages >= 1 and microbatches >= 1; fewer microbatches than stages are fine.
Schedule gpipe(int stages, int microbatches);

/// One forward, one backward: stage i runs stages - 1 - i forwards to warm up, then (F, B) pairs, then the remaining
/// backwards. Keeps min(stages - i, microbatches) activations on stage i. Throws as gpipe does.
Schedule one_f_one_b(int stages, int microbatches);

/// The schedule of that name: "gpipe" or "1f1b". Throws std::invalid_argument for another name, and as gpipe does.
Schedule make_schedule(std::string_view name, int stages, int microbatches);

/// How many microbatches' activations the stage holds at most at once: each forward adds one, each backward frees one.
/// Throws std::invalid_argument if the schedule has no such stage.
int peak_activations(const Schedule& schedule, int stage);

/// The actions whose results this one reads, nearest stage first: F(s,k) reads F(s-1,k); B(s,k) reads B(s+1,k) and the
/// activations that F(s,k) left behind.
std::vector<Action> data_dependencies(const Schedule& schedule, const Action& action);

/// A number in [0, action_count(schedule)), different for each action: for tables of something per action.
int index_of(const Schedule& schedule, const Action& action);

/// kActionKinds x stages x microbatches.
int action_count(const Schedule& schedule);

/// One sequence over all stages in which one thread can push the actions: each stage's actions stand in its order, and
/// each action stands after those whose results it reads. Stages take turns as if every action took one time step, so
/// no stage's work is pushed long before another's. Throws std::invalid_argument as verify() does.
std::vector<Action> program_order(const Schedule& schedule);

/// "F(0,3)": kind, stage, microbatch.
std::string to_text(const Action& action);

/// One line a stage, each ended by a newline: "s0 F0-3 B0 F4 B1 ...". Three or more actions of one kind whose
/// microbatches count up are written as a range.
std::string to_text(const Schedule& schedule);

}  // namespace sluice::parallel
