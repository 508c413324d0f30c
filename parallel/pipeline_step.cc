// One step of a pipeline: pushing a schedule's actions, in an order in which each one's inputs were pushed before.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sluice/autograd/autograd.h"
#include "sluice/autograd/checkpoint.h"
#include "sluice/autograd/gradient_undo.h"
#include "sluice/autograd/halves.h"
#include "sluice/autograd/uses.h"
#include "sluice/engine/layer.h"
#include "sluice/ndarray/push.h"
#include "sluice/ndarray/scope_flags.h"
#include "sluice/nn/optim/clip.h"
#include "sluice/operators/operators.h"
#include "sluice/operators/pinned.h"
#include "sluice/parallel/action_names.h"
#include "sluice/parallel/gradient_sum.h"
#include "sluice/parallel/net_functions.h"
#include "sluice/parallel/pipeline.h"
#include "sluice/parallel/shared_slots.h"
#include "sluice/resources/microbatch_draws.h"

namespace sluice::parallel {
namespace {

/// What one microbatch leaves between its actions; a stage's part is dropped by its backward action.
struct Passage {
  nn::Arrays input;   ///< of the stage
  nn::Arrays leaves;  ///< for each input what it shows: a leaf where the stage before has gradients for it
  nn::Arrays output;  ///< of the last stage the loss
  nn::Arrays sent;    ///< for each output what went to the next stage of it; empty where an earlier one did
  /// For each input the gradients of its uses, where there are several inputs. The tape may hold it longer.
  std::vector<std::shared_ptr<nn::Arrays>> uses;
  WeightGradients weights;  ///< between I and W
  Variable over;            ///< where the stage before wants no gradients: its backward pass waits for it
  bool recorded = true;     ///< false where nothing wants gradients: the backward pass has nothing to do
};

bool shows_the_same(const NDArray& x, const NDArray& y) {
  return x.same_array(y) && x.offset() == y.offset() && x.shape() == y.shape() && x.strides() == y.strides();
}

/// The array of a handle, in the shape that it was made with.
NDArray whole(const NDArray& x) { return NDArray(x.array()); }

/// Whether an array goes over as a whole, and is seen there as here: so a view has its strides there too, and each of
/// its uses is a use of the array. A part of an array is packed for another device.
bool goes_whole(const NDArray& x, Device to) { return x.device() == to || x.array()->shape().count() <= x.count(); }

nn::Arrays wanting_gradients(const nn::Arrays& arrays) {
  nn::Arrays list;
  for (const NDArray& x : arrays) {
    if (x.requires_grad()) list.push_back(x);
  }
  return list;
}

}  // namespace

/// While it lives, the thread's pushes are those of an action: in their turn on the device, or, in a free order, with
/// the action's priority. There the action's operations run one after another under the variable of a slot. A forward
/// shares its slot with what frees it, which was pushed before: so it waits until that is over.
class Pipeline::Turn {
 public:
  Turn(const Pipeline& net, const Plan& plan, const Action& action, bool free, const std::source_location& where)
      : engine_(*net.engine_),
        where_(where),
        device_(net.device(action.stage)),
        scope_(device_),
        tag_(detail::tag_of(net.step_, action)),
        layer_(detail::layer_of(action)),
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
    engine_.push([] {}, std::span<const Access>(all), {.on = device_, .name = "pipeline slots"}, where_);
  }

  Engine& engine_;
  std::source_location where_;
  Device device_;
  DeviceScope scope_;
  TagScope tag_;
  LayerScope layer_;
  bool joins_at_end_;
  std::optional<PriorityScope> priority_;
  std::optional<SequenceScope> sequence_;
  std::vector<Variable> slots_;
};

/// One step while it is pushed.
class Pipeline::Step {
 public:
  Step(Pipeline& pipeline, std::shared_ptr<const Plan> plan, const nn::Arrays& x, const NDArray& target,
       const PipelineStep& options, std::source_location where)
      : pipeline_(pipeline),
        plan_of_step_(std::move(plan)),
        plan_(*plan_of_step_),
        x_(x),
        target_(target),
        options_(options),
        where_(where),
        rows_(target.size(0, where)),
        last_(pipeline.stages() - 1),
        free_(options.order == ActionOrder::ready || !plan_.schedule.fixed_order),
        order_(plan_.schedule),
        arrays_(std::make_shared<detail::StepArrays>(plan_.shared, pipeline.net_, pipeline.devices_, true, where)),
        tied_(*plan_.shared, *arrays_, plan_.schedule),
        passages_(pipeline.devices_.size()),
        loss_(pipeline.loss_.of_batch(target, where)),
        losses_(static_cast<std::size_t>(options.microbatches)),
        sums_(pipeline.devices_.size()),
        up_(pipeline.devices_.size()),
        down_(pipeline.devices_.size()) {
    for (auto& of_stage : passages_) of_stage.resize(losses_.size());
  }

