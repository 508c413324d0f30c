// The explorer's other half: ordinary programs in EngineMode::explore, whose threads are real ones.
//
// Bodies may block outside of the engine there (on a gate that another thread opens), so each needs a stack that the
// operating system can park: fibers cannot serve. Threads hand a baton instead, at every operation of the policy, and
// the seed draws who gets it. Memory is what the machine makes of it. A holder that takes no step for 50 ms (it blocks
// somewhere outside) loses the baton, which keeps such programs alive at the price of replay.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace sluice::detail {

class Guests {
 public:
  static Guests& get();

  void reset(std::uint64_t seed);
  void point();                                                ///< somebody else may go on here
  void start(std::function<void()> body);                      ///< a new controlled thread
  void park(bool* signalled, std::chrono::nanoseconds limit);  ///< until *signalled, or virtual time is up
  void unpark(bool* signalled);
  std::int64_t now();

 private:
  struct Thread {
    enum State : std::uint8_t { runnable, parked, away, ended } state = runnable;
    bool guest = false;
    bool* signalled = nullptr;
    std::int64_t deadline = 0;
    std::condition_variable wake;
  };
  /// The calling thread's place among the controlled ones; kept to the thread's very end.
  struct Place {
    std::weak_ptr<Thread> thread;
    ~Place();
  };

  static std::weak_ptr<Thread>& current();
  std::shared_ptr<Thread> self();
  Thread* choose();
  void schedule(std::unique_lock<std::mutex>& lock, Thread* me);
  void wait_turn(std::unique_lock<std::mutex>& lock, Thread* me);
  void end(Thread* me);
  std::uint64_t draw();

  std::mutex mutex_;
  std::vector<std::shared_ptr<Thread>> threads_;
  Thread* holder_ = nullptr;
  std::uint64_t random_ = 0;
  std::uint64_t stay_ = 1;  ///< one time in so many the holder may lose its turn
  std::int64_t clock_ = 0;
  std::chrono::steady_clock::time_point last_step_;
};

}  // namespace sluice::detail
