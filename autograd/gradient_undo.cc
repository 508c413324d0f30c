#include "sluice/autograd/gradient_undo.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <utility>

#include "sluice/autograd/node.h"
#include "sluice/ndarray/dry_run.h"

namespace sluice {
namespace {
thread_local GradientUndo* current = nullptr;

/// Null for an array that is no leaf.
Ref<History> leaf_of(const NDArray& x) {
  if (!x.defined()) return {};
  const std::lock_guard lock(x.array()->mutex());
  return x.array()->leaf ? x.array()->history : Ref<History>();
}

}  // namespace

GradientUndo::GradientUndo() : begin_(autograd::next_sequence()), outer_(std::exchange(current, this)) {}

GradientUndo::~GradientUndo() {
  current = outer_;
  for (Note& note : notes_) {
    auto& leaf = static_cast<autograd::Node&>(*note.leaf);
    const std::lock_guard lock(leaf.mutex);
    std::swap(leaf.grad, note.gradient);
  }
}

std::vector<GradientUndo::Note>::iterator GradientUndo::find(const History* leaf) {
  return std::lower_bound(notes_.begin(), notes_.end(), leaf,
                          [](const Note& note, const History* of) { return std::less<>()(note.leaf.get(), of); });
}

void GradientUndo::forget(const NDArray& x) {
  const Ref<History> leaf = leaf_of(x);
  const auto there = find(leaf.get());
  if (has(there, leaf.get())) notes_.erase(there);
}

void GradientUndo::note(const NDArray& x) {
  if (const Ref<History> leaf = leaf_of(x)) changing(static_cast<autograd::Node&>(*leaf));
}

void GradientUndo::changing(autograd::Node& leaf) {
  if (!current || DryRun::current()) return;  // a dry run gives back what it changes
  for (GradientUndo* undo = current; undo; undo = undo->outer_) {
    if (leaf.sequence >= undo->begin_) return;
    const auto there = undo->find(&leaf);
    if (undo->has(there, &leaf)) continue;
    NDArray gradient;
    {
      const std::lock_guard lock(leaf.mutex);
      gradient = leaf.grad;
    }
    undo->notes_.insert(there, {Ref<History>(&leaf), gradient.defined() ? gradient.detach() : gradient});
  }
}

}  // namespace sluice
