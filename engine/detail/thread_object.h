// One object for each thread that outlives the thread's own thread_local objects and static destructors.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <new>
#include <utility>

#include "sluice/engine/detail/forks.h"

namespace sluice::detail {

/// The calling thread's T, made at first use. A plain thread_local with a destructor would be gone when a handle in
/// another thread_local or static object is dropped at exit (mx#19379 and its successors). Keys are cleared after all
/// thread_local objects of a thread, and never for the main thread, whose object stays reachable to the end. It lies in
/// the thread's own storage: making it takes no memory, so that it cannot fail.
template <class T>
class ThreadObject {
 public:
  static T& get() {
    if (!object_) make();
    return *object_;
  }
  /// Ends it before the thread does.
  static void drop() {
    if (object_) end();
  }
  /// Puts another in its place, or none, and returns what was there: for fibers, which share a thread's thread_locals.
  static T* exchange(T* other) { return std::exchange(object_, other); }

 private:
  static pthread_key_t key() {
    return first_use([] {
      static constinit pthread_key_t made{};
      pthread_key_create(&made, [](void*) { drop(); });
      return &made;
    });
  }
  static void make() {
    if (std::exchange(stored_, true)) {
      object_ = new T;  // a fiber's
      return;
    }
    object_ = new (storage_) T;
    pthread_setspecific(key(), storage_);
  }
  /// While its destructor runs, get() still gives this object.
  static void end() {
    if (object_ == static_cast<void*>(storage_)) {
      pthread_setspecific(key(), nullptr);
      object_->~T();
      stored_ = false;
    } else {
      delete object_;
    }
    object_ = nullptr;
  }
  alignas(T) static inline constinit thread_local std::byte storage_[sizeof(T)]{};
  static inline constinit thread_local bool stored_ = false;
  static inline constinit thread_local T* object_ = nullptr;
};

}  // namespace sluice::detail