  NDArray run() {
    for (const Action& action : plan_.order) {
      switch (action.kind) {
        case ActionKind::forward:
          forward(action);
          break;
        case ActionKind::recompute:
          recompute(action);
          break;
        case ActionKind::step:
          update(action);
          break;
        default:
          backward_or_half(action);
      }
    }
    NDArray loss;
    {
      const NoGrad no_grad;
      const DeviceScope device(pipeline_.devices_.back());
      loss = add_n(losses_, where_);
    }
    finish();
    before_.forget();
    return loss;
  }

 private:
  bool in_parts() const { return options_.optimizer && options_.gate == Gate::none; }
  Passage& passage(int stage, int microbatch) {
    return passages_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(microbatch)];
  }
  NDArray part(const NDArray& whole, int k) const {
    const auto first_row = [&](int m) {
      return rows_ / options_.microbatches * m + std::min<std::int64_t>(m, rows_ % options_.microbatches);
    };
    return whole.narrow(0, first_row(k), first_row(k + 1));
  }
  /// Transfers stand outside of a device's sequence: they run as soon as they can, or as Pipeline::bound_transfers
  /// says.
  NDArray send(const NDArray& value, const Action& action) {
    const NoGrad no_grad;
    const LayerScope layer(detail::layer_of(action));
    const Device to = pipeline_.device(action.stage);
    NDArray here = value.detach();
    const Variable* const slot = slot_of_turn(action);
    if (!slot) return here.to(to);
    // What is packed first need not wait for the device's turn.
    if (here.device() != to) {
      here = here.device().kind == DeviceKind::cpu ? sluice::detail::pinned(here, to, where_) : here.contiguous(where_);
    }
    const SequenceScope turn(*slot);
    return here.to(to);
  }

  // ---- what is under way between devices with streams (Pipeline::bound_transfers)

  /// What a stage has given, to the stage above or below, so far, what of that was sent, and the device's action that
  /// gave last.
  struct Given {
    std::size_t given = 0, sent = 0, turn = 0;
  };
  /// How many actions of the action's device were pushed before.
  std::size_t& turn_of(const Action& action) {
    return turns_[{pipeline_.device(action.stage).kind, pipeline_.device(action.stage).index}];
  }
  /// The slot of the device's present action; null where nothing is bound.
  const Variable* slot_of_turn(const Action& action) {
    if (free_ || plan_.received.empty()) return nullptr;
    const std::vector<Variable>& ring = plan_.received[static_cast<std::size_t>(action.stage)];
    return ring.empty() ? nullptr : &ring[turn_of(action) % ring.size()];
  }
  void push_nothing(const Action& action, LaneKind lane, const char* name,
                    std::initializer_list<Access> accesses) const {
    const TagScope of_no_action(0);                    // else the action's box would begin with a wait
    const LayerScope layer(detail::layer_of(action));  // a step that is cancelled may end here first
    pipeline_.engine_->push([] {}, accesses, {.on = {pipeline_.device(action.stage), lane}, .name = name}, where_);
  }
  /// Behind the action's transfers of what the other stage gave: it may give the next but one.
  void sent(const Action& action, int from) {
    const Variable* const slot = slot_of_turn(action);
    if (!slot || pipeline_.device(from) == pipeline_.device(action.stage)) return;
    const auto s = static_cast<std::size_t>(from);
    const std::vector<Variable>& ring = from < action.stage ? plan_.given_up[s] : plan_.given_down[s];
    if (ring.empty()) return;
    std::size_t& count = (from < action.stage ? up_ : down_)[s].sent;
    push_nothing(action, LaneKind::copy_peer, "pipeline sent", {order(*slot), order(ring[count++ % ring.size()])});
  }
  /// In the action's turn, before its operations.
  void begins(const Action& action) {
    const bool upwards = gives(action.kind, Result::output);
    const int to = action.stage + (upwards ? 1 : -1);
    if (!slot_of_turn(action) || to < 0 || to > last_) return;
    if (!upwards && !gives(action.kind, Result::input_gradient)) return;
    if (pipeline_.device(to) == pipeline_.device(action.stage)) return;
    if (plan_.received[static_cast<std::size_t>(to)].empty()) return;
    const auto s = static_cast<std::size_t>(action.stage);
    const std::vector<Variable>& ring = upwards ? plan_.given_up[s] : plan_.given_down[s];
    Given& so_far = (upwards ? up_ : down_)[s];
    const std::size_t turn = turn_of(action);
    const Variable &last = ring[(so_far.given + 1) % ring.size()], &before = ring[so_far.given % ring.size()];
    // What was given in the action before this one may be under way while this one runs.
    if (so_far.given > 0 && turn == so_far.turn + 1) {
      push_nothing(action, LaneKind::compute, "pipeline room", {order(before)});
    } else {
      push_nothing(action, LaneKind::compute, "pipeline room", {order(before), order(last)});
    }
    ++so_far.given;
    so_far.turn = turn;
  }
  /// In the action's turn, behind its operations: the next action but one may receive.
  void ends(const Action& action) {
    if (const Variable* slot = slot_of_turn(action))
      push_nothing(action, LaneKind::compute, "pipeline turn", {order(*slot)});
    ++turn_of(action);
  }

  void forward(const Action& action) {
    Passage& here = passage(action.stage, action.microbatch);
    if (action.stage == 0) {
      for (const NDArray& x : x_) here.input.push_back(send(part(x, action.microbatch), action));
    } else {
      Passage& from = passage(action.stage - 1, action.microbatch);
      const nn::Arrays& below = from.output;
      const Device to = pipeline_.device(action.stage);
      here.uses.resize(below.size());
      from.sent.resize(below.size());
      for (std::size_t i = 0; i < below.size(); ++i) {
        const NDArray& y = below[i];
        const bool is_whole = goes_whole(y, to);
        // Two handles of one array stay so: the order of its uses counts.
        const auto same = std::ranges::find_if(below, [&](const NDArray& z) {
          return z.same_array(y) && (goes_whole(z, to) ? is_whole : shows_the_same(z, y));
        });
        if (const auto k = static_cast<std::size_t>(same - below.begin()); k < i) {
          here.leaves.push_back(here.leaves[k]);
        } else {
          from.sent[i] = is_whole ? whole(y) : y;
          NDArray leaf = send(from.sent[i], action);
          if (y.requires_grad()) {
            leaf.with_grad();
            // The stage below may use it too, before: then the gradients of all uses are added one by one, in order.
            if (below.size() > 1) {
              here.uses[i] = std::make_shared<nn::Arrays>();
              on_uses(leaf, [uses = here.uses[i]](const nn::Arrays& terms) { *uses = terms; });
            }
          }
          here.leaves.push_back(std::move(leaf));
        }
        const NDArray& leaf = here.leaves[i];
        here.input.push_back(!is_whole ? leaf
                                       : leaf.strided(y.shape(), y.strides(), y.offset() - y.array()->base_offset()));
      }
    }
    NDArray labels;
    if (action.stage == last_) labels = send(part(target_, action.microbatch), action);
    if (action.stage > 0) sent(action, action.stage - 1);
    const Turn turn(pipeline_, plan_, action, free_, where_);
    begins(action);
    const MicrobatchDraws::Scope draws(draws_, action.microbatch);
    const nn::Microbatch number(action.microbatch);
    // A checkpoint's function may be held longer than the step.
    const auto f = [net = pipeline_.net_, loss = loss_, range = pipeline_.functions(action.stage), arrays = arrays_,
                    labels, s = action.stage](const std::vector<NDArray>& input) {
      const detail::ReadsOf reads = arrays->in_stage(s);
      nn::Arrays output = net->call(range, input);
      if (!labels.defined()) return output;
      return nn::Arrays{loss(only(output), labels)};
    };
    here.output =
        order_.recomputes(action.stage, action.microbatch) ? checkpoint(f, here.input, where_) : f(here.input);
    here.recorded = !wanting_gradients(here.output).empty();
    if (action.stage == last_) losses_[static_cast<std::size_t>(action.microbatch)] = here.output[0].detach();
    ends(action);
  }

  void recompute(const Action& action) {
    const Turn turn(pipeline_, plan_, action, free_, where_);
    const Passage& here = passage(action.stage, action.microbatch);
    for (const NDArray& y : wanting_gradients(here.output)) compute_again(y);
    ends(action);
  }

  void update(const Action& action) {
    if (!in_parts()) return;
    const Turn turn(pipeline_, plan_, action, free_, where_);
    const nn::detail::StepPart part = part_of(action.stage);
    options_.optimizer->step({part}, false, where_);
    // What was stepped has used its gradients up.
    for (const nn::Named& slot : pipeline_.net_->slots()) {
      if (part.parameters->contains(slot.state.get())) before_.forget(slot.state->value);
    }
  }

  nn::detail::StepPart part_of(int stage) const {
    return {.parameters = &plan_.shared->stages[static_cast<std::size_t>(stage)].states,
            .commits = arrays_->written(stage)};
  }

  void backward_or_half(const Action& action) {
    Passage& here = passage(action.stage, action.microbatch);
    // Where gradients are not added as they come, those of one microbatch are set apart.
    std::optional<detail::GradientSum>& sum = sums_[static_cast<std::size_t>(action.stage)];
    if (plan_.sums[static_cast<std::size_t>(action.stage)] && !sum) {
      sum.emplace(plan_.schedule.sum, options_.microbatches,
                  detail::untied_leaves(*plan_.shared, *pipeline_.net_, action.stage));
    }
    nn::Arrays roots, gradients;
    if (here.recorded && action.kind != ActionKind::weight_gradient) {
      if (action.stage == last_) {
        roots = here.output;
        gradients.resize(1);
      } else {
        take_gradients(action, here, roots, gradients);
      }
      here.recorded = !roots.empty();
    }
    {
      if (here.recorded && action.kind != ActionKind::weight_gradient && action.stage < last_) {
        sent(action, action.stage + 1);
      }
      const Turn turn(pipeline_, plan_, action, free_, where_);
      begins(action);
      const detail::ReadsOf reads = arrays_->in_stage(action.stage);  // for checkpoints inside of the net
      const detail::TiedSums::Listen uses(tied_, action.stage);
      if (!here.recorded) {
        // Nothing wants gradients. It takes its turn all the same, behind the stage above: else forwards run ahead.
        if (action.stage < last_ && action.kind != ActionKind::weight_gradient) {
          pass(action, read(passage(action.stage + 1, action.microbatch).over));
        }
      } else if (action.kind == ActionKind::backward) {
        backward(roots, gradients, {}, where_);
      } else if (action.kind == ActionKind::input_gradient) {
        // The first stage's input wants no gradient; then all of the work is in the second half.
        here.weights = backward_inputs(roots, gradients, wanting_gradients(here.leaves), {}, where_);
      } else {
        here.weights.run(where_);
        here.weights = {};
      }
      if (sum && gives(action.kind, Result::weight_gradient)) sum->take_from_leaves(action.microbatch);
      if (action.stage > 0 && gives(action.kind, Result::input_gradient) && wanting_gradients(here.leaves).empty()) {
        here.over = pipeline_.engine_->variable("pipeline pass");
        pass(action, write(here.over));
      }
      ends(action);
    }
    if (gives(action.kind, Result::weight_gradient)) tied_.arrive(action.stage, action.microbatch);
    here.output.clear();
    here.sent.clear();
    if (action.stage == 0) {
      here.input.clear();
      return;
    }
    // Where nothing below wants gradients nobody comes for them.
    if (wanting_gradients(here.leaves).empty()) {
      here.input.clear();
      here.leaves.clear();
    }
  }

  void pass(const Action& action, const Access& access) const {
    if (!access.variable) return;
    pipeline_.engine_->push([] {}, {access}, {.on = pipeline_.device(action.stage), .name = "pipeline pass"}, where_);
  }

  /// What the stage above has for the outputs of this one. Its inputs are not needed any more.
  void take_gradients(const Action& action, const Passage& here, nn::Arrays& roots, nn::Arrays& gradients) {
    Passage& above = passage(action.stage + 1, action.microbatch);
    for (std::size_t i = 0; i < above.leaves.size(); ++i) {
      if (!here.sent[i].defined() || !above.leaves[i].requires_grad()) continue;
      nn::Arrays terms;
      if (above.uses[i]) {
        terms = std::move(*above.uses[i]);
      } else if (const NDArray gradient = above.leaves[i].grad(); gradient.defined()) {
        terms = {gradient};
      }
      for (const NDArray& term : terms) {
        roots.push_back(here.sent[i]);
        gradients.push_back(send(term, action));
      }
    }
    above.leaves.clear();
    above.input.clear();
    above.uses.clear();
  }

  /// The step of all stages, or what is left of it.
  void finish() {
    if (in_parts()) {
      nn::detail::StepPart rest;  // what the optimiser has beside the net
      for (const detail::StageSlots& stage : plan_.shared->stages) rest.except.push_back(&stage.states);
      options_.optimizer->step({rest}, true, where_);
      return;
    }
    if (!options_.optimizer) {
      const NoGrad no_grad;
      for (const auto& [value, target] : arrays_->written()) {
        const DeviceScope scope(target.device());
        target.assign(value);
      }
      return;
    }
    if (options_.max_norm > 0) {
      nn::Contents all;
      all.slots = pipeline_.net_->slots();
      for (const nn::Named& slot : all.slots) before_.note(slot.state->value);  // it is scaled in place
      pipeline_.norm_ = nn::detail::clip_gradients(all, options_.max_norm, where_);
    }
    std::vector<nn::detail::StepPart> parts;
    for (int s = 0; s <= last_; ++s) {
      parts.push_back(part_of(s));
      if (!plan_.updates) continue;
      parts.back().around = [this, s](const std::function<void()>& f) {
        const Turn turn(pipeline_, plan_, {ActionKind::step, s, 0}, free_, where_);
        f();
      };
    }
    parts.push_back({});  // what the optimiser has beside the net
    options_.optimizer->step(parts, true, where_);
  }

  static const NDArray& only(const nn::Arrays& output) {
    if (output.size() == 1) return output[0];
    throw UsageError("[Pipeline] the last function gives " + std::to_string(output.size()) +
                     " arrays, and the loss takes one");
  }

  Pipeline& pipeline_;
  std::shared_ptr<const Plan> plan_of_step_;
  const Plan& plan_;
  const nn::Arrays& x_;
  const NDArray& target_;
  const PipelineStep& options_;
  std::source_location where_;
  std::int64_t rows_;
  int last_;
  bool free_;
  Order order_;
  std::shared_ptr<const detail::StepArrays> arrays_;
  GradientUndo before_;  // before all that changes gradients
  detail::TiedSums tied_;
  std::vector<std::vector<Passage>> passages_;
  Loss::OfMicrobatch loss_;
  nn::Arrays losses_;
  std::vector<std::optional<detail::GradientSum>> sums_;
  MicrobatchDraws draws_;
  std::map<std::pair<DeviceKind, int>, std::size_t> turns_;  ///< of each device, how many of its actions are pushed
  std::vector<Given> up_, down_;                             ///< of each stage
};

