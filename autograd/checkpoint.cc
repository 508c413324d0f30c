#include "sluice/autograd/checkpoint.h"

#include <utility>

#include "sluice/autograd/gradients.h"
#include "sluice/autograd/node.h"
#include "sluice/autograd/owned.h"
#include "sluice/autograd/recomputation.h"
#include "sluice/autograd/tape_run.h"
#include "sluice/ndarray/anomaly.h"
#include "sluice/ndarray/dry_run.h"
#include "sluice/ndarray/owner.h"

namespace sluice {
namespace autograd {
namespace {

constinit thread_local Recomputation* working = nullptr;

struct Working {
  Recomputation* outer;
  explicit Working(Recomputation* now) : outer(working) { working = now; }
  ~Working() { working = outer; }
};

/// A variable that is free when the gradients are there; empty, if there are none.
Variable gate_behind(const std::vector<NDArray>& gradients, const std::source_location& where) {
  std::vector<Access> accesses;
  const NDArray* one = nullptr;
  for (const NDArray& gradient : gradients) {
    if (!gradient.defined()) continue;
    detail::each_plain(gradient, [&](const NDArray& x) {
      each_variable_of(x, [&](const Variable& variable) { accesses.push_back(read(variable)); });
    });
    one = &gradient;
  }
  if (!one) return {};
  Engine& engine = one->engine();
  Variable gate = engine.variable("recomputation");
  accesses.push_back(order(gate));
  engine.push([] {}, accesses, {.on = one->device(), .name = "recomputation"}, where);
  return gate;
}

}  // namespace

Recomputation* Recomputation::current() { return working; }
Recomputation::None::None() : outer_(std::exchange(working, nullptr)) {}
Recomputation::None::~None() { working = outer_; }

std::vector<NDArray> Recomputation::first() {
  const Rerun::Scope notes(rerun_, false);
  const DrawNotes::Scope draws(draws_, false);
  const Working here(this);
  for (const NDArray& x : xs_) {
    x.checked("checkpoint", where_);
    (void)Rerun::seen(x);
  }
  return f_(xs_, "checkpoint", where_);
}

void Recomputation::again(const std::vector<NDArray>& gradients) {
  std::size_t count = 0;
  {
    const ScopeGuard scope;
    ScopeState& now = current_scope();
    now.device = scope_.device;
    constexpr std::uint32_t kept = kAnomalyFlag | kBackwardFlag | kDryFlag;  // of the backward that asks
    now.flags = (scope_.flags & ~kept) | (now.flags & kept);
    now.layer = scope_.layer;
    now.where = scope_.where;
    if (!now.sequence) now.sequence = gate_behind(gradients, where_);  // a schedule's own order is enough
    const detail::TheseInterpreters those(interpreters_);
    const Rerun::Scope notes(rerun_, true);
    const DrawNotes::Scope draws(draws_, true);
    const Working here(this);
    again_ = true;
    next_ = 0;
    f_(xs_, "checkpoint", where_);
    count = next_;
  }
  if (count != nodes_.size()) {
    throw ArrayError("checkpoint", where_,
                     "the function pushed " + std::to_string(count) +
                         " recorded operators when it was computed again, " + std::to_string(nodes_.size()) +
                         " the first time");
  }
  // They have all now, and this one goes with the last of them.
  std::vector<Ref<Recomputation>> dropped;
  const std::lock_guard lock(mutex_);
  for (Node*& node : nodes_) {
    if (!node) continue;
    if (node->try_add_ref()) {
      const Ref<Node> held = Ref<Node>::adopt(node);
      dropped.push_back(std::move(held->checkpoint));
    }
    node = nullptr;
  }
}

Ref<Node> Recomputation::next_node() {
  if (!again_) {
    Ref<Node> node(new Node(next_sequence() + 1));
    node->checkpoint = Ref<Recomputation>(this);
    node->checkpoint_index = nodes_.size();
    nodes_.push_back(node.get());
    return node;
  }
  const std::lock_guard lock(mutex_);
  const std::size_t i = next_++;
  if (i < nodes_.size() && nodes_[i] && nodes_[i]->try_add_ref()) return Ref<Node>::adopt(nodes_[i]);
  Ref<Node> nobody(new Node(next_sequence() + 1));  // the first one is gone: nobody wants what it kept
  nobody->freed = true;
  return nobody;
}

void Recomputation::forget(std::size_t index) noexcept {
  const std::lock_guard lock(mutex_);
  if (index < nodes_.size()) nodes_[index] = nullptr;
}

}  // namespace autograd

std::vector<NDArray> checkpoint(const ArrayFunction& f, const NDArrays& xs, std::source_location where) {
  autograd::install_recorder();
  // Within another one it is a plain call: that one computes all of it again.
  if (!grad_mode() || autograd::Recomputation::current() || (current_scope().flags & kRerunFlag) != 0) {
    return f(std::vector<NDArray>(xs.begin(), xs.end()), "checkpoint", where);
  }
  const Ref<autograd::Recomputation> made(new autograd::Recomputation(f, xs, where));
  return made->first();
}

void compute_again(const NDArray& y, std::source_location where) {
  y.checked("compute_again", where);
  Ref<autograd::Node> node = autograd::maker_of(y);
  while (node && autograd::is_view(*node)) node = node->edges[0].node;
  if (!node) return;
  const Ref<autograd::Recomputation> checkpoint = node->checkpoint;
  if (checkpoint && !checkpoint->is_again()) checkpoint->again({});
}

NDArray checkpoint(const ArrayFunction& f, const NDArray& x, std::source_location where) {
  std::vector<NDArray> ys = checkpoint(f, NDArrays(std::span(&x, 1)), where);
  if (ys.size() != 1) {
    throw ArrayError("checkpoint", where, "one result wanted of a function that has " + std::to_string(ys.size()));
  }
  return std::move(ys[0]);
}

}  // namespace sluice
