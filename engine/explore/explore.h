// ExplorePolicy: the protocol on a controlled scheduler, with the memory of C++20 and not that of the machine
// (scheduler.h).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/engine/explore/guests.h"
#include "sluice/engine/explore/scheduler.h"

namespace sluice::detail {

struct CoreOptions;
enum class Step : std::uint8_t;
template <class P>
struct OpRecord;

struct ExplorePolicy {
  template <class T>
  class Atomic {
   public:
    Atomic() = default;
    Atomic(T value) : value_(value) {}  // NOLINT: as std::atomic
    Atomic(const Atomic&) = delete;
    Atomic& operator=(const Atomic&) = delete;

    T load(std::memory_order order = std::memory_order_seq_cst) const {
      if (Explorer::inside()) return from(Explorer::get().load(trail_, bits(), order));
      Guests::get().point();
      return value_.load();
    }
    void store(T value, std::memory_order order = std::memory_order_seq_cst) {
      if (Explorer::inside()) {
        Explorer::get().store(trail_, bits(), to(value), order);
        value_.store(value, std::memory_order_relaxed);  // the newest stands here too, for the end of the run
        return;
      }
      Guests::get().point();
      value_.store(value);
    }
    T exchange(T value, std::memory_order order = std::memory_order_seq_cst) {
      return modify([value](T) { return value; }, order);
    }
    T fetch_add(T value, std::memory_order order = std::memory_order_seq_cst) {
      return modify([value](T old) { return static_cast<T>(old + value); }, order);
    }
    T fetch_sub(T value, std::memory_order order = std::memory_order_seq_cst) {
      return modify([value](T old) { return static_cast<T>(old - value); }, order);
    }
    T fetch_or(T value, std::memory_order order = std::memory_order_seq_cst) {
      return modify([value](T old) { return static_cast<T>(old | value); }, order);
    }
    T fetch_and(T value, std::memory_order order = std::memory_order_seq_cst) {
      return modify([value](T old) { return static_cast<T>(old & value); }, order);
    }
    bool compare_exchange_strong(T& expected, T value, std::memory_order success, std::memory_order failure) {
      return compare(expected, value, success, failure, false);
    }
    bool compare_exchange_strong(T& expected, T value, std::memory_order order = std::memory_order_seq_cst) {
      return compare(expected, value, order, of_failure(order), false);
    }
    bool compare_exchange_weak(T& expected, T value, std::memory_order success, std::memory_order failure) {
      return compare(expected, value, success, failure, true);
    }
    bool compare_exchange_weak(T& expected, T value, std::memory_order order = std::memory_order_seq_cst) {
      return compare(expected, value, order, of_failure(order), true);
    }

   private:
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(std::uint64_t));
    static std::uint64_t to(T value) {
      std::uint64_t made = 0;
      std::memcpy(&made, &value, sizeof(T));
      return made;
    }
    static T from(std::uint64_t value) {
      T made;
      std::memcpy(&made, &value, sizeof(T));
      return made;
    }
    static constexpr std::memory_order of_failure(std::memory_order order) {
      return order == std::memory_order_acq_rel   ? std::memory_order_acquire
             : order == std::memory_order_release ? std::memory_order_relaxed
                                                  : order;
    }
    std::uint64_t bits() const { return to(value_.load(std::memory_order_relaxed)); }
    template <class F>
    T modify(F&& change, std::memory_order order) {
      if (Explorer::inside()) {
        Explorer::get().read_last(trail_, bits(), order);
        const T old = value_.load(std::memory_order_relaxed);
        const T made = change(old);
        Explorer::get().write(trail_, to(made), order);
        value_.store(made, std::memory_order_relaxed);
        return old;
      }
      Guests::get().point();
      T old = value_.load();
      while (!value_.compare_exchange_weak(old, change(old))) {
      }
      return old;
    }
    bool compare(T& expected, T value, std::memory_order success, std::memory_order failure, bool weak) {
      if (Explorer::inside()) {
        std::uint64_t saw = to(expected);
        const bool succeeds = Explorer::get().compare(trail_, bits(), &saw, success, failure, weak);
        if (succeeds) {
          Explorer::get().write(trail_, to(value), success);
          value_.store(value, std::memory_order_relaxed);
        } else {
          expected = from(saw);
        }
        return succeeds;
      }
      Guests::get().point();
      return value_.compare_exchange_strong(expected, value);
    }

    std::atomic<T> value_{};
    Trail trail_;
  };

