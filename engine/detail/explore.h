// ExplorePolicy: the protocol on a controlled scheduler. One thread holds the baton; at every policy operation the
// scheduler draws, from a seed, who goes on. The same seed gives the same interleaving.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "sluice/engine/engine.h"

namespace sluice::detail {

struct CoreOptions;
enum class Step : std::uint8_t;
template <class P>
struct OpRecord;

/// The controlled scheduler; one for the process, so one exploring engine at a time. Threads that the engine starts,
/// and those given to run(), are controlled from their first step. Any other thread that calls the engine while those
/// live joins as a guest. A holder that takes no step for 50 ms (it blocks on something outside of the engine) loses
/// the baton, which keeps such programs alive at the price of replay.
class Explorer {
 public:
  static Explorer& get();

  void reset(std::uint64_t seed);
  /// Runs the bodies as controlled threads, and returns when they and all that they started have ended.
  /// False if that took more than `max_points` steps: a hang (the threads are then let go uncontrolled).
  bool run(std::vector<std::function<void()>> bodies, std::uint64_t max_points = 1'000'000);
  /// A fingerprint of every choice made since reset.
  std::uint64_t trace_hash() const { return hash_; }
  std::uint64_t points() const { return points_; }

  // For the policy.
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
  struct Guest {
    std::weak_ptr<Thread> thread;
    ~Guest();
  };

  static std::weak_ptr<Thread>& current();
  std::shared_ptr<Thread> self(bool join);
  void schedule(std::unique_lock<std::mutex>& lock, Thread* me);
  Thread* choose();
  void wait_turn(std::unique_lock<std::mutex>& lock, Thread* me);
  void end(std::unique_lock<std::mutex>& lock, Thread* me);
  std::uint64_t draw();

  std::mutex mutex_;
  std::condition_variable finished_;
  std::vector<std::shared_ptr<Thread>> threads_;
  Thread* holder_ = nullptr;
  bool free_running_ = false;
  std::uint64_t random_ = 0, hash_ = 0, points_ = 0, max_points_ = ~std::uint64_t{0};
  std::uint64_t stay_ = 1;  ///< one time in so many the holder may lose its turn
  std::int64_t clock_ = 0;
  std::chrono::steady_clock::time_point last_step_;
};

struct ExplorePolicy {
  template <class T>
  class Atomic {
   public:
    Atomic() = default;
    Atomic(T value) : value_(value) {}  // NOLINT: as std::atomic
    T load(std::memory_order = std::memory_order_seq_cst) const { return step(), value_.load(); }
    void store(T value, std::memory_order = std::memory_order_seq_cst) { step(), value_.store(value); }
    T exchange(T value, std::memory_order = std::memory_order_seq_cst) { return step(), value_.exchange(value); }
    T fetch_add(T value, std::memory_order = std::memory_order_seq_cst) { return step(), value_.fetch_add(value); }
    T fetch_sub(T value, std::memory_order = std::memory_order_seq_cst) { return step(), value_.fetch_sub(value); }
    T fetch_or(T value, std::memory_order = std::memory_order_seq_cst) { return step(), value_.fetch_or(value); }
    T fetch_and(T value, std::memory_order = std::memory_order_seq_cst) { return step(), value_.fetch_and(value); }
    bool compare_exchange_strong(T& expected, T value, std::memory_order = std::memory_order_seq_cst,
                                 std::memory_order = std::memory_order_seq_cst) {
      step();
      return value_.compare_exchange_strong(expected, value);
    }
    bool compare_exchange_weak(T& expected, T value, std::memory_order = std::memory_order_seq_cst,
                               std::memory_order = std::memory_order_seq_cst) {
      return compare_exchange_strong(expected, value);
    }

   private:
    static void step() { Explorer::get().point(); }
    std::atomic<T> value_{};
  };

  class Mutex {
   public:
    void lock() {
      do Explorer::get().point();
      while (held_.exchange(true));
    }
    bool try_lock() {
      Explorer::get().point();
      return !held_.exchange(true);
    }
    void unlock() { held_.store(false); }

   private:
    std::atomic<bool> held_{false};
  };

  static void fence() { Explorer::get().point(); }

  template <class T>
  class Queue {
   public:
    struct Producer {
      explicit Producer(Queue&) {}
    };
    bool enqueue(Producer&, T value) { return enqueue(value); }
    bool enqueue_bulk(Producer&, const T* items, std::size_t count) { return enqueue_bulk(items, count); }
    bool enqueue_bulk(const T* items, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) enqueue(items[i]);
      return true;
    }
    std::size_t try_dequeue_bulk(T* items, std::size_t most) {
      std::size_t count = 0;
      while (count < most && try_dequeue(items[count])) ++count;
      return count;
    }
    std::size_t size_approx() const {
      Explorer::get().point();
      std::lock_guard lock(mutex_);
      return items_.size();
    }
    bool enqueue(T value) {
      Explorer::get().point();
      std::lock_guard lock(mutex_);
      items_.push_back(value);
      return true;
    }
    bool try_dequeue(T& value) {
      Explorer::get().point();
      std::lock_guard lock(mutex_);
      if (items_.empty()) return false;
      value = items_.front();
      items_.pop_front();
      return true;
    }

   private:
    mutable std::mutex mutex_;
    std::deque<T> items_;
  };

  static constexpr std::uint32_t kSlabOps = 32, kMaxSlabs = 64;
  static constexpr int kWaitSpins = 1;
  static constexpr int kDrainSpins = 1;
  static constexpr int kGatherPauses = 1;
  static constexpr std::chrono::milliseconds kTick{20};

  class Parker {
   public:
    void signal() { Explorer::get().unpark(&signalled_); }
    void wait(std::chrono::nanoseconds limit) { Explorer::get().park(&signalled_, limit); }

   private:
    bool signalled_ = false;  // under the explorer's mutex
  };

  class Workers {
   public:
    explicit Workers(int) {}
    void start(std::function<void()> drainer) { Explorer::get().start(std::move(drainer)); }
  };
  static void start_substitute(std::function<void()> drainer) { Explorer::get().start(std::move(drainer)); }

  /// Hears of each step of the protocol, if set (record.h: tell).
  static inline void (*listener)(Step step, const OpRecord<ExplorePolicy>* op) = nullptr;

  static std::int64_t now() { return Explorer::get().now(); }
  static void pause() { Explorer::get().point(); }
  static void yield() { Explorer::get().point(); }
};

std::shared_ptr<CoreBase> make_exploring_core(const CoreOptions& options, std::uint64_t seed);

}  // namespace sluice::detail
