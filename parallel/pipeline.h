// Pipelines: a model in stages on devices, trained microbatch by microbatch in the order of a schedule.
//
//   parallel::Pipeline net{{lower, cpu(0)}, {upper, cpu(1)}};
//   NDArray loss = net.step(x, y, {.microbatches = 8, .schedule = parallel::one_f_one_b});
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/ndarray/nd_array.h"
#include "sluice/nn/module.h"
#include "sluice/schedule/action_lists.h"
#include "sluice/schedule/generators.h"
#include "sluice/schedule/timeline.h"

namespace sluice::parallel {

struct Stage {
  ModulePtr module;
  Device device;
};

/// The loss of a microbatch, a scalar: the sum of the losses of its rows, divided by `divisor`, which is the number of
/// rows of the whole batch. So the losses and gradients of the microbatches add up to those of the batch.
using LossFunction = std::function<NDArray(const NDArray& output, const NDArray& target, double divisor)>;

/// What a step runs by: a generator or anything else that is called with (stages, microbatches), a name (generators.h),
/// or a schedule. Copies share what can only be moved.
class ScheduleChoice {
 public:
  template <class F>
  requires std::is_invocable_r_v<Schedule, F&, int, int> ScheduleChoice(F generate)
      : make_(copyable(std::move(generate))) {}  // NOLINT: an option is written without a name
  ScheduleChoice(const char* name) : make_(generator(name)) {}
  ScheduleChoice(const std::string& name) : make_(generator(name)) {}
  ScheduleChoice(Schedule schedule);

  /// Throws what the function throws, and std::invalid_argument for an empty one and for a schedule of other sizes.
  Schedule make(int stages, int microbatches) const;

 private:
  template <class F>
  static Generator copyable(F generate) {
    if constexpr (std::is_copy_constructible_v<F>) return generate;
    return [shared = std::make_shared<F>(std::move(generate))](int stages, int microbatches) -> Schedule {
      return std::invoke(*shared, stages, microbatches);
    };
  }

  Generator make_;
};

/// In which order a device runs the actions of a step.
enum class ActionOrder : std::uint8_t {
  /// One after another, as the schedule lists them. For a schedule in a free order it means `ready`.
  listed,
  /// Whatever can run does. Of several actions that can, a device takes first what others wait for longest: a step of
  /// weights, then input gradients and whole backward passes, then recomputations, then forwards (of its later stages
  /// before those of its first), and weight gradients last. A stage's forwards run one after another, and the
  /// schedule's rings hold them back, across steps as well. The order depends on timing, and so, within the rings, does
  /// the memory that is needed. The bits do not.
  ready,
};

struct PipelineStep {
  int microbatches = 1;
  ScheduleChoice schedule = one_f_one_b;
  ActionOrder order = ActionOrder::listed;
  /// Pushes what updates a stage's weights: what the schedule's U actions run (with_updates() in generators.h). It is
  /// called once a step for each stage, by the thread that calls step(), when the stage's gradients are pushed, and
  /// may not call the pipeline. A weight that stages share is stepped with the first of them, when the gradients of all
  /// uses are pushed; the others find no gradient of it. Without a gate over all stages (docs/semantics.md, 15) a
  /// stage's weights may step in a step that fails in another.
  std::function<void(int stage)> update = {};
};

namespace detail {
struct SharedWeights;
}

/// A model in stages. step() pushes and returns; the engine runs the actions through their dependencies alone. A
/// pipeline is used by one thread at a time.
///
/// Stages may share weights: their modules hold one array when the pipeline is made, on whatever devices they are.
///
///   head->weight = embedding->weight;
///   parallel::Pipeline net{{embedding, cpu(0)}, {middle, cpu(1)}, {head, cpu(2)}};
///   Sgd sgd(net.parameters(), {.lr = .1});     // lists the weight once, as "weight" of the first stage
///
/// The first stage that has it owns it: the array lies on its device, and .grad() and the optimiser's state are there.
/// Between calls all modules hold this array; step() and forward() bring its value to the other devices, and while they
/// call a stage's module, it holds what is on its device. The gradients of all uses are added one by one, in the order
/// of the model (TiedWeight in schedule/action_lists.h), so the bits are those of one device, wherever stages are cut;
/// hooks of on_gradient() on the weight are not called. Stages on different devices may also share a module, if its
/// parameters are all that it has. What is bound to another array later (net.weight = w) is refused by the next call.
class Pipeline {
 public:
  /// Moves each module's parameters to its stage's device. What it pushes beside its modules' operators goes to the
  /// engine of the parameters. Throws UsageError for no stages, a null module, parameters of several engines, a device
  /// that the engine does not have, or two views of one array in different stages.
  Pipeline(std::initializer_list<Stage> stages, LossFunction loss = {});
  explicit Pipeline(std::vector<Stage> stages, LossFunction loss = {});

