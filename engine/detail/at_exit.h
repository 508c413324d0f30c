// The end of the process, and its forks, while ops are in flight.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>

#include "sluice/engine/detail/watchdog.h"

namespace sluice::detail {

class CoreBase;

/// Makes the end of the process wait for what is ready or running in this engine, before the first static object is
/// destroyed; and tells the engine of a fork, in the child.
void settle_at_exit(const std::weak_ptr<CoreBase>& core);
/// Sets the watchdog that then says what is waited for.
void tell_at_exit(const std::shared_ptr<CoreBase>& core, const std::weak_ptr<Watchdog>& watchdog);
/// Called by each thread at its first use of an engine; the main thread's call arms the wait.
void arm_exit_wait();

/// SLUICE_EXIT_SECONDS.
void set_exit_limit(std::chrono::nanoseconds limit);

/// The time that the end of an engine, or of the process, may take. From the first that says `at_exit` on, all share
/// one limit.
class ExitTime {
 public:
  explicit ExitTime(bool at_exit = false);
  ~ExitTime();
  ExitTime(const ExitTime&) = delete;
  ExitTime& operator=(const ExitTime&) = delete;
  std::chrono::nanoseconds left() const;

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Calls wait(time) for no more than `limit` in all; returns what that says. After a second the watchdog tells what is
/// in flight.
template <class Wait>
bool wait_and_tell(std::chrono::nanoseconds limit, Watchdog& watchdog, Wait&& wait) {
  constexpr std::chrono::nanoseconds silence = std::chrono::seconds(1);
  if (wait(std::min(limit, silence))) return true;
  if (limit <= silence) return false;
  const auto rest = limit - silence;
  watchdog.report_open("the end waits for ",
                       " in flight, for " + seconds_text(rest) + " at most (SLUICE_EXIT_SECONDS).");
  return wait(rest);
}

}  // namespace sluice::detail
