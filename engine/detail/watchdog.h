// Looks at an engine from outside: explains, and names what does not move.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sluice/engine/engine.h"

namespace sluice::detail {

class Watchdog {
 public:
  using Hook = std::function<void(const std::string&)>;

  explicit Watchdog(std::shared_ptr<CoreBase> core) : core_(std::move(core)) {}
  ~Watchdog() { watch(std::chrono::nanoseconds(0), {}); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Engine::watch.
  void watch(std::chrono::nanoseconds limit, Hook hook);
  /// Engine::overdue.
  std::string overdue(std::chrono::nanoseconds limit, std::chrono::steady_clock::time_point now);
  std::string explain(const VariableBase* variable);
  std::string explain(std::uint64_t id);
  /// Tells the hook what is in flight, after a stop that did not get it done.
  void report_open();

 private:
  /// A record as it was seen last.
  struct Seen {
    std::uint64_t state = 0;  ///< generation, and whether it is live and running
    std::int64_t since = 0;   ///< when it was first seen so
    bool reported = false;
  };
  Look look(std::int64_t now);
  void tell(const std::string& report);
  void run();

  const std::shared_ptr<CoreBase> core_;
  std::mutex seen_mutex_;
  std::vector<Seen> seen_;
  bool watched_ = false;

  std::mutex watch_mutex_;  ///< one watch() at a time
  std::mutex mutex_;
  std::condition_variable changed_;
  Hook hook_;
  std::chrono::nanoseconds limit_{0};
  bool ended_ = true;  ///< the thread is over, but for its join
  std::thread thread_;
  int process_ = 0;  ///< that has the thread
};

}  // namespace sluice::detail