  int stages() const { return static_cast<int>(stages_.size()); }
  const Stage& stage(int i) const { return stages_[static_cast<std::size_t>(i)]; }
  /// All stages' parameters, stage by stage; a weight that stages share once, as the first one's.
  std::vector<NamedParameter> parameters() const;
  /// Those of them that are the stage's: what `update` steps.
  std::vector<NamedParameter> parameters(int stage) const;

  /// Forward and backward passes of all microbatches of (x, target), split along axis 0 as evenly as can be. Adds to
  /// the parameters' gradients, bitwise as if the microbatches ran one after another on one device (docs/semantics.md,
  /// 22), with the random numbers of microbatch_draws.h. Returns the batch's loss: a scalar on the last stage's device.
  /// Does not wait. What a stage pushes is in the layer "stage 1.microbatch 2", which errors name, above the layers of
  /// the module. Throws ArrayError where x and target differ in length or have fewer rows than microbatches, and where
  /// a stage, the loss or `update` calls a function that waits (operators/waiting.h); and std::invalid_argument for a
  /// schedule that verify() refuses, that has U and no `update` is given, or `update` and no U, whose devices have
  /// stages that are on different devices here, or whose tied weights the stages do not share.
  NDArray step(const NDArray& x, const NDArray& target, const PipelineStep& options = {},
               std::source_location where = std::source_location::current());
  /// The forward pass alone, not recorded: the output, on the last stage's device. Does not wait, and throws as step()
  /// where a stage would.
  NDArray forward(const NDArray& x, std::source_location where = std::source_location::current()) const;

  /// step_number() is the number of the latest step, counting from 1. boxes() reads from a trace, for each action of a
  /// step, the time from the start of its first op to the end of its last, in seconds. On a device with streams
  /// these are the device's times; where it gives none an op begins when the one before it is over, and is over when
  /// the host learnt it.
  std::uint64_t step_number() const { return step_; }
  std::vector<TimelineBox> boxes(std::span<const TraceEvent> events, std::uint64_t step) const;

 private:
  struct Plan {
    Schedule schedule;
    std::vector<Action> order;
    std::vector<bool> later;  ///< for each stage: its device has an earlier one too
    std::shared_ptr<const detail::SharedWeights> weights;
    std::vector<bool> sums;                    ///< for each stage: gradients are not added as they come
    bool updates = false;                      ///< it has U actions
    std::vector<std::vector<Variable>> saved;  ///< for each stage its ring of slots; empty: no bound
    std::vector<std::vector<Variable>> kept;
  };
  class Turn;
  const Plan& plan(const PipelineStep& options);
  void check_devices(const Schedule& schedule) const;
  void check() const;

  std::vector<Stage> stages_;
  Engine* engine_;  ///< that of the parameters; without any the default one
  std::shared_ptr<const detail::SharedWeights> shared_;
  std::vector<Variable> sequences_;  ///< one for each stage's device: push order is the schedule
  std::vector<Variable> forwards_;   ///< one for each stage: in a free order its forwards run in turn
  LossFunction loss_;
  Plan plan_;
  std::uint64_t step_ = 0;
};

}  // namespace sluice::parallel
