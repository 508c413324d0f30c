#include "sluice/nn/optim/optimizer.h"

#include <algorithm>
#include <utility>

#include "sluice/autograd/gradients.h"
#include "sluice/engine/detail/forks.h"
#include "sluice/ndarray/called.h"
#include "sluice/ndarray/dry_run.h"
#include "sluice/ndarray/owner.h"
#include "sluice/ndarray/push.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/placed.h"
#include "sluice/operators/registry.h"

namespace sluice::nn {
namespace {

constexpr const char* kStep = "nn::Optimizer::step";

/// Arrays that one operation of a step changes on the CPU: there a few operations run at once. On a device one
/// operation is issued as a whole or not at all.
constexpr std::size_t kArraysOfAnOperation = 32;

/// The shards of an array on a mesh, by rank; else the array itself. Of another owner's array too: its parts need be no
/// pieces of it.
std::vector<NDArray> pieces_of(const NDArray& x) {
  return layout_of(x) ? owner_of(x)->parts() : std::vector<NDArray>{x};
}

/// How what is kept of a parameter lies; no layout on no mesh.
Layout kept_layout(const State& state) {
  const Layout layout = layout_of(state.value);
  return layout && layout == state.layout ? state.kept : layout;
}

Layout gradient_layout(const State& state) {
  const Layout layout = layout_of(state.value);
  return layout && layout == state.layout ? state.gradient : layout;
}

/// As it lies, for calls that see no more of it.
NDArray at_rest(const NDArray& x) {
  const Layout layout = layout_of(x);
  return layout ? reshard(Operand(x.detach()), layout) : x;
}

std::string text_of(const NDArray& x) {
  const Layout layout = layout_of(x);
  return to_string(x.spec()) + (layout ? " " + to_string(layout) : "");
}

}  // namespace

/// One operation behind the gate: `row` reads the inputs and changes the targets.
struct Optimizer::Batch {
  std::size_t part;
  Device device;
  DType dtype;
  const Operator* row;
  std::size_t rule;
  Attributes attributes;
  std::vector<NDArray> inputs{}, targets{};
};

Optimizer::Optimizer(const Contents& net, std::vector<RuleFor> rules, OptimizerOptions options,
                     std::source_location where)
    : rules_(std::move(rules)), options_(options) {
  std::vector<bool> met(rules_.size());
  for (const Named& slot : net.slots) {
    if (slot.state->kind == Kind::statistic) statistics_.push_back(slot.state);
    if (slot.state->kind != Kind::parameter) continue;
    std::size_t i = 0;
    while (i < rules_.size() && !rules_[i].where.match(slot)) ++i;
    if (i == rules_.size()) {
      throw ArrayError("nn::Optimizer", where,
                       "no rule is for the parameter '" + slot.name + "'; a last one for \"*\" takes what is left");
    }
    if (!slot.state->optimizer.expired()) {
      throw ArrayError("nn::Optimizer", where,
                       "the parameter '" + slot.name + "' is trained by another nn::Optimizer, which still lives");
    }
    met[i] = true;
    list_.push_back({slot, i, {}});
  }
  if (list_.empty()) throw ArrayError("nn::Optimizer", where, "the net has no parameters");
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    if (met[i] || rules_[i].where.text == kTheRest) continue;
    throw ArrayError("nn::Optimizer", where,
                     "the group " + rules_[i].where.text + " is the first match of none of the " +
                         std::to_string(list_.size()) + " parameters");
  }
  for (const One& one : list_) one.parameter.state->optimizer = identity_;
}

Optimizer::~Optimizer() = default;

void Optimizer::refuse_rule(std::size_t i, const char* type) const {
  throw UsageError("[nn::Optimizer] rule " + std::to_string(i) + " of " + std::to_string(rules_.size()) +
                   " is not of the type " + type);
}