  /// A field that is no atomic: two accesses of which one is a write must be ordered. To look costs no step.
  template <class T>
  class Plain {
   public:
    Plain() { see(true); }
    Plain(T value) : value_(std::move(value)) { see(true); }  // NOLINT: as T itself
    Plain(const Plain& other) : value_(other.get()) { see(true); }
    Plain& operator=(const Plain& other) { return *this = T(other.get()); }
    template <class U>
    Plain& operator=(U&& value) {
      see(true);
      value_ = std::forward<U>(value);
      return *this;
    }
    operator const T&() const { return get(); }  // NOLINT
    explicit operator bool() const requires(!std::is_arithmetic_v<T> && !std::is_pointer_v<T>) {
      return static_cast<bool>(get());
    }
    const T& operator->() const { return get(); }
    template <class U>
    Plain& operator|=(U bits) {
      return *this = static_cast<T>(get() | bits);
    }

   private:
    static_assert(!std::is_const_v<T>);
    const T& get() const {
      see(false);
      return value_;
    }
    void see(bool writes) const {
      if (Explorer::inside()) Explorer::get().plain(cell_, writes, __PRETTY_FUNCTION__);
    }
    T value_{};
    mutable Cell cell_;
  };

  class HandleOrder {
   public:
    void used() {
      if (Explorer::inside()) Explorer::get().tell(known_);
    }
    void gone() {
      if (Explorer::inside()) Explorer::get().learn(known_);
    }

   private:
    Told known_;
  };

  class Mutex {
   public:
    void lock() {
      if (Explorer::inside()) {
        Explorer::get().lock(trail_, &held_);
        held_.store(true);
        return;
      }
      do Guests::get().point();
      while (held_.exchange(true) && !Explorer::get().abandoned(trail_));
    }
    bool try_lock() {
      if (Explorer::inside()) {
        Explorer::get().try_lock(trail_, &held_);
      } else {
        Guests::get().point();
      }
      return !held_.exchange(true);
    }
    void unlock() {
      if (Explorer::inside()) return Explorer::get().unlock(trail_, &held_);
      held_.store(false);
    }

   private:
    std::atomic<bool> held_{false};
    Trail trail_;
  };

  /// First in, first out for each producer; between producers any order. A dequeue may miss items whose enqueue does
  /// not happen before it, as a load misses a store.
  template <class T>
  class Queue {
   public:
    class Producer {
     public:
      explicit Producer(Queue& queue) : number_(++queue.producers_) {}

     private:
      friend Queue;
      const std::uint32_t number_;
    };

    bool enqueue(T value) { return enqueue_bulk(&value, 1); }
    bool enqueue(Producer& producer, T value) { return enqueue_bulk(producer, &value, 1); }
    bool enqueue_bulk(const T* items, std::size_t count) { return enqueue(0, items, count); }
    bool enqueue_bulk(Producer& producer, const T* items, std::size_t count) {
      return enqueue(producer.number_, items, count);
    }
    bool try_dequeue(T& value) { return try_dequeue_bulk(&value, 1) == 1; }
    std::size_t try_dequeue_bulk(T* out, std::size_t most, std::size_t share = 1, std::size_t turn = 0);
    bool empty() const { return size_approx() == 0; }

   private:
    struct Item {
      T value;
      std::uint64_t producer;
      std::uint32_t run;  ///< of the explorer, in which a strand enqueued it; before that, all know it
      int strand;
      std::int16_t step;
      View view;
      bool known(const View& by) const {
        return run != Explorer::get().run_number() || step <= by.clock.at[static_cast<std::size_t>(strand)];
      }
    };
    bool enqueue(std::uint32_t producer, const T* items, std::size_t count);
    std::size_t size_approx() const;
    /// The first of each producer, in the order of their enqueues; one that need not be seen comes only with `all`.
    std::vector<std::size_t> heads(const View& by, bool all) const;

    mutable std::mutex mutex_;  ///< never held where others may go on
    std::vector<Item> items_;
    std::uint32_t producers_ = 0;
    Trail trail_;
  };

  static constexpr std::uint32_t kSlabOps = 32, kMaxSlabs = 64;
  static constexpr std::uint64_t kDeviceRing = 8, kPointBatch = 2;
  static constexpr bool kWatchStays = false, kOwnThreads = false;
  static constexpr int kWaitSpins = 1, kCapSpins = 1;
  static constexpr int kWaitYields = 0;
  static constexpr int kDrainSpins = 1;
  static constexpr int kGatherPauses = 1, kGathered = 4, kGatheredAtOnce = 1, kStartPauses = 1;
  static constexpr std::chrono::milliseconds kTick{20};

