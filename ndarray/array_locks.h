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

/// The locks of the arrays of a push that other threads may know, taken in address order. It refers to the push, and is
/// not copied.
class ArrayLocks {
 public:
  explicit ArrayLocks(const ArrayPush& push) : push_(push) { settle(); }
  void lock() {
    for (;;) {
      lock_all();
      if (!groups_ || current()) return;
      unlock();  // an import joined groups meanwhile
      settle();
    }
  }
  void unlock() {
    for (SmallMutex* m : list()) m->unlock();
  }

 private:
  void lock_all() {
    const std::span<SmallMutex*> wanted = list();
    auto next = wanted.begin();
    try {
      for (; next != wanted.end(); ++next) (*next)->lock();
    } catch (...) {  // in a forked child
      while (next != wanted.begin()) (*--next)->unlock();
      throw;
    }
  }
  [[gnu::always_inline]] void settle() {
    count_ = 0;
    many_.clear();
    groups_ = false;
    for (const NDArray* x : push_.inputs) add(x->array()->mutex());
    if (!push_.fresh)
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
    SmallMutex* const mutex = &of_array.current();
    if (count_ == few_.size()) return add_to_many(mutex);
    std::size_t at = count_;
    while (at > 0 && std::less<>()(mutex, few_[at - 1])) --at;
    if (at > 0 && few_[at - 1] == mutex) return;
    for (std::size_t i = count_++; i > at; --i) few_[i] = few_[i - 1];
    few_[at] = mutex;
  }
  [[gnu::noinline]] void add_to_many(SmallMutex* mutex) {
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
           (push_.fresh || std::all_of(push_.outputs.begin(), push_.outputs.end(),
                                       [&](const NDArray& y) { return held(y.array()->mutex()); }));
  }
  std::span<SmallMutex*> list() {
    return many_.empty() ? std::span(few_).first(count_) : std::span<SmallMutex*>(many_);
  }

  const ArrayPush& push_;
  std::array<SmallMutex*, 8> few_;
  std::vector<SmallMutex*> many_;
  std::size_t count_ = 0;
  bool groups_ = false;
};

}  // namespace sluice
