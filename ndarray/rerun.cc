#include "sluice/ndarray/rerun.h"

#include <utility>

#include "sluice/ndarray/owner.h"

namespace sluice {
namespace {

constinit thread_local Rerun::Scope* current = nullptr;

/// What is kept of an array that is found. The parts of an owner's are found themselves, when they are used.
Ref<Array> value_of(Array& array) {
  if (array.kind() == Array::Kind::owned) detail::follow_writes(array);
  const std::lock_guard lock(array.mutex());
  return array.kind() == Array::Kind::owned ? array.twin() : array.snapshot();
}

}  // namespace

Rerun::Scope::Scope(Rerun& rerun, bool again) : outer_(current), rerun_(rerun), again_(again) {
  current_scope().flags |= kRerunFlag;
  current = this;
}

Rerun::Scope::~Scope() { current = outer_; }

NDArray Rerun::look_up(const NDArray& x) {
  Scope* const scope = current;
  if (!scope) return x;  // a body's thread
  Array* const key = x.array().get();
  if (!scope->again_) {
    // Those around it have found it too.
    for (Scope* s = scope; s && !s->again_; s = s->outer_) {
      if (s->made_.count(key) != 0 || s->rerun_.found_.count(key) != 0) continue;
      s->rerun_.found_.emplace(key, Found{x.array(), value_of(*key)});
    }
    return x;
  }
  const auto found = scope->rerun_.found_.find(key);
  if (found == scope->rerun_.found_.end()) return x;  // made by this run
  Ref<Array>& instead = scope->replaced_[key];
  if (!instead) {
    instead = value_of(*found->second.value);
  }
  return x.on(instead);
}

void Rerun::made(const NDArray& x) {
  if ((current_scope().flags & kRerunFlag) == 0) return;
  for (Scope* s = current; s && !s->again_; s = s->outer_) s->made_.insert(x.array().get());
}

Ticket Rerun::push(const ArrayPush& given, Ticket (*push)(const ArrayPush& push)) {
  std::vector<NDArray> inputs, outputs;
  std::vector<const NDArray*> pointers;
  inputs.reserve(given.inputs.size());
  for (const NDArray* x : given.inputs) pointers.push_back(&inputs.emplace_back(seen(*x)));
  ArrayPush seen_push = given;
  seen_push.inputs = pointers;
  if (!given.fresh) {
    for (const NDArray& y : given.outputs) outputs.push_back(seen(y));
    seen_push.outputs = outputs;
  } else {
    for (const NDArray& y : given.outputs) made(y);
  }
  return push(seen_push);
}

}  // namespace sluice
