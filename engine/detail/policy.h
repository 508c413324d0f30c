// SystemPolicy: where the protocol gets its atomics, parking, clock, queues and threads from in the product. The
// explorer has another (explore.h); the protocol code is the same lines for both.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

#include <concurrentqueue/concurrentqueue.h>

namespace sluice::detail {

/// The ready queues take their memory from operator new, as everything else does.
struct QueueTraits : moodycamel::ConcurrentQueueDefaultTraits {
  static void* malloc(std::size_t size) noexcept { return ::operator new(size, std::nothrow); }
  static void free(void* memory) noexcept { ::operator delete(memory); }
};

struct SystemPolicy {
  template <class T>
  using Atomic = std::atomic<T>;
  using Mutex = std::mutex;
  static void fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

  /// Of two threads that each announce something and then look for what the other announced, one sees the other if
  /// there is a fence between: a light one, free, in the thread that does it for each op, and a heavy one, which costs
  /// a microsecond, in the other. (membarrier(2); see P1202 "Asymmetric fences". Where the kernel has none, light ones
  /// are full ones.)
  static void light_fence() {
    if (asymmetric.load(std::memory_order_relaxed)) return std::atomic_signal_fence(std::memory_order_seq_cst);
    fence();
  }
  static void heavy_fence();
  /// Before the first fence of an engine.
  static void prepare_fences();
  static inline std::atomic<bool> asymmetric{false};

  /// What one thread puts in comes out in that order; a thread with a Producer of its own is quicker at it. enqueue
  /// returns false where there was no memory.
  template <class T>
  class Queue {
   public:
    class Producer {
     public:
      explicit Producer(Queue& queue) : token_(queue.queue_) {
        if (!token_.valid()) throw std::bad_alloc();
      }

     private:
      friend class Queue;
      moodycamel::ProducerToken token_;
    };
    bool enqueue(Producer& producer, T item) { return queue_.enqueue(producer.token_, item); }
    bool enqueue_bulk(Producer& producer, const T* items, std::size_t count) {
      return queue_.enqueue_bulk(producer.token_, items, count);
    }
    bool enqueue_bulk(const T* items, std::size_t count) { return queue_.enqueue_bulk(items, count); }
    bool try_dequeue(T& item) { return queue_.try_dequeue(item); }
    std::size_t try_dequeue_bulk(T* items, std::size_t most) { return queue_.try_dequeue_bulk(items, most); }
    std::size_t size_approx() const { return queue_.size_approx(); }

   private:
    moodycamel::ConcurrentQueue<T, QueueTraits> queue_;
  };

  static constexpr std::uint32_t kSlabOps = 256, kMaxSlabs = 1u << 14;  ///< op records come in slabs
  static constexpr int kWaitSpins = 400;                                ///< polls of a waiter before it parks
  static constexpr int kWaitYields = 150;                               ///< after those, which give way to others
  static constexpr int kDrainSpins = 300;                               ///< polls of a drainer before it leaves
  static constexpr int kGatherPauses = 60;               ///< of a drainer that is in step with the pusher
  static constexpr std::chrono::milliseconds kTick{20};  ///< how often a blocked waiter looks for a deadlock

  /// Where one thread waits to be told. A signal is kept until the wait; the wait may return early.
  class Parker {
   public:
    void signal() {
      {
        std::lock_guard lock(mutex_);
        signalled_ = true;
      }
      condition_.notify_one();
    }
    void wait(std::chrono::nanoseconds limit) {
      // glibc can lose a wake-up (bug 25847): never wait without an end.
      if (limit > std::chrono::milliseconds(200)) limit = std::chrono::milliseconds(200);
      std::unique_lock lock(mutex_);
      condition_.wait_for(lock, limit, [&] { return signalled_; });
      signalled_ = false;
    }

   private:
    std::mutex mutex_;
    std::condition_variable condition_;
    bool signalled_ = false;
  };

  /// The threads of one lane: a oneTBB arena. Arenas are kept for the next engine, never destroyed (tbb#1281).
  class Workers {
   public:
    explicit Workers(int width);
    ~Workers();
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;
    void start(std::function<void()> drainer);

   private:
    struct Pool;
    struct Arenas;
    struct Start;
    static void detach(std::shared_ptr<Start> start);
    class Watch;
    static void arrive(Start* task);
    std::shared_ptr<Pool> pool_;
  };

  /// A thread beside the lane's own, for the time that one of those is blocked in a wait.
  static void start_substitute(std::function<void()> drainer);

  /// Called before each start of a drainer or a substitute, and may throw: tests let starts fail. Null in the product.
  static inline std::atomic<void (*)()> before_start{nullptr};

  /// In a child: where oneTBB was in use before the fork, its threads are the parent's. Lanes get plain threads then.
  static void forked();
  static inline std::atomic<bool> arenas_made{false}, plain_threads{false};

  static std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  static void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
  }
  static void yield() { std::this_thread::yield(); }
};

}  // namespace sluice::detail
