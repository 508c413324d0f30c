// SystemPolicy: gives the protocol its atomics, parking, clock, queues and threads in the product. The explorer has
// another policy (explore/explore.h). The protocol is the same code for both.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <type_traits>

// Distributions keep it in folders of different names, which cmake/dependencies.cmake looks through. GCC 14 believes
// that a ProducerToken's destructor reads fields which were never set: it loses track of whether an optional, where our
// tokens are, is empty. clang does not know that warning.
#pragma GCC diagnostic push
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <concurrentqueue.h>
#pragma GCC diagnostic pop

#include "sluice/engine/detail/ring.h"

namespace sluice::detail {

/// The ready queues take their memory from operator new, as everything else does.
struct QueueTraits : moodycamel::ConcurrentQueueDefaultTraits {
  static void* malloc(std::size_t size) noexcept { return ::operator new(size, std::nothrow); }
  static void free(void* memory) noexcept { ::operator delete(memory); }
};

struct SystemPolicy {
  template <class T>
  using Atomic = std::atomic<T>;
  /// The type of a field that is not atomic itself and that the protocol publishes by its atomics. The explorer checks
  /// that it does: there Plain is a class.
  template <class T>
  using Plain = T;
  /// Says that each use of a variable's handle happens before its last handle is destroyed. In the product the count of
  /// handles (variable.h) ensures it; the explorer has only this.
  struct HandleOrder {
    void used() {}
    void gone() {}
  };
  using Mutex = std::mutex;
  static void fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

  /// If two threads each announce something and then look for what the other announced, one of them sees the other, if
  /// each executes a fence between. The thread that does it for each op has a light fence, which is free; the other has
  /// a heavy one, which costs a microsecond. (membarrier(2); see P1202 "Asymmetric fences". Where the kernel has no
  /// membarrier, light fences are full ones.)
  static void light_fence() {
    if (asymmetric.load(std::memory_order_relaxed)) return std::atomic_signal_fence(std::memory_order_seq_cst);
    fence();
  }
  static void heavy_fence();
  /// Called before the first fence of an engine.
  static void prepare_fences();
  static inline std::atomic<bool> asymmetric{false};

  /// A ready queue, from many threads to many. Each producer has a ring. Items that find no room there, or have no
  /// producer, go to a common queue. The items of one producer come out in about the order in which it put them in.
  /// enqueue returns false where there was no memory.
  template <class T>
  class Queue {
   public:
    using Item = std::remove_pointer_t<T>;
    class Producer {
     public:
      explicit Producer(Queue& queue) {
        if (queue.rings_made_.load(std::memory_order_relaxed) >= kRings) return;  // it is one of the crowd
        token_.emplace(queue.queue_);
        if (!token_->valid()) throw std::bad_alloc();
        const std::size_t place = queue.rings_made_.fetch_add(1, std::memory_order_relaxed);
        if (place >= kRings) return;
        ring_ = std::make_unique<Ring<SystemPolicy, Item>>();
        queue.rings_[place].store(ring_.get(), std::memory_order_release);
        std::size_t end = queue.rings_end_.load(std::memory_order_relaxed);
        while (end <= place && !queue.rings_end_.compare_exchange_weak(end, place + 1, std::memory_order_acq_rel)) {
        }
      }

     private:
      friend class Queue;
      std::optional<moodycamel::ProducerToken> token_;
      std::unique_ptr<Ring<SystemPolicy, Item>> ring_;
      std::uint32_t beside_ = 0;  ///< how many went to the common queue since the ring was full
    };
    bool enqueue(Producer& producer, T item) {
      if (producer.ring_ && producer.beside_ == 0 && producer.ring_->put(item)) [[likely]]
        return true;
      return enqueue_beside(producer, item);
    }
    bool enqueue_bulk(Producer& producer, const T* items, std::size_t count) {
      if (count == 1) return enqueue(producer, *items);
      producer.beside_ += static_cast<std::uint32_t>(count);
      return producer.token_ ? queue_.enqueue_bulk(*producer.token_, items, count) : enqueue_of_crowd(items, count);
    }
    /// By a thread for whose producer there was no memory. Not by moodycamel's own call without a token: since 1.0.4
    /// that has the end of the thread noted, for which the C library ends the process where it finds no memory.
    bool enqueue_bulk(const T* items, std::size_t count) { return enqueue_of_crowd(items, count); }
    bool try_dequeue(T& item) { return try_dequeue_bulk(&item, 1) == 1; }
    /// Takes up to `most` items, and at most one of `share` that are there, but one if there is any. `turn`: where to
    /// look first.
    std::size_t try_dequeue_bulk(T* items, std::size_t most, std::size_t share = 1, std::size_t turn = 0) {
      const std::size_t rings = rings_end_.load(std::memory_order_acquire);
      for (std::size_t i = 0; i <= rings; ++i) {
        const std::size_t at = (turn + i) % (rings + 1);
        std::size_t count = 0;
        if (at == rings) {
          const std::size_t there = queue_.size_approx();
          if (there) count = queue_.try_dequeue_bulk(items, std::clamp<std::size_t>(there / share, 1, most));
        } else if (auto* ring = rings_[at].load(std::memory_order_acquire)) {
          count = ring->take(items, most, share);
        }
        if (count) return count;
      }
      return 0;
    }
    bool empty() const {
      for (std::size_t i = 0, end = rings_end_.load(std::memory_order_acquire); i < end; ++i)
        if (const auto* ring = rings_[i].load(std::memory_order_acquire); ring && !ring->empty()) return false;
      const bool none = queue_.size_approx() == 0;
      std::atomic_thread_fence(std::memory_order_acquire);  // that is relaxed
      return none;
    }

