#include "sluice/nn/files/pace.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

namespace sluice::nn::detail {
namespace {

/// Whether the process ends, which waits for files.
std::atomic<bool> ends{false};

struct TellsTheEnd {
  ~TellsTheEnd() {
    if (::gettid() == ::getpid()) ends = true;
  }
};

/// The processor's time of the calling thread.
std::chrono::nanoseconds work() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

}  // namespace

PaceRule& pace_rule() {
  static PaceRule rule;
  return rule;
}

void Pace::rest() {
  const std::chrono::nanoseconds took = work() - worked_;
  const PaceRule& rule = pace_rule();
  {
    std::unique_lock lock(mutex_);
    hurried_.wait_for(lock, std::min<std::chrono::nanoseconds>(rule.rests * took, rule.longest),
                      [&] { return hurry_ || ends; });
  }
  worked_ = work();
}

void Pace::hurry() {
  const std::lock_guard lock(mutex_);
  hurry_ = true;
  hurried_.notify_all();
}

void hurry_at_exit() {
  thread_local const TellsTheEnd tells;
  (void)tells;
}

}  // namespace sluice::nn::detail
