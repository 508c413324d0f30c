// What arrays that lie in one memory have in common: the parts of a partitioned buffer, or imports that overlap.
#pragma once

#include <atomic>
#include <vector>

#include "sluice/ndarray/array_mutex.h"
#include "sluice/ndarray/ref.h"

namespace sluice {

class Array;

/// Arrays that lie in one memory. A write to one of them cannot move to a new version, because the others would not see
/// it. It copies held values away instead. Two groups of imports become one when a later import overlaps both.
class ShareGroup final : public RefCounted {
 public:
  ~ShareGroup() override;

  /// The group that this one has become part of, or itself. Its lock and its list are the ones in use.
  ShareGroup& root();
  /// Takes `other` in. Both are roots; the caller holds both locks, and the list of imports does not change meanwhile.
  void take_in(ShareGroup& other);

  /// A snapshot that shows the shared memory.
  void list_snapshot(Array* array);
  static void strike_snapshot(const Ref<ShareGroup>& group, Array* array) noexcept;
  /// The snapshots that live. Called on a root, with its lock held.
  std::vector<Ref<Array>> snapshots();
  bool any_snapshot();

  SmallMutex lock;  ///< of a root: used in place of the mutex of every array of the group

 private:
  std::atomic<ShareGroup*> into_{nullptr};  ///< set once; counted
  std::vector<Array*> snapshots_;           ///< guarded by ProcessLock::snapshots; nothing is taken while that is held
};

/// Guards an array's version and history. It is a mutex of its own, or that of the array's group; the group may become
/// part of another while a thread waits for the mutex.
class ArrayMutex {
 public:
  void lock() {
    if (!group_) [[likely]]
      return own_.lock();
    for (;;) {
      SmallMutex& mutex = current();
      mutex.lock();
      if (&mutex == &current()) return;
      mutex.unlock();
    }
  }
  void unlock() { group_ ? group_->root().lock.unlock() : own_.unlock(); }
  /// The mutex in use now. It does not change while it is held.
  SmallMutex& current() { return group_ ? group_->root().lock : own_; }

  const Ref<ShareGroup>& group() const { return group_; }
  /// Called before another thread can see the array.
  void join(Ref<ShareGroup> group) { group_ = std::move(group); }

 private:
  SmallMutex own_;
  Ref<ShareGroup> group_;
};

}  // namespace sluice
