// PendingCall: an operation on arrays until its ArrayCompletion is answered. Used by push_arrays.
#pragma once

#include <atomic>
#include <memory>
#include <source_location>
#include <span>

#include "sluice/ndarray/host_run.h"

namespace sluice::detail {

/// The engine's closure has one reference until the body has returned or, on a stream lane, until the device has
/// confirmed the op; the ArrayCompletion has another. So all of it is gone when the op counts as complete.
struct PendingCall {
  PendingCall(CoreBase& its_core, const PushOptions& its_options, std::source_location its_where)
      : core(&its_core), options(its_options), where(its_where) {}

  /// What the body sees.
  std::span<const TensorView> views() const;

  Completion completion;  ///< the last to go, because it keeps the engine
  CoreBase* core;
  PushOptions options;
  std::source_location where;
  std::unique_ptr<ArrayCall> call;
  HostRun host;                       ///< not on a stream lane
  std::atomic<bool> answered{false};  ///< by done(): what the body throws afterwards does not count
};

/// The closure of such an op.
struct PendingClosure {
  std::shared_ptr<PendingCall> pending;
  void operator()(Context& context, Completion completion) const;
};

}  // namespace sluice::detail
