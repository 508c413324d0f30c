// The locks of a push on arrays.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "sluice/ndarray/push.h"

namespace sluice {

/// The locks of the arrays of a push, taken in address order. It refers to the push, and is not copied.
class ArrayLocks {
 public:
  explicit ArrayLocks(const ArrayPush& push) : push_(push) { settle(); }
  void lock() {
    for (;;) {
      for (std::recursive_mutex* m : list()) m->lock();
      if (!groups_ || current()) return;
      unlock();  // an import joined groups meanwhile
      settle();
    }
  }
  void unlock() {
    for (std::recursive_mutex* m : list()) m->unlock();
  }

 private:
  [[gnu::always_inline]] void settle() {
    count_ = 0;
    many_.clear();
    groups_ = false;
    for (const NDArray* x : push_.inputs) add(x->array()->mutex());
    for (const NDArray& y : push_.outputs) add(y.array()->mutex());
    if (!many_.empty()) settle_many();
  }
  [[gnu::noinline]] void settle_many() {
    std::sort(many_.begin(), many_.end(), std::less<>());
    many_.erase(std::unique(many_.begin(), many_.end()), many_.end());
  }
  /// Keeps a few locks in order, each once. Many locks are put in order when all of them are there.
  void add(ArrayMutex& of_array) {
    if (of_array.group()) groups_ = true;
    std::recursive_mutex* const mutex = &of_array.current();
    if (count_ == few_.size()) return add_to_many(mutex);
    std::size_t at = count_;
    while (at > 0 && std::less<>()(mutex, few_[at - 1])) --at;
    if (at > 0 && few_[at - 1] == mutex) return;
    for (std::size_t i = count_++; i > at; --i) few_[i] = few_[i - 1];
    few_[at] = mutex;
  }
  [[gnu::noinline]] void add_to_many(std::recursive_mutex* mutex) {
    if (many_.empty()) many_.assign(few_.begin(), few_.end());
    many_.push_back(mutex);
  }
  /// True if these are still the mutexes in use.
  bool current() {
    const auto held = [locks = list()](ArrayMutex& mutex) {
      return !mutex.group() || std::binary_search(locks.begin(), locks.end(), &mutex.current(), std::less<>());
    };
    return std::all_of(push_.inputs.begin(), push_.inputs.end(),
                       [&](const NDArray* x) { return held(x->array()->mutex()); }) &&
           std::all_of(push_.outputs.begin(), push_.outputs.end(),
                       [&](const NDArray& y) { return held(y.array()->mutex()); });
  }
  std::span<std::recursive_mutex*> list() {
    return many_.empty() ? std::span(few_).first(count_) : std::span<std::recursive_mutex*>(many_);
  }

  const ArrayPush& push_;
  std::array<std::recursive_mutex*, 8> few_{};
  std::vector<std::recursive_mutex*> many_;
  std::size_t count_ = 0;
  bool groups_ = false;
};

}  // namespace sluice
