// What arrays have in common that lie in one memory: the parts of a partitioned buffer, or imports that overlap.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "sluice/ndarray/ref.h"

namespace sluice {

class Array;

/// Arrays that lie in one memory. A write there cannot move to a new version, because the others would not see it; it
/// copies held values away instead. Groups of imports become one when a later import overlaps both.
class ShareGroup final : public RefCounted {
 public:
  ~ShareGroup() override;

  /// The group that this one has become part of: the one whose members count.
  ShareGroup& root();
  /// Takes `other` in. With the locks of both, which are roots; the list of imports does not change meanwhile.
  void take_in(ShareGroup& other);

  /// A snapshot that shows the shared memory.
  void list_snapshot(Array* array);
  static void strike_snapshot(const Ref<ShareGroup>& group, Array* array) noexcept;
  /// Those that live. On a root, with its lock.
  std::vector<Ref<Array>> snapshots();
  bool any_snapshot();

  std::recursive_mutex lock;  ///< of a root: stands for the mutex of every array of the group

 private:
  std::atomic<ShareGroup*> into_{nullptr};  ///< set once; counted
  std::mutex list_;                         ///< guards `snapshots_`; nothing else is taken while it is held
  std::vector<Array*> snapshots_;
};

/// Guards an array's version and history: a mutex of its own, or that of its group, which may become part of another
/// while somebody waits for it. Recursive, because serial mode runs a body inside its push.
class ArrayMutex {
 public:
  void lock() {
    if (!group_) return own_.lock();
    for (;;) {
      std::recursive_mutex& mutex = current();
      mutex.lock();
      if (&mutex == &current()) return;
      mutex.unlock();
    }
  }
  void unlock() { group_ ? group_->root().lock.unlock() : own_.unlock(); }
  /// The mutex that counts now: stays so while it is held.
  std::recursive_mutex& current() { return group_ ? group_->root().lock : own_; }

  const Ref<ShareGroup>& group() const { return group_; }
  /// Before anyone else sees the array.
  void join(Ref<ShareGroup> group) { group_ = std::move(group); }

 private:
  std::recursive_mutex own_;
  Ref<ShareGroup> group_;
};

}  // namespace sluice
