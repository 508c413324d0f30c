#include "sluice/ndarray/dry_run.h"

#include <algorithm>
#include <utility>

#include "sluice/ndarray/anomaly.h"
#include "sluice/ndarray/array_locks.h"
#include "sluice/ndarray/operation_record.h"
#include "sluice/ndarray/resolution.h"

namespace sluice {
namespace {

constinit thread_local DryRun* running = nullptr;

}  // namespace

DryRun::Scope::Scope(DryRun& run, std::uint64_t tape) : outer_(std::exchange(running, &run)) {
  run.tape_ = tape;
  std::uint32_t& flags = current_scope().flags;
  flags = (flags | kDryFlag) & ~kAnomalyFlag;  // there are no elements to look at
}

DryRun::Scope::~Scope() {
  DryRun& run = *std::exchange(running, outer_);
  while (!run.undo_.empty()) {
    run.undo_.back()();
    run.undo_.pop_back();
  }
  run.written_.clear();
}

DryRun* DryRun::current() noexcept { return (current_scope().flags & kDryFlag) != 0 ? running : nullptr; }

void detail::check_absent(std::string_view operation, const std::source_location& where) {
  if (!DryRun::current()) throw ArrayError(operation, where, "an array that shapes_of made has no elements");
}

void DryRun::check_elements(Array& array, const char* who, const std::source_location& where) {
  const DryRun* const run = current();
  if (!array.absent() && !(run && run->written_.count(&array) != 0)) return;
  throw ArrayError(who, where, "asks for elements, and shapes_of computes none");
}

/// Takes down what the array is, for the end.
void DryRun::note(const Ref<Array>& array) {
  if (array->absent()) return;
  written_.insert(array.get());
  at_end([array, version = array->version(), history = array->history, output = array->history_output,
          leaf = array->leaf]() mutable {
    const std::lock_guard lock(array->mutex());
    if (array->imported()) version->buffer().import()->set_recorded(static_cast<bool>(history));
    array->set_version(version);
    std::swap(array->history, history);
    array->history_output = output;
    array->leaf = leaf;
  });
}

/// Gives a new array a buffer that can never have memory, and is counted while it lives.
void DryRun::make_absent(Array& array) const {
  const Buffer& buffer = array.version()->buffer();
  if (!buffer.pinned()) {  // a device reaches that one, so it stays what it is
    const std::size_t bytes = buffer.bytes();
    live_->fetch_add(bytes, std::memory_order_relaxed);
    std::shared_ptr<void> counted(nullptr,
                                  [live = live_, bytes](void*) { live->fetch_sub(bytes, std::memory_order_relaxed); });
    array.set_version(Ref<Version>(new Version(
        Ref<Buffer>(new Buffer(array.device(), bytes, nullptr, std::move(counted))), array.version()->variable())));
  }
  array.set_absent();
}

void DryRun::push(const ArrayPush& push, const char* name, const PushOptions& options,
                  std::vector<OperationRecord>* records) {
  std::size_t made = 0;
  if (push.fresh) {
    for (const NDArray& y : push.outputs) make_absent(*y.array());
  }
  for (std::size_t i = 0; i < push.outputs.size(); ++i) {
    if (!push.updates.contains(i)) {
      made += static_cast<std::size_t>(push.outputs[i].count()) * size_of(push.outputs[i].array()->dtype());
    }
  }
  const std::size_t scratch = options.bytes > made ? options.bytes - made : 0;
  peak_ = std::max(peak_, live_bytes() + scratch);
  if (scratch > 0) {
    std::size_t& most = scratch_[current_scope().layer];
    most = std::max(most, scratch);
  }

  Resolution resolution(push, name);
  ArrayLocks locks(push);
  const std::lock_guard lock(locks);
  resolution.check();
  resolution.resolve();
  if (records) records->push_back(record_of(push, name, options, *resolution.call));
  if (!push.fresh) {
    for (const NDArray& y : push.outputs) note(y.array());
    resolution.each_moved([&](Array& array) { note(Ref<Array>(&array)); });
  }
  resolution.apply();
}

}  // namespace sluice
