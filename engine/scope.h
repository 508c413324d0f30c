// Scopes: what a pushing thread sets around a stretch of pushes (device, cancel scope, flags such as grad mode, a tag
// for traces). Each body runs with the scope of its push, whichever thread runs it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <source_location>
#include <vector>

#include "sluice/engine/device.h"
#include "sluice/engine/errors.h"
#include "sluice/engine/variable.h"

namespace sluice {

struct OperationRecord;
namespace detail {
struct Layer;
/// The flags that each thread begins with. Higher floors set them while the program starts.
inline constinit std::atomic<std::uint32_t> first_flags{0};
struct CancelState {
  std::atomic<bool> cancelled{false};
  std::mutex mutex;
  ErrorRef root;  ///< made once, by the first op that is skipped: a cancelled scope is one root
};
/// Whether the calling thread captures (Engine::capture): its pushes are recorded. It is no part of the scope, so that
/// nobody who restores a scope restores a capture that is over.
bool capturing() noexcept;
struct ProgramBase;
/// What the calling thread pushes while one lives is not captured.
class OutsideCapture {
 public:
  OutsideCapture() noexcept;
  ~OutsideCapture();
  OutsideCapture(const OutsideCapture&) = delete;
  OutsideCapture& operator=(const OutsideCapture&) = delete;

 private:
  ProgramBase* const recorder_;
};
}  // namespace detail

/// What travels with a push. Copied into the op; set around its body.
struct ScopeState {
  Device device = cpu(0);
  /// Bits that higher floors define (autograd: bit 0, "no gradients").
  std::uint32_t flags = detail::first_flags.load(std::memory_order_relaxed);
  std::uint64_t tag = 0;  ///< free for the program; traces carry it (parallel/ puts the action there)
  std::shared_ptr<detail::CancelState> cancel;
  Variable sequence;  ///< every push of the scope names it with `order`; pushes from the bodies do not
  /// If it is set (its line is not 0), operators on arrays name this as their place in the source, and not the line of
  /// the call: so the operators that a gradient is made of name the line of the program that the gradient is for.
  std::source_location where{};
  const detail::Layer* layer = nullptr;  ///< the layer that traces and errors name (engine/layer.h); null: none
  /// The number of the innermost InterpreterScope (ndarray/interpreter.h); 0: none. Bodies do not inherit it.
  std::uint64_t interpreter = 0;
  /// Where the thread's pushes on arrays are noted (ndarray/operation_record.h). Bodies do not inherit it.
  std::vector<OperationRecord>* records = nullptr;
};

/// The calling thread's scope. Inside a body this is the scope of the op's push, and what the body sets ends with the
/// body. The reference is valid on the calling thread only, and inside a body during that body only.
ScopeState& current_scope();

/// Restores the thread's scope when it is destroyed.
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

/// While the guard lives, pushes run one after another in push order, and so do all other pushes under the same
/// variable. With a variable for each device, the order of the pushes is the device's schedule.
class SequenceScope : ScopeGuard {
 public:
  explicit SequenceScope(Variable sequence) { current_scope().sequence = std::move(sequence); }
};

/// A group of pushes that can be cancelled together. Handles share it; thread-safe.
class CancelScope {
 public:
  CancelScope() : state_(std::make_shared<detail::CancelState>()) {}
  /// Queued ops of this scope will not run; they complete as cancelled, all with one root. Ops that run already go on,
  /// and can ask Context::cancelled().
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
