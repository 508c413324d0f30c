// What a push and a borrow return.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

#include "sluice/engine/operation.h"

namespace sluice {

/// Names a pushed op. Small, copyable, allocates nothing; stays valid after the op is gone (its engine must live).
class Ticket {
 public:
  Ticket() = default;
  /// A number that no other op of this engine has.
  std::uint64_t id() const { return generation_ << 32 | index_; }
  /// True when the op has completed, failed or been skipped. Does not block. A wait on a variable that the op writes
  /// may return a moment before this says true.
  bool done() const;
  /// Blocks until done(). Throws the op's error: the root that it failed with or was skipped for. The engine keeps the
  /// errors of at least the latest 65,536 failed ops. Inside an op, a wait that can never end throws Error (deadlock),
  /// as Engine::wait says.
  void wait() const;
  /// As wait(), but returns false when the time is over first.
  bool wait_for(std::chrono::nanoseconds limit) const;
  /// Cancels the op if it has not begun, and says whether it did. A cancelled op does not run; it completes as
  /// cancelled in its turn.
  bool cancel() const;

 public:  // for the engine
  Ticket(detail::CoreBase* core, std::uint32_t index, std::uint64_t generation)
      : core_(core), index_(index), generation_(generation) {}

 private:
  friend class Engine;
  detail::CoreBase* core_ = nullptr;
  std::uint32_t index_ = 0;
  std::uint64_t generation_ = 0;
};

/// Holds a variable for the host, as an op would, until it is released or destroyed, on any thread. Move-only. While
/// the thread that took it is blocked in a wait, nobody is expected to release it: a wait that only its release could
/// end throws. A Borrow that a body took counts in this way during this body alone.
class Borrow {
 public:
  Borrow() = default;
  Borrow(Borrow&&) noexcept = default;
  Borrow& operator=(Borrow&&) noexcept = default;
  ~Borrow() { release(); }
  void release() noexcept { completion_.done(); }

 public:  // for the engine
  explicit Borrow(Completion completion) : completion_(std::move(completion)) {}

 private:
  Completion completion_;
};

}  // namespace sluice