void Optimizer::step(const std::vector<detail::StepPart>& parts, bool counts, std::source_location where) {
  const sluice::detail::Called called(kStep, where);
  const NoGrad off;
  struct Ready {
    One* one;
    std::size_t part;
    NDArray gradient;
  };
  const auto part_of = [&](const State& state) {
    std::size_t i = 0;
    const auto has = [&](const detail::StepPart& part) {
      const auto lists = [&](const auto* set) { return set->contains(&state); };
      return part.parameters ? part.parameters->contains(&state) : std::ranges::none_of(part.except, lists);
    };
    while (i < parts.size() && !has(parts[i])) ++i;
    return i;
  };
  const auto around = [&](std::size_t part, const std::function<void()>& f) {
    parts[part].around ? parts[part].around(f) : f();
  };
  std::vector<Ready> ready;
  std::vector<One*> frozen;
  for (One& one : list_) {
    const State& state = *one.parameter.state;
    const std::size_t part = part_of(state);
    if (part == parts.size()) continue;
    if (state.holders == 0) {
      throw ArrayError(kStep, where,
                       "the parameter '" + one.parameter.name +
                           "' belongs to no net any more: its part was replaced after the optimiser was made; make the "
                           "optimiser anew, or assign to the part's parameters");
    }
    if (!state.value.defined()) {
      throw ArrayError(kStep, where,
                       "the parameter '" + one.parameter.name + "' has no value: call nn::initialise or nn::load");
    }
    if (state.frozen) {
      frozen.push_back(&one);
      continue;
    }
    NDArray gradient = state.value.grad();
    if (!gradient.defined()) continue;
    if (!(gradient.shape() == state.shape) || gradient.dtype() != state.value.dtype() ||
        !(layout_of(gradient) == gradient_layout(state))) {
      throw ArrayError(kStep, where,
                       "the parameter '" + one.parameter.name + "' is " + text_of(state.value) + ", its gradient " +
                           text_of(gradient));
    }
    ready.push_back({&one, part, std::move(gradient)});
  }

  // A dry run leaves what is kept, and the number of steps, as they were.
  if (DryRun* const run = DryRun::current()) {
    std::vector<Kept> before;
    for (const One& one : list_) before.push_back(one.kept);
    run->at_end([this, kept = std::move(before), steps = steps_]() mutable {
      for (std::size_t i = 0; i < list_.size(); ++i) list_[i].kept = std::move(kept[i]);
      steps_ = steps;
    });
  }
  struct End {  // reads see the arrays again, and new values go, also where a rule throws
    std::vector<Ready>& ready;
    ~End() {
      for (const Ready& r : ready) {
        for (auto& [name, target] : r.one->kept) target.end();
      }
    }
  } const end{ready};
  // What fails before the gate shows there: so the copies that writing to held values needs come first.
  for (const Ready& r : ready) {
    const State& state = *r.one->parameter.state;
    copy_held_values({&state.value, 1}, where);
    for (auto& [name, target] : r.one->kept) {
      target.follow(state.value, kept_layout(state));
      copy_held_values({&target.array(), 1}, where);
    }
  }
  for (const detail::StepPart& part : parts) {
    for (const detail::StepPart::Commit& one : part.commits) copy_held_values({&one.target, 1}, where);
  }

  std::vector<Batch> batches;
  std::size_t now = 0;  // the part
  const auto batch_for = [&](const NDArray& array, const Operator& row, std::size_t rule, std::size_t width,
                             const Attributes& attributes) -> Batch& {
    const Device device = array.device();
    const auto open = std::find_if(batches.rbegin(), batches.rend(), [&](const Batch& b) {
      return b.part == now && b.device == device && b.dtype == array.dtype() && b.row == &row && b.rule == rule;
    });
    const bool full =
        open != batches.rend() && device.kind == DeviceKind::cpu && open->targets.size() + width > kArraysOfAnOperation;
    if (open != batches.rend() && !full) return *open;
    return batches.emplace_back(Batch{now, device, array.dtype(), &row, rule, attributes});
  };
  const Operator& commit = sluice::detail::first_use([] { return &Registry::instance().get("commit"); });
  const auto write = [&](const NDArray& value, const NDArray& target) {
    if (!(layout_of(value) == layout_of(target))) {
      throw ArrayError(kStep, where, "a rule gives a value " + text_of(value) + " for an array " + text_of(target));
    }
    const std::vector<NDArray> values = pieces_of(value), targets = pieces_of(target);
    for (std::size_t k = 0; k < targets.size(); ++k) {
      Batch& batch = batch_for(targets[k], commit, 0, 1, Attributes());
      batch.inputs.push_back(values[k].contiguous());
      batch.targets.push_back(targets[k]);
    }
  };
  const auto note = [&](const Target& target) {
    if (const NDArray noted = target.noted(); noted.defined()) write(noted, target.array());
  };
  /// A part of new values, cut as what is kept is: all places get it.
  const auto write_gathered = [&](const NDArray& part, const NDArray& target) {
    write(reshard({part, where}, layout_of(target)), target);
  };
  std::vector<std::optional<FusedStep>> fused(rules_.size());
  for (std::size_t i = 0; options_.fused && i < rules_.size(); ++i) fused[i] = rules_[i].rule.fused(steps_);
  /// The arrays that a fused step changes: the value, and what is kept beside it.
  const auto changed_by = [&](const FusedStep& step, const NDArray& value, Kept& kept) {
    std::vector<NDArray> changed{value};
    for (const FusedStep::State& state : step.states) {
      auto at = kept.find(state.name);
      if (at == kept.end()) {
        const NDArray made = state.counter ? zeros_beside(value, {}, DType::i64) : zeros_like(at_rest(value));
        at = kept.emplace(state.name, Target(made)).first;
      }
      changed.push_back(at->second.array());
    }
    return changed;
  };
  const auto run_rule = [&](const Ready& r, Update& update, const Layout& cut) {
    try {
      rules_[r.one->rule].rule(update);
    } catch (const ArrayError& e) {
      if (cut.replicated()) throw;
      const bool by_zero = !(cut == r.one->parameter.state->in_calls);
      throw ArrayError(kStep, where,
                       "the rule for '" + r.one->parameter.name + "' fails on its parts, " + to_string(cut) +
                           (by_zero ? ", as ZeRO has it (nn::AxisLayouts::zero): " : ": ") + e.what());
    }
  };
  /// ZeRO: each place computes new values of its part before the gate; behind it they are written.
  const auto compute_part = [&](const Ready& r, const Layout& cut) {
    const NDArray& value = r.one->parameter.state->value;
    const NDArray part = reshard({value.detach(), where}, cut), gradient = reshard({r.gradient, where}, cut);
    if (const std::optional<FusedStep>& step = fused[r.one->rule]) {
      const std::vector<NDArray> targets = changed_by(*step, part, r.one->kept);
      std::vector<NDArray> changed;
      for (const NDArray& x : targets) changed.push_back(x.copy());
      const std::vector<NDArray> gradients = pieces_of(gradient);
      for (std::size_t k = 0; k < gradients.size(); ++k) {
        std::vector<NDArray> into;
        for (const NDArray& x : changed) into.push_back(pieces_of(x)[k]);
        const NDArray dense = gradients[k].contiguous();
        apply_into(Registry::instance().get(step->row), {&dense}, step->attributes,
                   {.where = where, .into = into, .updates = Updates::all(), .on = dense.device()});
      }
      write_gathered(changed[0], value);
      for (std::size_t i = 1; i < targets.size(); ++i) write(changed[i], targets[i]);
    } else {
      Target target(part);
      Update update(target, gradient, steps_, r.one->kept);
      run_rule(r, update, cut);
      if (const NDArray noted = target.noted(); noted.defined()) write_gathered(noted, value);
      for (const auto& [name, kept] : r.one->kept) note(kept);
    }
  };
  const auto compute = [&](const Ready& r) {
    const State& state = *r.one->parameter.state;
    const NDArray& value = state.value;
    const std::size_t known = r.one->kept.size();
    const DeviceScope scope(value.device());
    if (const Layout cut = kept_layout(state); !(cut == layout_of(value))) {
      compute_part(r, cut);
    } else if (const std::optional<FusedStep>& step = fused[r.one->rule]) {
      const Operator& row = Registry::instance().get(step->row);
      const std::vector<NDArray> changed = changed_by(*step, value, r.one->kept);
      const auto add = [&](const NDArray& gradient, std::span<const NDArray> targets) {
        Batch& batch = batch_for(targets[0], row, r.one->rule, targets.size(), step->attributes);
        batch.inputs.push_back(gradient);
        batch.targets.insert(batch.targets.end(), targets.begin(), targets.end());
      };
      if (!layout_of(value)) {
        add(r.gradient.contiguous(), changed);
      } else {
        const std::vector<NDArray> gradients = pieces_of(r.gradient);
        std::vector<std::vector<NDArray>> targets(gradients.size());
        for (const NDArray& x : changed) {
          std::vector<NDArray> pieces = pieces_of(x);
          for (std::size_t k = 0; k < pieces.size(); ++k) targets[k].push_back(std::move(pieces[k]));
        }
        for (std::size_t k = 0; k < gradients.size(); ++k) add(gradients[k].contiguous(), targets[k]);
      }
    } else {
      Target target(at_rest(value));
      Update update(target, r.gradient, steps_, r.one->kept);
      run_rule(r, update, layout_of(value));
      if (const NDArray noted = target.noted(); noted.defined()) write(noted, value);
      for (const auto& [name, kept] : r.one->kept) note(kept);
    }
    if (r.one->kept.size() > known) note_made(*r.one, where);
  };
  for (; now < parts.size(); ++now) {
    around(now, [&] {
      for (const Ready& r : ready) {
        if (r.part == now) compute(r);
      }
      for (const detail::StepPart::Commit& one : parts[now].commits) write(one.value, one.target);
    });
  }

  // One operation of the host that reads everything is a gate by itself: it runs or is skipped as a whole.
  const auto on_device =
      std::find_if(batches.begin(), batches.end(), [](const Batch& b) { return b.device.kind != DeviceKind::cpu; });
  NDArray gate;
  if (batches.size() > 1 || on_device != batches.end()) {
    const Device device = on_device != batches.end() ? on_device->device : cpu(0);
    std::vector<const NDArray*> inputs;
    for (const Batch& batch : batches) {
      for (const NDArray& x : batch.inputs) inputs.push_back(&x);
      for (const NDArray& x : batch.targets) inputs.push_back(&x);
    }
    const std::byte shut{0};
    gate = sluice::detail::host_array({&shut, 1}, {1}, DType::u8, device);
    const Operator& row = sluice::detail::first_use([] { return &Registry::instance().get("gate"); });
    apply_into(row, inputs, Attributes(),
               {.where = where, .into = std::span(&gate, 1), .on = gate.device(), .lane = device});
    current_scope().cancel = nullptr;  // until this returns: who cancels the gate cancels all, or else none
  }
  const auto push = [&](const Batch& batch) {
    std::vector<const NDArray*> inputs;
    for (const NDArray& x : batch.inputs) inputs.push_back(&x);
    if (gate.defined()) inputs.push_back(&gate);
    apply_into(*batch.row, inputs, batch.attributes,
               {.where = where,
                .into = batch.targets,
                .updates = Updates::all(),
                .on = batch.device,
                .tries = 3,
                .torn_unissued = batches.size() > 1});
  };
  for (std::size_t i = 0; i < batches.size();) {
    const std::size_t part = batches[i].part;
    around(part, [&] {
      for (; i < batches.size() && batches[i].part == part; ++i) push(batches[i]);
    });
  }
  for (One* const one : frozen) one->kept.clear();
  if (counts) ++steps_;
  if (options_.keep_gradients) return;
  for (const Ready& r : ready) r.one->parameter.state->value.zero_grad();
}

