// The handlers of fork().
#include "sluice/engine/detail/forks.h"

#include <pthread.h>

#include <chrono>
#include <thread>
#include <utility>

#include "sluice/engine/errors.h"

namespace sluice::detail {
namespace {

constinit std::mutex gate;            // guards the next; a fork holds it from its handler before to that after
constinit int first_uses = 0;         ///< that threads are in
constinit thread_local int here = 0;  ///< of them, the calling thread's
constinit std::array<bool, kProcessLocks> taken{};
constinit std::atomic<OverFork*> others{nullptr};  ///< a list

void give_back() {
  for (OverFork* other = others.load(std::memory_order_acquire); other; other = other->next)
    if (std::exchange(other->taken, false) && other->give_back) other->give_back();
  for (std::size_t i = kProcessLocks; i-- > 0;)
    if (std::exchange(taken[i], false)) process_locks[i].unlock();
}

/// Takes what is free. True if that is all.
bool take_free() {
  bool all = true;
  for (std::size_t i = 0; i < kProcessLocks; ++i) all &= taken[i] = process_locks[i].try_lock();
  for (OverFork* other = others.load(std::memory_order_acquire); other; other = other->next)
    if (other->take) all &= other->taken = other->take();
  return all;
}

// It waits with nothing of the library's in its hands, because a first use may want any lock, and who has a lock may be
// about to enter a first use. With an end: before glibc 2.36 a fork keeps others from adding handlers, as a library
// that a first use loads may do.
void before_fork() {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (;;) {
    const bool late = std::chrono::steady_clock::now() > limit;
    gate.lock();
    if (late || first_uses == here) {
      if (take_free() || late) return;
      give_back();
    }
    gate.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}
void in_parent() {
  give_back();
  gate.unlock();
}
void in_child() {
  first_uses = here;
  fork_generation.fetch_add(kForkStep, std::memory_order_relaxed);
  for (OverFork* other = others.load(std::memory_order_acquire); other; other = other->next)
    if (other->in_child) other->in_child();
  in_parent();
}
[[maybe_unused]] const int handlers = pthread_atfork(before_fork, in_parent, in_child);

}  // namespace

void over_fork(OverFork& what) noexcept {
  const std::lock_guard lock(gate);
  what.next = others.load(std::memory_order_relaxed);
  others.store(&what, std::memory_order_release);
}

void refuse_lock_of_parent() {
  throw ForkedError("an array was in use by another thread of the parent when this process was forked");
}

InFirstUse::InFirstUse() noexcept {
  const std::lock_guard lock(gate);
  ++first_uses;
  ++here;
}
InFirstUse::~InFirstUse() {
  const std::lock_guard lock(gate);
  --first_uses;
  --here;
}

}  // namespace sluice::detail
