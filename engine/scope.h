// Scopes: what a pushing thread sets around a stretch of pushes, and what then stands around each body,
// whatever thread runs it (device, cancel scope, user flags such as grad mode, a tag for traces).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "sluice/engine/device.h"
#include "sluice/engine/errors.h"
#include "sluice/engine/variable.h"

namespace sluice {

namespace detail {
struct ProgramBase;
struct CancelState {
  std::atomic<bool> cancelled{false};
  std::mutex mutex;
  ErrorRef root;  ///< made once, by the first op that is skipped: a cancelled scope is one root
};
}  // namespace detail

/// What travels with a push. Copied into the op; set around its body.
struct ScopeState {
  Device device = cpu(0);
  std::uint32_t flags = 0;  ///< bits that higher floors own (autograd: bit 0, "no gradients")
  std::uint64_t tag = 0;    ///< free for the pusher; a trace carries it (parallel/: the action)
  std::shared_ptr<detail::CancelState> cancel;
  Variable sequence;  ///< named with `order` by every push of the scope; not passed on to pushes from the bodies
  detail::ProgramBase* recorder = nullptr;  ///< of a capture: the thread's pushes go there (Engine::capture)
};

/// The calling thread's scope. Inside a body: the scope of the op's push; what the body sets there ends with it. The
/// reference is for the calling thread, and inside a body for that body.
ScopeState& current_scope();

/// Restores the thread's scope when it goes.
class ScopeGuard {
 public:
  ScopeGuard() : saved_(current_scope()) {}
  ~ScopeGuard() { current_scope() = saved_; }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  ScopeState saved_;
};

/// Pushes without `.on` go to this device while the guard lives.
class DeviceScope : ScopeGuard {
 public:
  explicit DeviceScope(Device device) { current_scope().device = device; }
};

/// Pushes carry this tag while the guard lives.
class TagScope : ScopeGuard {
 public:
  explicit TagScope(std::uint64_t tag) { current_scope().tag = tag; }
};

/// Pushes run one after another in push order while the guard lives, together with all others under the same variable:
/// on a device's own variable, push order *is* the schedule.
class SequenceScope : ScopeGuard {
 public:
  explicit SequenceScope(Variable sequence) { current_scope().sequence = std::move(sequence); }
};

/// A group of pushes that can be cancelled together. Handles share it; thread-safe.
class CancelScope {
 public:
  CancelScope() : state_(std::make_shared<detail::CancelState>()) {}
  /// Queued ops of this scope will not run; they complete as cancelled, all with one root. Running ones go on, and
  /// see Context::cancelled().
  void cancel() { state_->cancelled.store(true); }
  bool cancelled() const { return state_->cancelled.load(); }

  /// Pushes of this thread belong to the scope while the guard lives.
  class Guard : ScopeGuard {
   public:
    explicit Guard(const CancelScope& scope) { current_scope().cancel = scope.state_; }
  };

 private:
  std::shared_ptr<detail::CancelState> state_;
};

}  // namespace sluice
