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

struct LookedWait;

/// "1.5 s".
std::string seconds_text(std::chrono::nanoseconds time);

class Watchdog {
 public:
  using Hook = std::function<void(const std::string&)>;

  explicit Watchdog(std::shared_ptr<CoreBase> core);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Engine::watch.
  void watch(std::chrono::nanoseconds limit, Hook hook);
  /// Engine::overdue.
  std::string overdue(std::chrono::nanoseconds limit, std::chrono::steady_clock::time_point now);
  std::string explain(const VariableBase* variable);
  std::string explain(std::uint64_t id);
  /// Tells the hook what is in flight: `before`, how many ops, `after`, and each of them.
  void report_open(const std::string& before, const std::string& after);

 private:
  /// A record as it was seen last.
  struct Seen {
    std::uint64_t state = 0;  ///< generation, and whether it is live and running
    std::int64_t since = 0;   ///< when it was first seen so
    bool reported = false;
  };
  /// The hook and the thread that calls it.
  struct Watch {
    std::mutex mutex;
    std::condition_variable changed;
    Hook hook;
    std::chrono::nanoseconds limit{0};
    std::uint64_t turn = 0;            ///< calls of watch(): the thread of an earlier one ends
    std::vector<std::thread> threads;  ///< the last one, and any that could not be joined from its own hook
  };
  bool forked() const;
  Look look(std::int64_t now);
  static std::string follow(const LookedWait& wait, CoreBase* home);
  void tell(const std::string& report);
  void run(std::uint64_t turn);

  const std::shared_ptr<CoreBase> core_;
  std::mutex seen_mutex_;
  std::vector<Seen> seen_;
  const int process_;
  std::unique_ptr<Watch> watch_;
};

}  // namespace sluice::detail
