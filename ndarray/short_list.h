// A list that takes nothing from the heap while it is short.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace sluice {

/// A list with room for a few on the spot.
template <class T, std::size_t few>
class ShortList {
 public:
  ShortList() = default;
  ShortList(const ShortList&) = delete;
  ShortList& operator=(const ShortList&) = delete;
  ~ShortList() {
    std::destroy_n(data_, size_);
    if (capacity_ > few) std::allocator<T>().deallocate(data_, capacity_);
  }
  /// Makes the new last element in its place, from what its type is made of.
  template <class... Args>
  T& emplace_back(Args&&... args) {
    if (size_ == capacity_) [[unlikely]]
      grow();
    T* const made = new (data_ + size_) T{std::forward<Args>(args)...};
    ++size_;
    return *made;
  }
  std::size_t size() const { return size_; }
  /// Adds elements made of nothing. To a size that it has reached already: does nothing.
  void resize(std::size_t size) {
    while (size_ < size) emplace_back();
  }
  void clear() {
    std::destroy_n(data_, size_);
    size_ = 0;
  }
  bool empty() const { return size_ == 0; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }

 private:
  [[gnu::noinline]] void grow() {
    T* more = std::allocator<T>().allocate(2 * capacity_);
    std::uninitialized_move_n(data_, size_, more);
    std::destroy_n(data_, size_);
    if (capacity_ > few) std::allocator<T>().deallocate(data_, capacity_);
    data_ = more;
    capacity_ *= 2;
  }
  alignas(T) std::byte storage_[few * sizeof(T)];
  T* data_ = reinterpret_cast<T*>(storage_);
  std::uint32_t size_ = 0, capacity_ = few;
};

}  // namespace sluice
