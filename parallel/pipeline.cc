// A net's stages on their devices, and what a step is to run. Steps themselves are in pipeline_step.cc.
#include "sluice/parallel/pipeline.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sluice/engine/number_text.h"
#include "sluice/ndarray/scope_flags.h"
#include "sluice/operators/operators.h"
#include "sluice/parallel/action_names.h"
#include "sluice/parallel/gradient_sum.h"
#include "sluice/parallel/net_functions.h"
#include "sluice/parallel/shared_slots.h"
#include "sluice/schedule/program_order.h"
#include "sluice/schedule/verify.h"

namespace sluice::parallel {
namespace {

/// A ring's variables, one for each slot.
std::vector<Variable> ring_of(Engine& engine, int slots) {
  std::vector<Variable> ring;
  for (int i = 0; i < slots; ++i) ring.push_back(engine.variable("pipeline slot"));
  return ring;
}

Engine& engine_of(const detail::NetFunctions& net, std::source_location where) {
  Engine* engine = nullptr;
  for (const nn::Named& slot : net.slots()) {
    if (!slot.state->value.defined()) continue;
    Engine& own = slot.state->value.engine();
    if (engine && engine != &own) throw ArrayError("Pipeline", where, "'" + slot.name + "' is of another engine");
    engine = &own;
  }
  return engine ? *engine : default_engine();
}

/// The first function of each stage, and the number of functions.
std::vector<int> checked_cut(const PipelineOptions& options, int functions, std::source_location where) {
  const int stages = static_cast<int>(options.devices.size());
  if (stages == 0) throw ArrayError("Pipeline", where, "no devices");
  if (functions < stages) {
    throw ArrayError("Pipeline", where,
                     std::to_string(functions) + " functions for " + std::to_string(stages) + " stages");
  }
  std::vector<int> first = options.cut;
  if (first.empty()) {
    for (int s = 0; s < stages; ++s)
      first.push_back(static_cast<int>(static_cast<std::int64_t>(s) * functions / stages));
  }
  bool fits = static_cast<int>(first.size()) == stages && first[0] == 0;
  for (std::size_t s = 1; fits && s < first.size(); ++s) fits = first[s - 1] < first[s] && first[s] < functions;
  if (!fits) {
    std::string text;
    for (const int f : first) text += (text.empty() ? "" : ", ") + std::to_string(f);
    throw ArrayError("Pipeline", where,
                     "the cut {" + text + "} of " + std::to_string(functions) + " functions into " +
                         std::to_string(stages) +
                         " stages: it is the first function of each stage, begins with 0 and increases");
  }
  first.push_back(functions);
  return first;
}

}  // namespace

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

Pipeline::Pipeline(nn::Contents net, nn::Stages functions, std::vector<Spec> input, PipelineOptions options,
                   std::source_location where)
    : Pipeline(std::make_unique<detail::NetFunctions>(std::move(net), std::move(functions), input, "Pipeline", where),
               std::move(options), where) {}

Pipeline::Pipeline(std::unique_ptr<detail::NetFunctions> net, PipelineOptions options, std::source_location where)
    : devices_(options.devices),
      first_(checked_cut(options, net->size(), where)),
      net_(std::move(net)),
      engine_(&engine_of(*net_, where)),
      loss_(std::move(options.loss)) {
  for (const Device& device : devices_) {
    if (device.index >= engine_->device_count(device.kind)) {
      throw ArrayError("Pipeline", where, "no device " + sluice::to_string(device) + " in this engine");
    }
  }
  shared_ = std::make_shared<detail::SharedSlots>(detail::slots_of_stages(*net_, first_, where));
  std::map<std::pair<DeviceKind, int>, Variable> by_device;
  for (int s = 0; s < stages(); ++s) {
    nn::detail::move(detail::contents_of(*net_, shared_->stages[static_cast<std::size_t>(s)].owns), device(s), where);
    Variable& sequence = by_device[{device(s).kind, device(s).index}];
    if (!sequence) sequence = engine_->variable("pipeline device");
    sequences_.push_back(sequence);
    forwards_.push_back(engine_->variable("pipeline forwards"));
  }
}

Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

void Pipeline::check() const {
  if (!net_) throw UsageError("[Pipeline] it was moved from");
  if (in_step_) throw UsageError("[Pipeline] a step inside of a step of the same pipeline");
}

std::pair<int, int> Pipeline::functions(int stage) const {
  const auto s = static_cast<std::size_t>(stage);
  return {first_.at(s), first_.at(s + 1)};
}

std::vector<nn::Named> Pipeline::parameters(int stage) const {
  std::vector<nn::Named> list =
      detail::contents_of(*net_, shared_->stages.at(static_cast<std::size_t>(stage)).owns).slots;
  std::erase_if(list, [](const nn::Named& n) { return n.state->kind != nn::Kind::parameter; });
  return list;
}

std::shared_ptr<const Pipeline::Plan> Pipeline::plan(const PipelineStep& options) {
  Plan made;
  made.schedule = options.schedule.make(stages(), options.microbatches);
  detail::SharedSlots shared = detail::shared_in(made.schedule, *shared_, *net_);
  const auto has_updates = [](const Schedule& schedule) {
    return std::ranges::any_of(schedule.per_device, [](const std::vector<Action>& list) {
      return std::ranges::any_of(list, [](const Action& a) { return gives(a.kind, Result::weights); });
    });
  };
  const bool in_parts = options.optimizer && options.gate == Gate::none;
  if (in_parts && !has_updates(made.schedule)) made.schedule = with_updates(std::move(made.schedule));
  if (!plan_ || made.schedule != plan_->schedule) {
    verify(made.schedule);
    check_devices(made.schedule);
    made.sums = detail::stages_with_sums(made.schedule);
    made.shared = std::make_shared<detail::SharedSlots>(std::move(shared));
    made.order = program_order(made.schedule);
    made.updates = has_updates(made.schedule);
    made.later.resize(devices_.size());
    for (const auto& actions : made.schedule.per_device) {
      int first = stages();
      for (const Action& a : actions) first = std::min(first, a.stage);
      for (const Action& a : actions) made.later[static_cast<std::size_t>(a.stage)] = a.stage > first;
    }
    for (int s = 0; s < stages(); ++s) {
      const Rings rings = made.schedule.rings.empty() ? Rings{} : made.schedule.rings[static_cast<std::size_t>(s)];
      // No more slots than microbatches are ever taken at once.
      made.saved.push_back(ring_of(*engine_, std::min(rings.saved, options.microbatches)));
      made.kept.push_back(ring_of(*engine_, std::min(rings.kept, options.microbatches)));
    }
    if (made.schedule.fixed_order) bound_transfers(made);
    plan_ = std::make_shared<const Plan>(std::move(made));
  }
  const auto refuse = [](const std::string& why) { throw std::invalid_argument("a step " + why); };
  if (plan_->updates && !options.optimizer) {
    refuse("by the schedule '" + plan_->schedule.name + "', which has U actions, needs an .optimizer for them");
  }
  if (!options.optimizer && options.max_norm != 0) refuse("with .max_norm needs an .optimizer");
  if (in_parts && options.max_norm != 0) refuse("with .max_norm needs Gate::all: the norm is of all stages' gradients");
  if (!(options.max_norm >= 0)) refuse("has .max_norm = " + general_text(options.max_norm, 6));
  return plan_;
}

/// Issuing takes no time, and one device's thread may be far ahead of another's: what they send each other would then
/// lie on the devices long before it is needed. So an action's transfers wait until the action before the last one of
/// their device is over; and an action that gives something waits until all was sent that its stage gave before the
/// device's last action.
void Pipeline::bound_transfers(Plan& plan) const {
  constexpr int kAtATime = 2;
  std::map<std::pair<DeviceKind, int>, std::vector<Variable>> by_device;
  for (int s = 0; s < stages(); ++s) {
    const bool streams = device(s).kind != DeviceKind::cpu;
    std::vector<Variable>& ring = by_device[{device(s).kind, device(s).index}];
    if (streams && ring.empty()) ring = ring_of(*engine_, kAtATime);
    plan.received.push_back(ring);
    plan.given_up.push_back(ring_of(*engine_, streams ? kAtATime : 0));
    plan.given_down.push_back(ring_of(*engine_, streams ? kAtATime : 0));
  }
}

void Pipeline::check_devices(const Schedule& schedule) const {
  for (const auto& actions : schedule.per_device) {
    for (const Action& a : actions) {
      const int first = actions.front().stage;
      if (device(a.stage) == device(first)) continue;
      throw std::invalid_argument("schedule '" + schedule.name + "' has the stages " + std::to_string(first) + " and " +
                                  std::to_string(a.stage) + " on one device, and the pipeline has them on " +
                                  sluice::to_string(device(first)) + " and " + sluice::to_string(device(a.stage)));
    }
  }
}

NDArray Pipeline::forward(const nn::Arrays& x, std::source_location where) const {
  if (!net_) throw UsageError("[Pipeline] it was moved from");
  const nn::Evaluation evaluation;
  const detail::StepArrays arrays(shared_, net_, devices_, false, where);
  nn::Arrays value = x;
  for (const NDArray& one : x) one.checked("pipeline", where);
  for (int s = 0; s < stages(); ++s) {
    const DeviceScope scope(device(s));
    current_scope().flags |= kNoWaitFlag;
    for (NDArray& one : value) one = one.to(device(s));
    const detail::ReadsOf reads = arrays.in_stage(s);
    value = net_->call(functions(s), std::move(value));
  }
  if (value.size() != 1) {
    throw UsageError("[Pipeline] the last function gives " + std::to_string(value.size()) + " arrays, wanted one");
  }
  return std::move(value[0]);
}

std::vector<TimelineBox> Pipeline::boxes(std::span<const TraceEvent> events, std::uint64_t step) const {
  std::map<std::uint64_t, TimelineBox> found;
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
    const std::optional<Action> action = detail::action_of(e.tag, step);
    if (!action) continue;
    const double start = static_cast<double>(from) * 1e-9, end = static_cast<double>(to) * 1e-9;
    TimelineBox& box =
        found.try_emplace(e.tag, TimelineBox{action->kind, action->stage, action->microbatch, 0, 0}).first->second;
    box.start = box.end == 0 ? start : std::min(box.start, start);
    box.end = std::max(box.end, end);
  }
  std::vector<TimelineBox> boxes;
  for (const auto& [tag, box] : found) boxes.push_back(box);
  return boxes;
}

}  // namespace sluice::parallel
