// Scratch: memory that a kernel borrows while it runs.
#pragma once

#include <cstddef>
#include <utility>

#include "sluice/resources/memory_pool.h"

namespace sluice {

/// A block of the device's pool, given back when this object is destroyed. 64-byte aligned, not cleared. Move-only;
/// throws std::bad_alloc.
class Scratch {
 public:
  Scratch() = default;
  Scratch(Device device, std::size_t bytes)
      : pool_(&memory_pool(device)), bytes_(bytes), data_(pool_->allocate(bytes)) {}
  /// A block that is not given back here, because its op does that when the device is over with it.
  Scratch(void* data, std::size_t bytes) : bytes_(bytes), data_(data) {}
  Scratch(Scratch&& other) noexcept
      : pool_(other.pool_), bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  Scratch& operator=(Scratch&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~Scratch() {
    if (data_ && pool_) pool_->deallocate(data_, bytes_);
  }
  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  MemoryPool* pool_ = nullptr;
  std::size_t bytes_ = 0;
  void* data_ = nullptr;
};

}  // namespace sluice
