// One object for each thread that outlives the thread's own thread_local objects and static destructors.
#pragma once

#include <pthread.h>

#include <utility>

namespace sluice::detail {

/// The calling thread's T, made at first use. A plain thread_local with a destructor would be gone when a handle in
/// another thread_local or static object is dropped at exit (mx#19379 and its successors). Keys are cleared after all
/// thread_local objects of a thread, and never for the main thread, whose object stays reachable to the end.
template <class T>
class ThreadObject {
 public:
  static T& get() {
    if (!object_) make();
    return *object_;
  }
  /// Ends it before the thread does.
  static void drop() {
    if (object_) drop_object();
  }

 private:
  static pthread_key_t key() {
    static const pthread_key_t key = [] {
      pthread_key_t made{};
      pthread_key_create(&made, [](void*) { delete std::exchange(object_, nullptr); });
      return made;
    }();
    return key;
  }
  static void make() {
    object_ = new T;
    pthread_setspecific(key(), object_);
  }
  static void drop_object() {
    delete std::exchange(object_, nullptr);
    pthread_setspecific(key(), object_);
  }
  static inline constinit thread_local T* object_ = nullptr;
};

}  // namespace sluice::detail