   private:
    static constexpr std::size_t kRings = 64;
    /// The ring is full, or was. While the common queue has items of this producer these come first, so the ring is not
    /// used until that queue is empty.
    [[gnu::noinline]] bool enqueue_beside(Producer& producer, T item) {
      if (producer.ring_ && producer.beside_ != 0 && producer.beside_ % 64 == 0 && queue_.size_approx() == 0) {
        producer.beside_ = 0;
        if (producer.ring_->put(item)) return true;
      }
      ++producer.beside_;
      return producer.token_ ? queue_.enqueue(*producer.token_, item) : enqueue_of_crowd(&item, 1);
    }
    /// A consumer looks at all producers, so the threads that found no room for a ring share one.
    bool enqueue_of_crowd(const T* items, std::size_t count) {
      std::lock_guard lock(crowd_mutex_);
      try {
        if (!crowd_) crowd_.emplace(queue_);
      } catch (const std::bad_alloc&) {
        return false;
      }
      if (crowd_->valid()) return queue_.enqueue_bulk(*crowd_, items, count);
      crowd_.reset();
      return false;
    }
    moodycamel::ConcurrentQueue<T, QueueTraits> queue_;
    std::array<std::atomic<Ring<SystemPolicy, Item>*>, kRings> rings_{};
    std::atomic<std::size_t> rings_end_{0}, rings_made_{0};
    std::mutex crowd_mutex_;
    std::optional<moodycamel::ProducerToken> crowd_;
  };

  static constexpr std::uint32_t kSlabOps = 256, kMaxSlabs = 1u << 14;  ///< op records come in slabs
  static constexpr std::uint64_t kDeviceRing = 1024,
                                 kPointBatch = 64;  ///< for stream lanes: ops in flight; ops to a point
  static constexpr bool kWatchStays = true;         ///< a watcher parks before it leaves
  static constexpr bool kOwnThreads = true;         ///< its threads are the system's: a provider can tell them apart
  static constexpr int kWaitSpins = 400;            ///< polls of a waiter before it parks
  static constexpr int kWaitYields = 150;           ///< polls after those, which yield the core
  static constexpr int kCapSpins = 20;              ///< the same at a cap
  static constexpr int kDrainSpins = 300;           ///< pauses of a drainer before it leaves
  static constexpr int kStartPauses = 20;           ///< pauses before one more drainer is started
  static constexpr int kGatherPauses = 60;          ///< pauses at a time of a drainer that is in step with the pushers
  static constexpr int kGathered = 256;             ///< ops in flight after which it goes on
  static constexpr int kGatheredAtOnce = 4;         ///< fewer new ops in that time count as none
  static constexpr std::chrono::milliseconds kTick{20};  ///< how often a blocked waiter looks for a deadlock

  /// One thread waits here until it is signalled. A signal is kept until the wait. The wait may return early.
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
      if (limit > std::chrono::seconds(1)) limit = std::chrono::seconds(1);
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
    /// For run_inside. Null where the workers are plain threads; then loops run on one thread.
    void* arena() const { return pool_.get(); }
    /// Calls body(data) on the calling thread, as one more thread of that arena. Returns false, and does not call it,
    /// if there is another such guest.
    static bool run_inside(void* arena, void (*body)(void*), void* data);

   private:
    struct Pool;
    struct Arenas;
    struct Start;
    class Task;
    static void detach(std::shared_ptr<Start> start);
    class Watch;
    static void arrive(Start* task);
    std::shared_ptr<Pool> pool_;
  };

  /// Starts a thread beside the lane's own, for the time in which one of those is blocked in a wait.
  static void start_substitute(std::function<void()> drainer);

  /// True on a thread of oneTBB, and on one that joined an arena: what it runs may be a task of some op's body.
  static bool may_be_of_a_body();

  /// Called before each start of a drainer or a substitute. It may throw: tests make starts fail by it. Null in the
  /// product.
  static inline std::atomic<void (*)()> before_start{nullptr};

  /// Called in a forked child, if oneTBB was in use before the fork: its threads are the parent's, and lanes get plain
  /// threads.
  static void forked();
  /// The same where oneTBB failed in the midst of its work, and cannot be asked again. Loops run alone then.
  static void tbb_failed();
  static inline std::atomic<bool> plain_threads{false};

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
