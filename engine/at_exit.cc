// Bodies use libraries whose static objects are younger than the engine (oneDNN's and OpenBLAS's kernels, made at their
// first use): an exit handler of ours runs when those are gone. The main thread's thread_local objects go before any of
// them, so that is where what is in flight is waited for. Where another thread calls exit(), or the main thread never
// used an engine, only the exit handler is left.
#include "sluice/engine/detail/at_exit.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <vector>

#include "sluice/engine/engine.h"

namespace sluice::detail {
namespace {

struct Engines {
  std::mutex mutex;
  std::vector<std::weak_ptr<CoreBase>> all;
};
Engines& engines() {
  static Engines* const made = new Engines;  // static engines may be made and go after it would
  return *made;
}

struct ExitWait {
  const pid_t process = ::getpid();
  ~ExitWait() {
    if (process != ::getpid()) return;  // a forked child has none of the threads that it would wait for
    std::vector<std::shared_ptr<CoreBase>> alive;
    {
      std::lock_guard lock(engines().mutex);
      for (const auto& engine : engines().all)
        if (auto core = engine.lock()) alive.push_back(std::move(core));
    }
    for (const auto& core : alive) core->settle(std::chrono::seconds(30));
  }
};

}  // namespace

void settle_at_exit(const std::weak_ptr<CoreBase>& core) {
  std::lock_guard lock(engines().mutex);
  std::erase_if(engines().all, [](const auto& engine) { return engine.expired(); });
  engines().all.push_back(core);
}

void arm_exit_wait() {
  if (::syscall(SYS_gettid) != ::getpid()) return;
  static thread_local const ExitWait wait;
  static_cast<void>(wait);
}

}  // namespace sluice::detail
