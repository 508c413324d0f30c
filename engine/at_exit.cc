// Bodies use libraries whose static objects are younger than the engine (oneDNN's and OpenBLAS's kernels, made at their
// first use): an exit handler of ours runs when those are gone. The main thread's thread_local objects go before any of
// them, so that is where what is in flight is waited for. Where another thread calls exit(), or the main thread never
// used an engine, only the exit handler is left.
#include "sluice/engine/detail/at_exit.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/detail/policy.h"
#include "sluice/engine/detail/settle_engines.h"
#include "sluice/engine/detail/slot.h"
#include "sluice/engine/engine.h"

namespace sluice::detail {
namespace {

struct Entry {
  std::weak_ptr<CoreBase> core;
  std::weak_ptr<Watchdog> watchdog;
  std::shared_ptr<CoreBase> left_by_parent;  ///< in a forked child: never destroyed, there are no threads to join
};
/// With the lock of the engines.
std::vector<Entry>& engines() {
  return first_use([] { return new std::vector<Entry>; });  // static engines may be made and go after it would
}
std::mutex& mutex() { return process_lock(ProcessLock::engines); }

void leave_engines_to_parent() {
  for (Entry& engine : engines()) {
    if (engine.left_by_parent) continue;
    engine.left_by_parent = engine.core.lock();
    if (engine.left_by_parent) engine.left_by_parent->forked();
  }
}
constinit OverFork over_forks{.in_child = leave_engines_to_parent};

/// A library that an engine was made in is never unloaded: threads still run its code when dlclose returns.
void stay_loaded() {
  Dl_info here{};
  if (::dladdr(reinterpret_cast<const void*>(&stay_loaded), &here) && here.dli_fname)
    static_cast<void>(::dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE));
}

/// A body that calls exit() stands on a thread of oneTBB, whose own end does not stand that: the process ends here,
/// when the exit handlers and static objects that are younger than the first engine have had their turn.
void leave_from_a_body(int status, void*) {
  if (!thread_state().operation || !thread_state().lane) return;
  std::fflush(nullptr);
  std::_Exit(status);
}

void settle() {
  std::vector<std::pair<std::shared_ptr<CoreBase>, std::shared_ptr<Watchdog>>> alive;
  {
    std::lock_guard lock(mutex());
    for (const auto& engine : engines())
      if (auto core = engine.core.lock()) alive.emplace_back(std::move(core), engine.watchdog.lock());
  }
  const ExitTime time(true);
  for (const auto& [core, watchdog] : alive) {
    const auto settle = [&](std::chrono::nanoseconds limit) { return core->settle(limit); };
    try {
      watchdog ? wait_and_tell(time.left(), *watchdog, settle) : settle(time.left());
    } catch (...) {  // of the hook that was told
    }
  }
}

struct ExitWait {
  ~ExitWait() { settle(); }
};

std::atomic<std::int64_t> exit_limit{std::int64_t{30} * 1'000'000'000}, exit_spent{0};  ///< nanoseconds
std::atomic<bool> exiting{false};

}  // namespace

void settle_engines() {
  if (!thread_state().operation) settle();
}

void settle_engines_at_exit() {
  std::atexit(settle_engines);
  ::on_exit(leave_from_a_body, nullptr);
}

void settle_at_exit(const std::weak_ptr<CoreBase>& core) {
  once_in_process([] {
    engines();
    over_fork(over_forks);
    stay_loaded();
    ::on_exit(leave_from_a_body, nullptr);
  });
  std::lock_guard lock(mutex());
  std::erase_if(engines(), [](const auto& engine) { return engine.core.expired(); });
  engines().push_back({core, {}, nullptr});
}

void tell_at_exit(const std::shared_ptr<CoreBase>& core, const std::weak_ptr<Watchdog>& watchdog) {
  std::lock_guard lock(mutex());
  for (auto& engine : engines())
    if (!engine.core.owner_before(core) && !core.owner_before(engine.core)) engine.watchdog = watchdog;
}

void set_exit_limit(std::chrono::nanoseconds limit) { exit_limit.store(limit.count(), std::memory_order_relaxed); }

ExitTime::ExitTime(bool at_exit) {
  if (at_exit) exiting.store(true, std::memory_order_relaxed);
}

// Waits are what is counted, not the time since the first: who ends the main thread alone ends no process.
ExitTime::~ExitTime() {
  if (!exiting.load(std::memory_order_relaxed)) return;
  const std::chrono::nanoseconds spent = std::chrono::steady_clock::now() - start_;
  exit_spent.fetch_add(spent.count(), std::memory_order_relaxed);
}

std::chrono::nanoseconds ExitTime::left() const {
  const std::chrono::nanoseconds now = std::chrono::steady_clock::now() - start_,
                                 before(exit_spent.load(std::memory_order_relaxed)),
                                 all(exit_limit.load(std::memory_order_relaxed));
  return std::max(all - before - now, std::chrono::nanoseconds(0));
}

void arm_exit_wait() {
  if (::syscall(SYS_gettid) != ::getpid()) return;
  // The C library ends the process where it has no memory for the next line, so there is to be some.
  ::operator delete(::operator new(4096));
  static thread_local const ExitWait wait;
  static_cast<void>(wait);
}

}  // namespace sluice::detail
