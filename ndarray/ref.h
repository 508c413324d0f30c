// Ref: a counted pointer. The count lies in the object, so a handle is one word and a copy costs one atomic add.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace sluice {

/// Base of what Ref points to.
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;
  virtual ~RefCounted() = default;

  void add_ref() const noexcept { refs_.fetch_add(1, std::memory_order_relaxed); }
  /// False, and nothing added, when the last Ref is already gone and the object about to be destroyed.
  bool try_add_ref() const noexcept {
    std::uint32_t n = refs_.load(std::memory_order_relaxed);
    while (n != 0) {
      if (refs_.compare_exchange_weak(n, n + 1, std::memory_order_relaxed)) return true;
    }
    return false;
  }
  void drop_ref() const noexcept {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  /// How many Refs there are. The number is exact only for a caller that holds the only one.
  std::uint32_t refs() const noexcept { return refs_.load(std::memory_order_acquire); }

 private:
  mutable std::atomic<std::uint32_t> refs_{0};
};

/// A shared owner of a T. Copies may be made and dropped from any thread; one Ref is for one thread at a time.
template <class T>
class Ref {
 public:
  Ref() = default;
  Ref(T* pointer) : pointer_(pointer) {  // NOLINT(google-explicit-constructor): counts are in the object
    if (pointer_) pointer_->add_ref();
  }
  /// Takes over a count that try_add_ref added.
  static Ref adopt(T* pointer) {
    Ref ref;
    ref.pointer_ = pointer;
    return ref;
  }
  Ref(const Ref& other) : Ref(other.pointer_) {}
  Ref(Ref&& other) noexcept : pointer_(std::exchange(other.pointer_, nullptr)) {}
  template <class U>
  Ref(const Ref<U>& other) : Ref(other.get()) {}  // NOLINT(google-explicit-constructor)
  Ref& operator=(Ref other) noexcept {
    std::swap(pointer_, other.pointer_);
    return *this;
  }
  ~Ref() {
    if (pointer_) pointer_->drop_ref();
  }
  T* get() const { return pointer_; }
  T& operator*() const { return *pointer_; }
  T* operator->() const { return pointer_; }
  explicit operator bool() const { return pointer_ != nullptr; }
  friend bool operator==(const Ref& a, const Ref& b) { return a.pointer_ == b.pointer_; }

 private:
  T* pointer_ = nullptr;
};

}  // namespace sluice
