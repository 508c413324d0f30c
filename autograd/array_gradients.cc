// The gradient members of NDArray.
#include "sluice/autograd/gradient_undo.h"
#include "sluice/autograd/gradients.h"
#include "sluice/autograd/node.h"
#include "sluice/autograd/tape_run.h"
#include "sluice/ndarray/dry_run.h"
#include "sluice/ndarray/owner.h"
#include "sluice/ndarray/rerun.h"

namespace sluice {
namespace {

autograd::Node* leaf_of(const NDArray& x) {
  Array& array = *x.array();
  std::lock_guard lock(array.mutex());
  return array.leaf ? static_cast<autograd::Node*>(array.history.get()) : nullptr;
}

// Present from the start of the program, where this file is linked; with_grad makes sure of it.
[[maybe_unused]] const bool installed = [] {
  autograd::install_recorder();
  return true;
}();

}  // namespace

NDArray NDArray::with_grad(Where where) const {
  autograd::install_recorder();
  Array& array = checked("with_grad", where);
  if (sluice::detail::is_owned_view(*this)) {
    throw ArrayError("with_grad", where, "a view of an array of an owner: give the array itself, or use detach()");
  }
  if (!is_floating(array.dtype())) {
    throw ArrayError("with_grad", where, "needs a floating dtype, not " + std::string(name_of(array.dtype())));
  }
  std::lock_guard lock(array.mutex());
  if (array.leaf) return *this;
  if (array.history) throw ArrayError("with_grad", where, "an array that recorded operators made; use detach()");
  Ref<autograd::Node> leaf(new autograd::Node(autograd::next_sequence()));
  leaf->kind = autograd::Node::Kind::leaf;
  leaf->where = where;
  leaf->device = array.device();
  leaf->outputs.emplace_back(array.shape(), array.dtype());
  autograd::keep_layout(*leaf, 0, array);
  if (DryRun* const run = DryRun::current(); run && !array.absent()) {
    run->at_end([of = array_] {
      const std::lock_guard undo(of->mutex());
      of->history = Ref<History>();
      of->leaf = false;
      sluice::detail::one_more_history_changed();
    });
  }
  array.history = Ref<History>(leaf);
  array.history_output = 0;
  array.leaf = true;
  if (array.owned()) [[unlikely]]
    sluice::detail::one_more_history_changed();
  return *this;
}

bool NDArray::requires_grad(Where where) const {
  checked("requires_grad", where);
  // Where a checkpoint computes again: as it was at its first use there. To ask is no use: with_grad() may follow.
  const NDArray x = autograd::computed_again() ? Rerun::seen(*this) : *this;
  Array& array = *x.array();
  sluice::detail::follow_writes(array);
  std::lock_guard lock(array.mutex());
  return static_cast<bool>(array.history);
}

NDArray NDArray::grad(Where where) const {
  checked("grad", where);
  autograd::Node* leaf = leaf_of(*this);
  if (!leaf) return {};
  NDArray whole;
  {
    std::lock_guard lock(leaf->mutex);
    whole = leaf->grad;
  }
  const auto window = autograd::window_of(*this);
  return !whole.defined() || !window ? whole : autograd::look(whole, *window, where);
}

void NDArray::set_grad(const NDArray& gradient, Where where) const {
  const Array& array = checked("set_grad", where);
  autograd::Node* leaf = leaf_of(*this);
  if (!leaf) throw ArrayError("set_grad", where, "an array that was not made with with_grad()");
  if (gradient.defined() && (!(gradient.shape() == array.shape()) || gradient.dtype() != array.dtype())) {
    throw ArrayError("set_grad", where,
                     sluice::to_string(gradient.shape()) + " for an array of " + sluice::to_string(array.shape()));
  }
  if (gradient.defined() && !(gradient.device() == array.device())) {
    throw ArrayError("set_grad", where,
                     "a gradient on " + sluice::to_string(gradient.device()) + " for an array on " +
                         sluice::to_string(array.device()) + "; use to(device)");
  }
  NDArray before;  // the old one goes after the lock
  if (gradient.defined()) {
    // An array of its own, which the next backward adds to in place; with a history it would own its leaf.
    const NoGrad scope;
    const NDArray brought = autograd::brought(*leaf, gradient, where);
    const bool own = autograd::window_of(brought) || brought.array()->group();
    before = own ? brought.copy(where) : brought.detach();
  }
  GradientUndo::changing(*leaf);
  std::lock_guard lock(leaf->mutex);
  autograd::restore_after_dry_run(*leaf);
  std::swap(leaf->grad, before);
}

void NDArray::backward(const BackwardOptions& options, Where where) const {
  const NDArray one;
  sluice::backward(std::span(this, 1), std::span(&one, 1), options, where);
}

void set_gradient_layout(const NDArray& leaf, std::shared_ptr<const GradientLayout> layout,
                         std::source_location where) {
  constexpr const char* kName = "set_gradient_layout";
  const Array& array = leaf.checked(kName, where);
  autograd::Node* const node = array.kind() == Array::Kind::owned ? leaf_of(leaf) : nullptr;
  if (!node) throw ArrayError(kName, where, "an array that is no leaf (with_grad()), or has no owner");
  if (!layout) throw UsageError(std::string("[") + kName + "] " + sluice::to_string(where) + ": no layout");
  const NoGrad off;
  NDArray gradient = leaf.grad(where);
  if (gradient.defined()) gradient = layout->bring(gradient, where);
  using Layouts = std::vector<std::shared_ptr<const GradientLayout>>;
  auto layouts = std::make_unique<Layouts>(1, std::move(layout));
  if (DryRun* const run = DryRun::current()) {
    const auto before = std::make_shared<Layouts>(node->layouts ? *node->layouts : Layouts());
    run->at_end([of = Ref<History>(leaf.array()->history), node, before] {
      node->layouts = before->empty() ? nullptr : std::make_unique<Layouts>(*before);
    });
  }
  node->layouts = std::move(layouts);
  if (gradient.defined()) leaf.set_grad(gradient, where);
}

NDArray NDArray::detach(Where where) const {
  checked("detach", where);
  const NDArray x = Rerun::seen(*this);
  Ref<Array> copy = sluice::detail::snapshot_of(x.array());
  copy->history = Ref<History>();
  copy->leaf = false;
  NDArray made = on(std::move(copy));
  Rerun::made(made);
  return made;
}

}  // namespace sluice