  class Parker {
   public:
    void signal() {
      if (Explorer::inside()) return Explorer::get().signal(trail_, &signalled_);
      Guests::get().unpark(&signalled_);
    }
    void wait(std::chrono::nanoseconds limit) {
      if (Explorer::inside()) return Explorer::get().park(trail_, &signalled_, limit);
      Guests::get().park(&signalled_, limit);
    }

   private:
    bool signalled_ = false;
    Trail trail_;
  };

  class Workers {
   public:
    explicit Workers(int) {}
    void* arena() const { return nullptr; }
    void start(std::function<void()> drainer) { start_substitute(std::move(drainer)); }
  };
  static void start_substitute(std::function<void()> drainer) {
    if (Explorer::inside()) return Explorer::get().start(std::move(drainer));
    Guests::get().start(std::move(drainer));
  }

  static bool may_be_of_a_body() { return false; }

  /// Hears of each step of the protocol, if set (record.h: tell).
  static inline void (*listener)(Step step, const OpRecord<ExplorePolicy>* op) = nullptr;

  static std::int64_t now() { return Explorer::inside() ? Explorer::get().now() : Guests::get().now(); }
  static void fence() { Explorer::inside() ? Explorer::get().fence() : Guests::get().point(); }
  static void light_fence() { Explorer::inside() ? Explorer::get().light_fence() : Guests::get().point(); }
  static void heavy_fence() { Explorer::inside() ? Explorer::get().heavy_fence() : Guests::get().point(); }
  static void prepare_fences() {}
  static void pause() { Explorer::inside() ? Explorer::get().pause() : Guests::get().point(); }
  static void yield() { pause(); }
};

template <class T>
bool ExplorePolicy::Queue<T>::enqueue(std::uint32_t producer, const T* items, std::size_t count) {
  Item item{{}, producer, 0, 0, 0, {}};
  if (Explorer::inside()) {
    Explorer::get().point();
    const Sight& me = Explorer::get().change(trail_);
    item.run = Explorer::get().run_number();
    item.strand = me.strand;
    item.step = me.view.clock.at[static_cast<std::size_t>(me.strand)];
    item.view = me.view;
    if (producer == 0) item.producer = std::uint64_t{1} << 32 | static_cast<std::uint32_t>(me.strand);
  } else {
    Guests::get().point();
  }
  std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < count; ++i) {
    item.value = items[i];
    items_.push_back(item);
  }
  return true;
}

template <class T>
std::vector<std::size_t> ExplorePolicy::Queue<T>::heads(const View& by, bool all) const {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    bool first = all || items_[i].known(by);
    for (std::size_t j = 0; j < i && first; ++j) first = items_[j].producer != items_[i].producer;
    if (first) found.push_back(i);
  }
  return found;
}

template <class T>
std::size_t ExplorePolicy::Queue<T>::try_dequeue_bulk(T* out, std::size_t max, std::size_t share, std::size_t) {
  std::size_t count = 0;
  if (share > 1) max = std::clamp<std::size_t>(size_approx() / share, 1, max);
  if (!Explorer::inside()) {
    Guests::get().point();
    std::lock_guard lock(mutex_);
    for (; count < max && count < items_.size(); ++count) out[count] = items_[count].value;
    items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }
  Explorer& explorer = Explorer::get();
  explorer.point();
  Sight& me = items_.empty() ? explorer.look(trail_) : explorer.change(trail_);
  const View before = me.view;
  while (count < max && !items_.empty()) {
    // Possibilities: any producer's first; and none, unless one of them must be seen.
    const std::vector<std::size_t> first = heads(before, true);
    const bool must = !heads(before, false).empty();
    const auto way = static_cast<std::size_t>(explorer.value(static_cast<int>(first.size() + (must ? 0 : 1))));
    if (way == first.size()) break;
    const std::size_t i = first[way];
    me.view.join(items_[i].view);
    explorer.note(static_cast<std::uint64_t>(items_[i].strand + 1) << 16 | static_cast<std::uint16_t>(items_[i].step));
    out[count++] = items_[i].value;
    items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return count;
}

template <class T>
std::size_t ExplorePolicy::Queue<T>::size_approx() const {
  if (!Explorer::inside()) {
    Guests::get().point();
    std::lock_guard lock(mutex_);
    return items_.size();
  }
  Explorer::get().point();
  const Sight& me = Explorer::get().look(trail_);
  std::size_t known = 0;
  for (const Item& item : items_) known += item.known(me.view);
  const int way = Explorer::get().value(static_cast<int>(items_.size() - known + 1));
  return items_.size() - static_cast<std::size_t>(way);
}

std::shared_ptr<CoreBase> make_exploring_core(const CoreOptions& options, std::uint64_t seed);

}  // namespace sluice::detail
