// Pipelines: a net in stages on devices, trained microbatch by microbatch in the order of a schedule.
//
//   nn::Optimizer opt(net, nn::Sgd{.lr = 0.1});
//   parallel::Pipeline pipeline(net, x.spec(), {.devices = {cpu(0), cpu(1)}});
//   for (...) {
//     const nn::Training on(stream);
//     NDArray loss = pipeline.step(x, y, {.microbatches = 8, .schedule = parallel::zb_h1, .optimizer = &opt});
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/ndarray/nd_array.h"
#include "sluice/nn/net/net.h"
#include "sluice/nn/net/stages.h"
#include "sluice/nn/optim/optimizer.h"
#include "sluice/parallel/loss.h"
#include "sluice/schedule/action_lists.h"
#include "sluice/schedule/generators.h"
#include "sluice/schedule/timeline.h"

namespace sluice::parallel {

struct PipelineOptions {
  std::vector<Device> devices;  ///< of each stage; several stages may be on one device
  /// The first of the net's functions (nn::Stages) of each stage, beginning with 0. Empty: stages of about as many
  /// functions each; parallel::plan finds better ones.
  std::vector<int> cut = {};
  Loss loss = {};  ///< cross_entropy, unless it is given: mse_loss, or any function
};

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

/// What happens to weights where a step fails in some part.
enum class Gate : std::uint8_t {
  all,  ///< one gate over all stages: all parameters, optimiser's states and statistics change, or none
  /// Each stage steps by itself as soon as it can, and may do so in a step that fails in another stage. Where errors
  /// of devices are found late, those of another device of the kind that were found by then keep it from it too.
  none,
};

struct PipelineStep {
  int microbatches = 1;
  ScheduleChoice schedule = one_f_one_b;
  ActionOrder order = ActionOrder::listed;
  /// Steps with the gradients of the step. Null: gradients are added to those that are there, and the program steps.
  nn::Optimizer* optimizer = nullptr;
  /// Above 0: nn::clip_gradients by it first, over all stages. Needs an optimizer and Gate::all.
  double max_norm = 0;
  /// Gate::none steps a stage in its U action, which the schedule gets at the end of its device's list where it has
  /// none (with_updates() in generators.h). With Gate::all a U action is what its stage commits behind the one gate.
  Gate gate = Gate::all;
};

namespace detail {
class NetFunctions;
struct SharedSlots;
}  // namespace detail

/// A net in stages. step() pushes and returns; the engine runs the actions through their dependencies alone. A pipeline
/// refers to the net's parts, which must live as long and stay where they are. It is used by one thread at a time, and
/// nobody uses the net beside it.
///
/// Each parameter, statistic and constant lies on the device of the first stage that reads it, which owns it: its
/// gradient and the optimiser's state are there. Between calls the net is what it always is: it can be saved, printed,
/// and called, where its devices allow that. What several stages read, such as an embedding that is the head too, is
/// listed once. step() and forward() bring its value to the other devices. The gradients of all uses are added one by
/// one, in the order of the net (TiedWeight in schedule/action_lists.h), so the bits are those of one device, wherever
/// it is cut; hooks of on_gradient() on such a parameter are not called, nor
/// are those on an input of a stage that is given several arrays.
///
/// Statistics (nn::BatchNorm) are written in copies during a step, microbatch by microbatch, and become the net's at
/// its end: behind the optimiser's gate, so that a step that fails leaves them as they were. One stage reads a
/// statistic.
class Pipeline {
 public:
  /// Cuts net.stages() into stages, and moves what each one reads to its device. Which that is, a dry run finds, in
  /// training and in evaluation, for an input of these specs; their number of rows does not matter afterwards, nor that
  /// of a step. Throws UsageError for no devices, a cut that does not fit, a device that the engine does not have, a
  /// slot without a value, values of several engines, a trained parameter that no function reads, and a statistic that
  /// several stages read; and what the functions throw.
  template <class Net>
  Pipeline(const Net& net, std::vector<Spec> input, PipelineOptions options,
           std::source_location where = std::source_location::current())
      : Pipeline(nn::contents(net), nn::stages_of(net), std::move(input), std::move(options), where) {}
  template <class Net>
  Pipeline(const Net& net, Spec input, PipelineOptions options,
           std::source_location where = std::source_location::current())
      : Pipeline(net, std::vector<Spec>{std::move(input)}, std::move(options), where) {}
  Pipeline(nn::Contents net, nn::Stages functions, std::vector<Spec> input, PipelineOptions options,
           std::source_location where = std::source_location::current());
  /// Of a net that is gone when the call is over.
  template <class Net>
  Pipeline(const Net&&, std::vector<Spec>, PipelineOptions) = delete;
  template <class Net>
  Pipeline(const Net&&, Spec, PipelineOptions) = delete;
  explicit Pipeline(std::unique_ptr<detail::NetFunctions> net, PipelineOptions options, std::source_location where);
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  int stages() const { return static_cast<int>(devices_.size()); }
  /// These throw std::out_of_range.
  Device device(int stage) const { return devices_.at(static_cast<std::size_t>(stage)); }
  /// The first function of the stage, and the one behind its last.
  std::pair<int, int> functions(int stage) const;
  /// The parameters that the stage owns.
  std::vector<nn::Named> parameters(int stage) const;