NDArray Pipeline::step(const nn::Arrays& x, const NDArray& target, const PipelineStep& options,
                       std::source_location where) {
  check();
  target.checked("pipeline", where);
  if (x.empty()) throw ArrayError("pipeline", where, "no input");
  for (const NDArray& one : x) {
    one.checked("pipeline", where);
    if (one.requires_grad() || target.requires_grad()) {
      throw ArrayError("pipeline", where,
                       "an input or a target that wants gradients: a pipeline gives them none; use detach()");
    }
    if (one.size(0, where) != target.size(0, where)) {
      throw ArrayError("pipeline", where,
                       to_string(one.shape()) + " with targets " + to_string(target.shape()) + ": lengths differ");
    }
  }
  if (target.size(0, where) < options.microbatches) {
    throw ArrayError(
        "pipeline", where,
        std::to_string(target.size(0, where)) + " rows for " + std::to_string(options.microbatches) + " microbatches");
  }
  if ((current_scope().flags & kNoGradFlag) != 0) {
    throw ArrayError("pipeline", where,
                     "a step in a NoGrad or nn::Evaluation scope has no gradients: forward() is meant");
  }
  const auto is_trained = [&](const nn::Named& slot) { return options.optimizer->trains(*slot.state); };
  if (options.optimizer && !net_->slots().empty() && std::ranges::none_of(net_->slots(), is_trained)) {
    throw ArrayError("pipeline", where, "the .optimizer trains no parameter of the pipeline's net");
  }
  std::shared_ptr<const Plan> plan = this->plan(options);
  ++step_;
  norm_ = {};
  struct InStep {
    explicit InStep(bool& in_step) : in_step_(in_step) { in_step_ = true; }
    ~InStep() { in_step_ = false; }
    bool& in_step_;
  } const in_step(in_step_);
  return Step(*this, std::move(plan), x, target, options, where).run();
}

}  // namespace sluice::parallel
