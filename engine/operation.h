// Operations: the options of a push, what a body is given (Context, Completion), and how closures are stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <source_location>
#include <span>
#include <type_traits>
#include <utility>

#include "sluice/engine/device.h"
#include "sluice/engine/errors.h"
#include "sluice/engine/scope.h"
#include "sluice/engine/stream.h"
#include "sluice/engine/variable.h"

namespace sluice {

class Context;
class Completion;

/// The operator that an op was pushed for. The floors above define it; the engine passes it on to traces and captures.
struct OperatorInfo {
  const char* name = "";
  const char* shown = nullptr;  ///< what errors call it; null: `name`
};

/// What happens when an access is poisoned. `skip`: the op is skipped and passes the poison on. `run`: the body is
/// called and can ask Context::error; an update then leaves the poison as it is, unless the body calls Context::heal.
/// `always`: the same, and the body is also called where the op or its scope was cancelled before it began, or the
/// engine stops; it can ask Context::skip_reason, and it decides how the op ends. For ops that others count on, such as
/// one rank's part of a collective. (A device that was lost, or has no room, gets no body at all.)
enum class OnPoison : std::uint8_t { skip, run, always };

inline constexpr int kPriorities = 8;
inline constexpr int kDefaultPriority = 3;

struct PushOptions {
  Place on{};                       ///< default: the compute lane of the scope's device
  int priority = kDefaultPriority;  ///< 0 to 7, higher first
  const char* name = nullptr;       ///< lives as long as the engine (a literal); default: the operator's
  std::size_t bytes = 0;            ///< counted against EngineOptions::max_bytes until the op completes
  OnPoison on_poison = OnPoison::skip;
  bool scopeless = false;     ///< the body does not look at current_scope(), which may then be another; this is cheaper
  bool never_blocks = false;  ///< goes on to the hard cap of ops, as a push from an op does
  const OperatorInfo* op = nullptr;  ///< the operator's row
};

namespace detail {

struct ClosureTable {
  void (*invoke)(void* closure, Context& context, Completion* completion);
  void (*destroy)(void* closure) noexcept;  ///< null where there is nothing to do
  bool async;                               ///< takes a Completion
};

template <class F>
inline constexpr ClosureTable closure_table{
    [](void* closure, Context& context, [[maybe_unused]] Completion* completion) {
      F& f = *static_cast<F*>(closure);
      if constexpr (std::is_invocable_v<F&, Completion>) {
        f(std::move(*completion));
      } else if constexpr (std::is_invocable_v<F&, Context&, Completion>) {
        f(context, std::move(*completion));
      } else if constexpr (std::is_invocable_v<F&, Context&>) {
        f(context);
      } else {
        f();
      }
    },
    std::is_trivially_destructible_v<F> ? nullptr : +[](void* closure) noexcept { static_cast<F*>(closure)->~F(); },
    std::is_invocable_v<F&, Completion> || std::is_invocable_v<F&, Context&, Completion>};

template <class F>
concept Body = std::is_invocable_v<F&> || std::is_invocable_v<F&, Context&> || std::is_invocable_v<F&, Completion> ||
    std::is_invocable_v<F&, Context&, Completion>;

template <class F>
bool is_null(const F& f) {
  if constexpr (std::is_constructible_v<bool, const F&> && requires { f == nullptr; }) return f == nullptr;
  return false;
}

/// What an operation is for. Only `body` and `captured` enter a lane. The others are finished by the thread that makes
/// them ready.
enum class OpKind : std::uint8_t { body, wait, borrow, recover, replay, captured };

/// The part of an op record that does not belong to the protocol.
struct Operation {
  static constexpr std::size_t kInlineClosure = 48;