  /// Forward and backward passes of all microbatches of (x, target), split along axis 0 as evenly as can be, and the
  /// optimiser's step. Adds to the parameters' gradients, bitwise as if the microbatches ran one after another on one
  /// device (docs/semantics.md, 22), in scopes of nn::Microbatch and MicrobatchDraws::Scope. The caller's nn::Training
  /// holds. Returns the batch's loss: a scalar on the last stage's device. Does not wait. What a stage pushes is in the
  /// layer "stage 1.microbatch 2", which errors name, above the layers of the net.
  ///
  /// Throws ArrayError where x and target differ in length or have fewer rows than microbatches, where they want
  /// gradients (they are given none), in a NoGrad or nn::Evaluation scope, for an optimiser that trains no parameter of
  /// the net, and where a stage or the loss calls a function that waits (operators/waiting.h); UsageError where a stage
  /// reads a slot that it did not read in the dry run, inside of a step of the same pipeline, and what
  /// nn::Optimizer::step throws; and std::invalid_argument for a schedule that verify() refuses, that has U without an
  /// optimiser, whose devices have stages that are on different devices here, or whose tied weights the stages do not
  /// share, and for options that do not go together. After an exception the parameters' gradients are those of before,
  /// but that with Gate::none a stage that was stepped has stepped.
  NDArray step(const nn::Arrays& x, const NDArray& target, const PipelineStep& options = {},
               std::source_location where = std::source_location::current());
  NDArray step(const NDArray& x, const NDArray& target, const PipelineStep& options = {},
               std::source_location where = std::source_location::current()) {
    return step(nn::Arrays{x}, target, options, where);
  }
  /// The forward pass alone, not recorded, in evaluation: the output, on the last stage's device. Does not wait, and
  /// throws as step() where a stage would.
  NDArray forward(const nn::Arrays& x, std::source_location where = std::source_location::current()) const;
  NDArray forward(const NDArray& x, std::source_location where = std::source_location::current()) const {
    return forward(nn::Arrays{x}, where);
  }

  /// The norm of all gradients before the latest step with max_norm clipped them: a scalar of f64. An empty handle
  /// without one.
  const NDArray& gradient_norm() const { return norm_; }

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
    std::shared_ptr<const detail::SharedSlots> shared;
    std::vector<bool> sums;                    ///< for each stage: gradients are not added as they come
    bool updates = false;                      ///< it has U actions
    std::vector<std::vector<Variable>> saved;  ///< for each stage its ring of slots; empty: no bound
    std::vector<std::vector<Variable>> kept;
    /// In a fixed order, of devices with streams: slots for what an action of a stage's device receives, and for what
    /// a stage has given and the next one, or the one before, has not received. Empty: no bound.
    std::vector<std::vector<Variable>> received, given_up, given_down;
  };
  class Turn;
  class Step;
  std::shared_ptr<const Plan> plan(const PipelineStep& options);
  void bound_transfers(Plan& plan) const;
  void check() const;
  void check_devices(const Schedule& schedule) const;

  std::vector<Device> devices_;
  std::vector<int> first_;  ///< of each stage, and the number of functions
  std::shared_ptr<const detail::NetFunctions> net_;
  Engine* engine_;  ///< that of the values; without any the default one
  std::shared_ptr<const detail::SharedSlots> shared_;
  std::vector<Variable> sequences_;  ///< one for each stage's device: push order is the schedule
  std::vector<Variable> forwards_;   ///< one for each stage: in a free order its forwards run in turn
  Loss loss_;
  std::shared_ptr<const Plan> plan_;
  bool in_step_ = false;
  NDArray norm_;
  std::uint64_t step_ = 0;
};

}  // namespace sluice::parallel
