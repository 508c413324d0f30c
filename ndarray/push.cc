#include "sluice/ndarray/push.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "sluice/engine/detail/forks.h"
#include "sluice/ndarray/anomaly.h"
#include "sluice/ndarray/array_call.h"
#include "sluice/ndarray/array_locks.h"
#include "sluice/ndarray/dry_run.h"
#include "sluice/ndarray/operation_record.h"
#include "sluice/ndarray/overlaps.h"
#include "sluice/ndarray/owner.h"
#include "sluice/ndarray/pending_call.h"
#include "sluice/ndarray/rerun.h"
#include "sluice/ndarray/resolution.h"
#include "sluice/ndarray/user_names.h"

namespace sluice {
namespace {

struct CallClosure {
  std::unique_ptr<ArrayCall> call;
  void operator()(Context& context) const { call->run(context); }
};

/// An array that the operation may find out of its reach: its device's memory is its own, and the host's belongs to the
/// host, unless it is pinned.
void check_reach(const ArrayPush& push, const char* name, Array& array, Device device) {
  if (array.device() == device || push.issues) return;
  if (array.device().kind == DeviceKind::cpu) {
    std::lock_guard lock(array.mutex());
    if (array.version()->buffer().pinned()) return;
  }
  throw ArrayError(
      name, push.where,
      "an array on " + to_string(array.device()) + " in an operation on " + to_string(device) + "; use to(device)");
}

void check(const ArrayPush& push, const char* name, Device device, const Engine& engine) {
  const auto usable = [&](const NDArray& x) {
    Array& array = x.in_memory(name, push.where);
    if (&array.engine() != &engine) [[unlikely]]
      throw ArrayError(name, push.where, "arrays of different engines");
    if (array.device().kind != DeviceKind::cpu || device.kind != DeviceKind::cpu) [[unlikely]]
      check_reach(push, name, array, device);
  };
  for (const NDArray* x : push.inputs) usable(*x);
  for (const NDArray& y : push.outputs) usable(y);
  if (push.fresh) return;
  for (const NDArray& y : push.outputs) {
    if (overlaps_itself(y)) {
      throw ArrayError(name, push.where, "an output of shape " + to_string(y.shape()) + " that overlaps itself");
    }
  }
  if (push.outputs.size() > 1 && any_overlap(push.outputs)) {
    throw ArrayError(name, push.where, "outputs that overlap each other");
  }
}

using Records = std::vector<OperationRecord>;

void copy_held(const ArrayPush& push, const PushOptions& options, Records* records);

/// A place in the engine for an op whose accesses are not known yet. It is given back unless it is committed.
class Reserved {
 public:
  Reserved(detail::CoreBase& core, const PushOptions& options, std::source_location where)
      : core_(core), place_(core.begin_push({}, kSize, alignof(std::max_align_t), options, where)) {}
  ~Reserved() {
    if (place_.operation) core_.abandon_push(place_.operation);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;

  detail::Operation* operation() const { return place_.operation; }
  /// Of either kind.
  template <class Closure>
  Ticket commit(Closure closure) noexcept {
    static_assert(sizeof(Closure) <= kSize);
    new (place_.closure) Closure(std::move(closure));
    return core_.commit_push(std::exchange(place_.operation, nullptr), detail::closure_table<Closure>);
  }

 private:
  static constexpr std::size_t kSize = std::max(sizeof(CallClosure), sizeof(detail::PendingClosure));
  detail::CoreBase& core_;
  detail::OpenPush place_;
};

/// Resolves and pushes. `options` has its place. With `moves`, held values of outputs are not copied by operations of
/// their own before, but by this one. That one copies nothing of a value that its body is to see as poisoned, so there
/// it is not done. Where pushes are noted, `records` is not null.
Ticket push_checked(const ArrayPush& push, const char* name, const PushOptions& options, detail::CoreBase& core,
                    bool moves, Records* records) {
  for (;; moves = push.options.on_poison == OnPoison::skip) {
    {
      // The place comes first, because a push may have to wait for it at the caps, without the locks.
      Reserved reserved(core, options, push.where);
      Resolution resolution(push, name);
      ArrayLocks locks(push);
      const std::lock_guard lock(locks);
      resolution.check();
      if (moves || !resolution.outputs_held()) [[likely]] {
        resolution.resolve();
        core.name_accesses(reserved.operation(), resolution.accesses(), options, push.where);
        std::shared_ptr<detail::PendingCall> pending;
        if (push.later) [[unlikely]]
          pending = std::make_shared<detail::PendingCall>(core, options, push.where);
        if (records) [[unlikely]]
          records->push_back(record_of(push, name, options, *resolution.call));
        resolution.apply();  // before the commit, because serial mode runs the body there
        if (pending) [[unlikely]] {
          pending->call = std::move(resolution.call);
          return reserved.commit(detail::PendingClosure{std::move(pending)});
        }
        return reserved.commit(CallClosure{std::move(resolution.call)});
      }
    }
    copy_held(push, options, records);
  }
}

/// Where an output's value is held elsewhere it is copied, by an operation of its own: then both values are whole when
/// the write itself is skipped (docs/semantics.md, 14). An overwrite of the whole is no exception, because it may be
/// skipped too. Who cancels the write does not cancel the copy.
void copy_held(const ArrayPush& push, const PushOptions& options, Records* records) {
  for (std::size_t i = 0; i < push.outputs.size(); ++i) {
    const NDArray& y = push.outputs[i];
    Array& array = *y.array();
    {
      std::lock_guard lock(array.mutex());
      if (array.stays() ? holders(std::span(&y, 1)).empty() : !array.held()) continue;
    }
    const NDArray whole(y.array());
    const ScopeGuard scope;
    current_scope().cancel = nullptr;
    ArrayPush copy;
    copy.outputs = std::span(&whole, 1);
    copy.updates = Updates::only(0);
    copy.where = push.where;
    PushOptions copy_options;
    copy_options.on = options.on;
    copy_options.priority = options.priority;
    copy_options.name = "copy on write";
    copy_options.bytes = whole.bytes();
    push_checked(copy, copy_options.name, copy_options, array.core(), true, records);
  }
}

}  // namespace

void copy_held_values(std::span<const NDArray> outputs, std::source_location where) {
  if (DryRun::current()) return;
  const auto copy = [&](const NDArray& y) {
    ArrayPush push;
    push.outputs = std::span(&y, 1);
    push.updates = Updates::only(0);
    push.where = where;
    PushOptions options;
    options.on = y.in_memory("copy on write", where).device();
    copy_held(push, options, current_scope().records);
  };
  for (const NDArray& y : outputs) {
    y.checked("copy on write", where);
    detail::each_plain(y, copy);
  }
}

namespace {

/// The row, which errors call by the function of the library that the program called. Each pair is kept until the
/// program ends, because ops point to it.
const OperatorInfo* shown_as(const char* called, const OperatorInfo* row) {
  struct Known {
    const char *called = nullptr, *row = nullptr;
    const OperatorInfo* info = nullptr;
  };
  constexpr std::size_t kKnown = 64;
  static thread_local std::array<Known, kKnown> known;
  const auto hash = reinterpret_cast<std::uintptr_t>(called) * 31 + reinterpret_cast<std::uintptr_t>(row->name);
  Known& last = known[hash / 8 % kKnown];
  if (last.called == called && last.row == row->name) return last.info;
  auto& all =
      detail::first_use([] { return new std::map<std::pair<std::string_view, std::string_view>, OperatorInfo>; });
  const std::lock_guard lock(detail::process_lock(detail::ProcessLock::called_names));
  const auto [at, fresh] = all.try_emplace({called, row->name}, OperatorInfo{row->name, called});
  last = {called, row->name, &at->second};
  return last.info;
}

Ticket push_seen(const ArrayPush& push) {
  const char* const name = push.options.name ? push.options.name : push.options.op ? push.options.op->name : "push";
  if (push.inputs.empty() && push.outputs.empty()) throw ArrayError(name, push.where, "no arrays");
  const NDArray& any = push.outputs.empty() ? *push.inputs[0] : push.outputs[0];
  Array& first = any.in_memory(name, push.where);
  const ScopeState& scope = current_scope();
  std::optional<PushOptions> placed;
  if (!push.options.on.given) placed.emplace(push.options).on = first.device();
  DryRun* dry = nullptr;
  if (const std::uint32_t set = scope.flags & (kPushPriorityBits | kDryFlag)) [[unlikely]] {
    dry = DryRun::current();
    if (!placed) placed.emplace(push.options);
    if (set != kDryFlag) placed->priority = static_cast<int>((set & kPushPriorityBits) >> kPushPriorityShift) - 1;
  }
  // As errors of the call do (ArrayError): the program has not called the operators that a function is made of.
  if (const char* const called = detail::called_function(); called && push.options.op && scope.where.line() != 0)
      [[unlikely]] {
    if (!placed) placed.emplace(push.options);
    placed->op = shown_as(called, push.options.op);
  }
  const PushOptions& options = placed ? *placed : push.options;
  check(push, name, options.on.device, first.engine());
  if (dry) [[unlikely]] {
    dry->push(push, name, options, scope.records);
    return {};
  }
  // A replay would need its versions pinned (docs/semantics.md, 21). Arrays cannot do that yet, so a capture is
  // refused.
  if (detail::capturing()) throw ArrayError(name, push.where, "operations on arrays cannot be captured");
  return push_checked(push, name, options, first.core(), false, scope.records);
}

}  // namespace

PriorityScope::PriorityScope(int priority) {
  if (priority < 0 || priority >= kPriorities)
    throw UsageError("[PriorityScope] priority " + std::to_string(priority) + " is not in 0.." +
                     std::to_string(kPriorities - 1));
  std::uint32_t& flags = current_scope().flags;
  flags = (flags & ~kPushPriorityBits) | static_cast<std::uint32_t>(priority + 1) << kPushPriorityShift;
}

Ticket push_arrays(const ArrayPush& push) {
  const std::uint32_t flags = current_scope().flags;
  if ((flags & (kRerunFlag | kAnomalyFlag)) != 0) [[unlikely]]
    return (flags & kAnomalyFlag) != 0 ? detail::push_looked_at(push, push_seen) : Rerun::push(push, push_seen);
  return push_seen(push);
}

}  // namespace sluice