  alignas(std::max_align_t) std::byte storage[kInlineClosure];  ///< the closure, or a pointer to it on the heap
  const char* name = nullptr;
  std::source_location where;
  const OperatorInfo* info = nullptr;
  std::uint64_t tag = 0;  ///< this and the next two: from the scope of the push
  std::uint32_t flags = 0;
  Device scope_device;
  OpKind kind = OpKind::body;
  bool troubled = false;                        ///< of a stream op: its end needs more than the common path
  std::uint32_t index = 0;                      ///< the number of its record
  bool wrote_nothing = false, skipped = false;  ///< written by the running thread
};

/// An op record that is being filled: where the closure goes.
struct OpenPush {
  Operation* operation;
  void* closure;
};

}  // namespace detail

/// What a body may ask while it runs. It is valid during the call of the body only.
class Context {
 public:
  Device device() const { return device_; }
  /// The stream that the op issues to, on a stream lane; else null.
  Stream* stream() const { return stream_; }
  /// True when the op's scope or the engine was cancelled while the body runs: a long body may return or throw early.
  bool cancelled() const;
  /// For a body that throws and has written nothing: the poison that it leaves is intact, and `recover` can clear it.
  void wrote_nothing() { operation_->wrote_nothing = wrote_nothing_ = true; }
  /// On a stream lane, for a body that lacks memory: blocks until all work that was issued to devices of this kind is
  /// over and its memory is given back. It does not wait for ops that are only queued, so it always ends. If a device
  /// does not answer it ends with the engine's stop(cancel).
  void await_issued();
  /// On a stream lane: a point that stands for all that this body has issued by now. It is recorded when the op takes
  /// its place in the lane, or later.
  StreamEvent issued_point() const;
  /// On a stream lane: what the body issues from here on waits, on the device, for such a point of another op. Returns
  /// false, and nothing waits, where that op has not taken its place yet and where the device cannot wait for the
  /// other. Both streams are this engine's. Throws what Stream::wait throws, and std::bad_alloc.
  bool wait_on_device(const StreamEvent& point);
  /// For a body on a stream lane: how many of the errors that Provider::errors counts for a device the engine has dealt
  /// with. What was made from those carries its poison already. If a kernel of this op finds that the device has
  /// counted more, something that the op depends on may have failed. Throws the error of an input of the op that has
  /// become known since the op began, unless the op sees poison (OnPoison::run).
  std::uint64_t settled_errors(Device device) const;
  /// With OnPoison::run: the error that this variable carried when the op began; null if none.
  ErrorRef error(const HasVariable auto& x) const { return error_of(variable_of(x).get()); }
  /// With OnPoison::always: the root for which the op would have been skipped, because it or its scope was cancelled or
  /// the engine stops; null if neither is the case. An op that cannot do its work for this ends with that root by
  /// `throw Error(root)`, or Completion::pass_on(root).
  ErrorRef skip_reason() const;
  /// With OnPoison::run, for an `update` access: clears the variable's poison when the body returns normally.
  void heal(const HasVariable auto& x) { heal_variable(variable_of(x).get()); }

 private:
  ErrorRef error_of(const detail::VariableBase* variable) const;
  void heal_variable(const detail::VariableBase* variable);

 public:  // for the engine
  Context(detail::Operation* operation, detail::CoreBase* core, Stream* stream, Device device)
      : operation_(operation), core_(core), stream_(stream), device_(device) {}
  bool says_wrote_nothing() const { return wrote_nothing_; }

 private:
  detail::Operation* operation_;
  detail::CoreBase* core_;
  Stream* stream_;
  Device device_;
  bool wrote_nothing_ = false;
};

/// The answer of an op that completes later than its body returns. Move-only. Any thread may answer; the first answer
/// counts. If the Completion is destroyed without an answer the op fails as abandoned. An exception of the body is an
/// answer too, unless there was one before.
class Completion {
 public:
  Completion() = default;
  Completion(Completion&& other) noexcept
      : core_(std::move(other.core_)), operation_(std::exchange(other.operation_, nullptr)) {}
  Completion& operator=(Completion&& other) noexcept {
    if (this != &other) {
      abandon();
      core_ = std::move(other.core_);
      operation_ = std::exchange(other.operation_, nullptr);
    }
    return *this;
  }
  ~Completion() { abandon(); }
  /// The op is done and its results are there. Does nothing on an empty or answered Completion.
  void done() noexcept { answer(nullptr, ErrorKind::failed); }
  /// The op failed with this exception. Null means: for an unknown reason. `wrote_nothing`: as Context::wrote_nothing
  /// says.
  void fail(std::exception_ptr error, bool wrote_nothing = false) noexcept;
  /// The op failed with the root of another op, which stays the root.
  void pass_on(const ErrorRef& root, bool wrote_nothing = false) noexcept;
  explicit operator bool() const { return operation_ != nullptr; }

 public:  // for the engine
  Completion(std::shared_ptr<detail::CoreBase> core, detail::Operation* operation)
      : core_(std::move(core)), operation_(operation) {}

 private:
  void abandon() noexcept;
  void answer(std::exception_ptr error, ErrorKind kind, bool wrote_nothing = false) noexcept;
  std::shared_ptr<detail::CoreBase> core_;
  detail::Operation* operation_ = nullptr;
};

}  // namespace sluice
