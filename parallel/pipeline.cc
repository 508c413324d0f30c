// Pushing a schedule's actions: in an order in which each one's inputs were pushed before.
#include "sluice/parallel/pipeline.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sluice/autograd/autograd.h"
#include "sluice/autograd/checkpoint.h"
#include "sluice/autograd/halves.h"
#include "sluice/engine/layer.h"
#include "sluice/ndarray/push.h"
#include "sluice/operators/operators.h"
#include "sluice/parallel/gradient_sum.h"
#include "sluice/parallel/tied_weights.h"
#include "sluice/resources/microbatch_draws.h"
#include "sluice/schedule/program_order.h"
#include "sluice/schedule/verify.h"

namespace sluice::parallel {
namespace {

/// Trace tags: the step above, the action below (plus one: 0 is no action).
constexpr int kActionBits = 24;

std::uint64_t tag_of(std::uint64_t step, const Schedule& schedule, const Action& action) {
  return step << kActionBits | static_cast<std::uint64_t>(index_of(schedule, action) + 1);
}

/// What one microbatch leaves between its actions; a stage's part is dropped by its backward action.
struct Passage {
  NDArray input;  ///< of the stage: a leaf, so that its gradient can be sent back
  NDArray output;
  WeightGradients weights;  ///< between I and W
  bool recorded = true;     ///< false in a first stage without weights: its backward pass has nothing to do
};

/// What errors and traces call the action's part of the model; a step belongs to no microbatch.
std::string layer_of(const Action& action) {
  if (row_of(action.kind).of_stage) return "stage " + std::to_string(action.stage);
  return detail::layer_of(action.stage, action.microbatch);
}

/// A ring's variables, one for each slot.
std::vector<Variable> ring_of(Engine& engine, int slots) {
  std::vector<Variable> ring;
  for (int i = 0; i < slots; ++i) ring.push_back(engine.variable("pipeline slot"));
  return ring;
}

Engine& engine_of(const std::vector<Stage>& stages) {
  Engine* engine = nullptr;
  for (const Stage& stage : stages) {
    if (!stage.module) throw UsageError("[Pipeline] a stage has no module");
    for (const NamedParameter& parameter : stage.module->parameters()) {
      Engine& own = parameter.value->engine();
      if (engine && engine != &own) throw UsageError("[Pipeline] '" + parameter.name + "' is of another engine");
      engine = &own;
    }
  }
  return engine ? *engine : default_engine();
}

}  // namespace

/// While it lives, the thread's pushes are those of an action: in their turn on the device, or, in a free order, with
/// the action's priority. There the action's operations run one after another under the variable of a slot. A forward
/// shares its slot with what frees it, which was pushed before: so it waits until that is over.
class Pipeline::Turn {
 public:
  Turn(const Pipeline& net, const Plan& plan, const Action& action, bool free)
      : engine_(*net.engine_),
        device_(net.stage(action.stage).device),
        scope_(device_),
        tag_(tag_of(net.step_, plan.schedule, action)),
        layer_(layer_of(action)),
        joins_at_end_(!gives(action.kind, Result::output)) {
    current_scope().flags |= kNoWaitFlag;  // until the device's scope ends
    const auto s = static_cast<std::size_t>(action.stage);
    if (!free) {
      sequence_.emplace(net.sequences_[s]);
      return;
    }
    // There are too few priorities for the order of the device's list. Forwards of its later stages come first.
    priority_.emplace(row_of(action.kind).priority + (!joins_at_end_ && plan.later[s] ? 1 : 0));
    const auto slot = [&](const std::vector<Variable>& ring, Result freed) {
      if (ring.empty() || (joins_at_end_ && !gives(action.kind, freed))) return;
      slots_.push_back(ring[static_cast<std::size_t>(action.microbatch) % ring.size()]);
    };
    slot(plan.saved[s], Result::input_gradient);
    slot(plan.kept[s], Result::weight_gradient);
    if (!joins_at_end_) {
      // A stage's forwards run one after another: else several whose weights come at once alternate, and the last ones
      // overtake the first.
      slots_.push_back(net.forwards_[s]);
      join();
    }
    if (!slots_.empty()) sequence_.emplace(joins_at_end_ ? slots_.front() : slots_.back());
  }
  /// A whole backward pass frees two slots, when its last operation is over.
  ~Turn() noexcept(false) {
    sequence_.reset();
    if (joins_at_end_) join();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  void join() const {
    if (slots_.size() < 2) return;
    std::vector<Access> all;
    for (const Variable& slot : slots_) all.push_back(order(slot));
    engine_.push([] {}, std::span<const Access>(all), {.on = device_, .name = "pipeline slots"});
  }

  Engine& engine_;
  Device device_;
  DeviceScope scope_;
  TagScope tag_;
  LayerScope layer_;
  bool joins_at_end_;
  std::optional<PriorityScope> priority_;
  std::optional<SequenceScope> sequence_;
  std::vector<Variable> slots_;
};

ScheduleChoice::ScheduleChoice(Schedule schedule)
    : make_([s = std::move(schedule)](int stages, int microbatches) {
        if (s.stages != stages || s.microbatches != microbatches) {
          throw std::invalid_argument("schedule '" + s.name + "' is for " + std::to_string(s.stages) + " stages and " +
                                      std::to_string(s.microbatches) + " microbatches, and the pipeline has " +
                                      std::to_string(stages) + " and " + std::to_string(microbatches));
        }
        return s;
      }) {}

Schedule ScheduleChoice::make(int stages, int microbatches) const {
  if (!make_) throw std::invalid_argument("a step needs a schedule: the function that is to make it is empty");
  Schedule made = make_(stages, microbatches);
  if (made.stages == stages && made.microbatches == microbatches) return made;
  return ScheduleChoice(std::move(made)).make_(stages, microbatches);
}

Pipeline::Pipeline(std::initializer_list<Stage> stages, LossFunction loss)
    : Pipeline(std::vector<Stage>(stages), std::move(loss)) {}

Pipeline::Pipeline(std::vector<Stage> stages, LossFunction loss)
    : stages_(std::move(stages)), engine_(&engine_of(stages_)), loss_(std::move(loss)) {
  check();
  if (!loss_)
    loss_ = [](const NDArray& output, const NDArray& target, double divisor) {
      return cross_entropy(output, target, divisor);
    };
  std::map<std::pair<DeviceKind, int>, Variable> by_device;
  shared_ = std::make_shared<detail::SharedWeights>(detail::move_stages(stages_));
  for (const Stage& stage : stages_) {
    Variable& sequence = by_device[{stage.device.kind, stage.device.index}];
    if (!sequence) sequence = engine_->variable("pipeline device");
    sequences_.push_back(sequence);
    forwards_.push_back(engine_->variable("pipeline forwards"));
  }
}

void Pipeline::check() const {
  if (stages_.empty()) throw UsageError("[Pipeline] no stages");
  for (const Stage& stage : stages_) {
    if (stage.device.index >= engine_->device_count(stage.device.kind))
      throw UsageError("[Pipeline] no device " + sluice::to_string(stage.device) + " in this engine");
  }
}

std::vector<NamedParameter> Pipeline::parameters() const {
  std::vector<NamedParameter> all;
  for (int s = 0; s < stages(); ++s) std::ranges::move(parameters(s), std::back_inserter(all));
  return all;
}

std::vector<NamedParameter> Pipeline::parameters(int stage) const { return detail::owned_parameters(stages_, stage); }

const Pipeline::Plan& Pipeline::plan(const PipelineStep& options) {
  Plan made;
  made.schedule = options.schedule.make(stages(), options.microbatches);
  detail::SharedWeights weights = detail::weights_of(made.schedule, *shared_, stages_);
  if (made.schedule != plan_.schedule) {
    verify(made.schedule);
    check_devices(made.schedule);
    made.sums = detail::stages_with_sums(made.schedule);
    made.weights = std::make_shared<detail::SharedWeights>(std::move(weights));
    made.order = program_order(made.schedule);
    made.updates = std::ranges::any_of(made.order, [](const Action& a) { return gives(a.kind, Result::weights); });
    made.later.resize(stages_.size());
    for (const auto& actions : made.schedule.per_device) {
      int first = stages();
      for (const Action& a : actions) first = std::min(first, a.stage);
      for (const Action& a : actions) made.later[static_cast<std::size_t>(a.stage)] = a.stage > first;
    }
    for (int s = 0; s < stages(); ++s) {
      const Rings rings = made.schedule.rings.empty() ? Rings{} : made.schedule.rings[static_cast<std::size_t>(s)];
      made.saved.push_back(ring_of(*engine_, rings.saved));
      made.kept.push_back(ring_of(*engine_, rings.kept));
    }
    plan_ = std::move(made);
  }
  if (plan_.updates != static_cast<bool>(options.update)) {
    throw std::invalid_argument("schedule '" + plan_.schedule.name + "' has " +
                                (plan_.updates ? "U actions, and the step has no `update` for them"
                                               : "no U actions, and the step has an `update` for them"));
  }
  return plan_;
}

void Pipeline::check_devices(const Schedule& schedule) const {
  for (const auto& actions : schedule.per_device) {
    for (const Action& a : actions) {
      const int first = actions.front().stage;
      if (stage(a.stage).device == stage(first).device) continue;
      throw std::invalid_argument("schedule '" + schedule.name + "' has the stages " + std::to_string(first) + " and " +
                                  std::to_string(a.stage) + " on one device, and the pipeline has them on " +
                                  sluice::to_string(stage(first).device) + " and " +
                                  sluice::to_string(stage(a.stage).device));
    }
  }
}

NDArray Pipeline::step(const NDArray& x, const NDArray& target, const PipelineStep& options,
                       std::source_location where) {
  x.checked("pipeline", where);
  target.checked("pipeline", where);
  const int m = options.microbatches;
  const std::int64_t rows = x.size(0, where);
  if (target.size(0, where) != rows)
    throw ArrayError("pipeline", where,
                     to_string(x.shape()) + " with targets " + to_string(target.shape()) + ": lengths differ");
  if (rows < m)
    throw ArrayError("pipeline", where, std::to_string(rows) + " rows for " + std::to_string(m) + " microbatches");
  const Plan& plan = this->plan(options);
  ++step_;
  const auto first_row = [&](int k) { return rows / m * k + std::min<std::int64_t>(k, rows % m); };
  const int last = stages() - 1;
  // A checkpoint's function may be held longer than the step.
  const auto copies = std::make_shared<detail::Copies>(*plan.weights, stages_);
  detail::TiedSums tied(*plan.weights, *copies, plan.schedule);
  std::vector<std::vector<Passage>> passages(stages_.size());
  for (auto& of_stage : passages) of_stage.resize(static_cast<std::size_t>(m));
  std::vector<NDArray> losses(static_cast<std::size_t>(m));
  std::vector<std::optional<detail::GradientSum>> sums(stages_.size());
  const MicrobatchDraws draws;

  // Transfers stand outside of a device's sequence: they run as soon as they can.
  const bool free = options.order == ActionOrder::ready || !plan.schedule.fixed_order;
  const Order order(plan.schedule);
  const auto send = [](const NDArray& value, const Action& action, Device device) {
    const NoGrad no_grad;
    const LayerScope layer(layer_of(action));
    return value.detach().to(device);
  };

  for (const Action& action : plan.order) {
    const Device device = stages_[static_cast<std::size_t>(action.stage)].device;
    const auto k = static_cast<std::size_t>(action.microbatch);
    auto& here = passages[static_cast<std::size_t>(action.stage)][k];
    if (action.kind == ActionKind::forward) {
      NDArray labels;
      if (action.stage == 0) {
        here.input = send(x.narrow(0, first_row(action.microbatch), first_row(action.microbatch + 1)), action, device);
      } else {
        here.input = send(passages[static_cast<std::size_t>(action.stage) - 1][k].output, action, device).with_grad();
      }
      if (action.stage == last)
        labels = send(target.narrow(0, first_row(action.microbatch), first_row(action.microbatch + 1)), action, device);
      const Turn turn(*this, plan, action, free);
      const MicrobatchDraws::Scope microbatch(draws, action.microbatch);
      const auto forward = [this, copies, labels, rows, s = action.stage](const NDArray& input) {
        const detail::Copies::InStage weights(*copies, s);
        const NDArray output = (*stages_[static_cast<std::size_t>(s)].module)(input);
        return labels.defined() ? loss_(output, labels, static_cast<double>(rows)) : output;
      };
      here.output = order.recomputes(action.stage, action.microbatch) ? checkpoint(forward, here.input, where)
                                                                      : forward(here.input);
      here.recorded = action.stage > 0 || here.output.requires_grad();
      if (action.stage == last) losses[k] = here.output.detach();
      continue;
    }
    if (action.kind == ActionKind::recompute) {
      const Turn turn(*this, plan, action, free);
      compute_again(here.output);
      continue;
    }
    if (action.kind == ActionKind::step) {
      const Turn turn(*this, plan, action, free);
      const detail::OthersHidden others(*plan.weights, action.stage);
      options.update(action.stage);
      continue;
    }
    // Where gradients are not added as they come, those of one microbatch are set apart.
    std::optional<detail::GradientSum>& sum = sums[static_cast<std::size_t>(action.stage)];
    if (plan.sums[static_cast<std::size_t>(action.stage)] && !sum) {
      sum.emplace(plan.schedule.sum, m,
                  detail::untied_leaves(*plan.weights, stages_[static_cast<std::size_t>(action.stage)], action.stage));
    }
    NDArray gradient;
    if (action.kind != ActionKind::weight_gradient && action.stage != last) {
      NDArray& above = passages[static_cast<std::size_t>(action.stage) + 1][k].input;
      if (here.recorded) gradient = send(above.grad(), action, device);
      above = {};
    }
    {
      const Turn turn(*this, plan, action, free);
      const detail::TiedSums::Listen uses(tied, action.stage);
      if (!here.recorded) {
        // A first stage without weights.
      } else if (action.kind == ActionKind::backward) {
        backward({here.output}, {gradient}, {}, where);
      } else if (action.kind == ActionKind::input_gradient) {
        // The first stage's input wants no gradient; then all of the work is in the second half.
        here.weights = backward_inputs({here.output}, {gradient}, {here.input}, {}, where);
      } else {
        here.weights.run(where);
        here.weights = {};
      }
      if (sum && gives(action.kind, Result::weight_gradient)) sum->take_from_leaves(action.microbatch);
    }
    if (gives(action.kind, Result::weight_gradient)) tied.arrive(action.stage, action.microbatch);
    here.output = {};
    if (action.stage == 0) here.input = {};
  }
  NoGrad no_grad;
  DeviceScope device(stages_.back().device);
  return add_n(losses, where);
}

NDArray Pipeline::forward(const NDArray& x, std::source_location where) const {
  x.checked("pipeline", where);
  NoGrad no_grad;
  const detail::Copies copies(*shared_, stages_);
  NDArray value = x;
  for (int s = 0; s < stages(); ++s) {
    const DeviceScope device(stage(s).device);
    current_scope().flags |= kNoWaitFlag;
    const detail::Copies::InStage weights(copies, s);
    value = (*stage(s).module)(value.to(stage(s).device));
  }
  return value;
}

std::vector<TimelineBox> Pipeline::boxes(std::span<const TraceEvent> events, std::uint64_t step) const {
  std::map<std::uint64_t, TimelineBox> found;
  for (const auto& actions : plan_.schedule.per_device)
    for (const Action& a : actions) {
      TimelineBox box{a.kind, a.stage, a.microbatch, 0, 0};
      found.emplace(tag_of(step, plan_.schedule, a), box);
    }
  // An op on a stream has no box while it is issued. The device may say when it worked; else the op begins when the
  // device is over with the op before it.
  std::map<std::pair<DeviceKind, int>, std::int64_t> free_at;
  std::vector<const TraceEvent*> in_order;
  for (const TraceEvent& e : events) {
    if (e.lane == LaneKind::compute) in_order.push_back(&e);
  }
  std::stable_sort(in_order.begin(), in_order.end(), [](auto* a, auto* b) { return a->start < b->start; });
  for (const TraceEvent* const event : in_order) {
    const TraceEvent& e = *event;
    std::int64_t from = e.start, to = e.end;
    if (e.device_end != 0) {
      from = e.device_start;
      to = e.device_end;
    } else if (e.device.kind != DeviceKind::cpu) {
      std::int64_t& free = free_at[{e.device.kind, e.device.index}];
      from = std::max(from, free);
      free = to = std::max(from, e.done);
    }
    const auto it = found.find(e.tag);
    if (it == found.end()) continue;
    const double start = static_cast<double>(from) * 1e-9, end = static_cast<double>(to) * 1e-9;
    TimelineBox& box = it->second;
    box.start = box.end == 0 ? start : std::min(box.start, start);
    box.end = std::max(box.end, end);
  }
  std::vector<TimelineBox> boxes;
  for (auto& [tag, box] : found)
    if (box.end > 0) boxes.push_back(box);
  return boxes;
}

}  // namespace sluice::parallel