/// Notes when what was just made has its first value. Whoever cancels the step does not cancel this.
void Optimizer::note_made(One& one, std::source_location where) {
  if (DryRun::current()) return;
  std::vector<Access> reads;
  for (const auto& [name, target] : one.kept) {
    sluice::detail::each_plain(target.array(), [&](const NDArray& piece) {
      each_variable_of(piece, [&](const Variable& v) { reads.push_back(read(v)); });
    });
  }
  const ScopeGuard scope;
  current_scope().cancel = nullptr;
  one.made = one.parameter.state->value.engine().push([] {}, std::span<const Access>(reads),
                                                      {.on = cpu(0), .name = "made"}, where);
}

void Optimizer::zero_grad() {
  for (const One& one : list_) {
    const State& state = *one.parameter.state;
    if (state.value.defined() && !state.frozen) state.value.zero_grad();
  }
}

void Optimizer::recover(std::source_location where) {
  const auto heal = [&](const NDArray& x) {
    if (!x.defined()) return;
    sluice::detail::each_plain(x, [&](const NDArray& piece) { piece.engine().recover(piece, where); });
  };
  for (One& one : list_) {
    heal(one.parameter.state->value);
    for (const auto& [name, target] : one.kept) heal(target.array());
    // What a failed step was to make never had a value, and has none to go back to.
    const auto fails = [](const auto& waits_for) {
      try {
        waits_for.wait();
        return false;
      } catch (const Error&) {
        return true;
      }
    };
    if (fails(std::exchange(one.made, {}))) {
      std::erase_if(one.kept, [&](const auto& entry) { return fails(entry.second.array()); });
    }
  }
  for (const std::shared_ptr<State>& state : statistics_) heal(state->value);
  zero_grad();
}

NDArray Optimizer::kept(const std::string& path, const std::string& name) const {
  for (const One& one : list_) {
    if (one.parameter.name != path) continue;
    const auto at = one.kept.find(name);
    return at == one.kept.end() ? NDArray() : at->second.array();
  }
  return {};
}

}  // namespace sluice::nn
