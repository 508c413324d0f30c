// Dims: a short list of sizes or strides. It holds them inline, so that closures can carry it without the heap.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>

namespace sluice {

inline constexpr int kMaxRank = 8;

namespace detail {
/// Throws for an axis beyond kMaxRank: ArrayError in a function of the library, else std::invalid_argument.
[[noreturn]] void refuse_axis();
}  // namespace detail

/// Up to kMaxRank sizes (or strides, in elements). Trivially copyable. Rank 0 is a scalar, with one element. A longer
/// list makes one that is too_long(), which every function of arrays refuses with its name and line.
class Dims {
 public:
  constexpr Dims() = default;
  /// One size: zeros(3) is zeros({3}).
  template <class T>
  requires(std::integral<T> && !std::same_as<T, bool>) Dims(T size) {  // NOLINT: made by conversion
    push_back(static_cast<std::int64_t>(size));
  }
  Dims(std::initializer_list<std::int64_t> values) : Dims(std::span(values.begin(), values.size())) {}
  explicit Dims(std::span<const std::int64_t> values) {
    if (values.size() > static_cast<std::size_t>(kMaxRank)) [[unlikely]] {
      // These are no sizes, axes or strides, so that what looks at them alone refuses them too.
      values_.fill(std::numeric_limits<std::int64_t>::min());
      rank_ = kMaxRank;
      given_ = static_cast<int>(std::min<std::size_t>(values.size(), std::numeric_limits<int>::max()));
      return;
    }
    for (auto v : values) push_back(v);
  }
  /// Throws beyond kMaxRank.
  void push_back(std::int64_t v) {
    if (rank_ == kMaxRank) [[unlikely]]
      detail::refuse_axis();
    values_[static_cast<std::size_t>(rank_++)] = v;
  }
  constexpr int rank() const { return rank_; }
  constexpr std::size_t size() const { return static_cast<std::size_t>(rank_); }
  constexpr bool empty() const { return rank_ == 0; }
  /// True if it was made of more than kMaxRank numbers: given() of them.
  constexpr bool too_long() const { return given_ != 0; }
  constexpr int given() const { return too_long() ? given_ : rank_; }
  constexpr std::int64_t operator[](int i) const { return values_[static_cast<std::size_t>(i)]; }
  constexpr std::int64_t& operator[](int i) { return values_[static_cast<std::size_t>(i)]; }
  constexpr const std::int64_t* begin() const { return values_.data(); }
  constexpr const std::int64_t* end() const { return values_.data() + rank_; }
  constexpr std::int64_t back() const { return (*this)[rank_ - 1]; }

  /// The number of elements of an array of this shape: the product; 1 for a scalar.
  constexpr std::int64_t count() const {
    std::int64_t n = 1;
    for (auto v : *this) n *= v;
    return n;
  }
  friend constexpr bool operator==(const Dims& a, const Dims& b) {
    if (a.rank_ != b.rank_) return false;
    // Most are so short that a call would cost more. GCC 12 does not know that no rank is above kMaxRank.
    for (int i = 0; i < a.rank_ && i < kMaxRank; ++i) {
      if (a[i] != b[i]) return false;
    }
    return true;
  }

 private:
  std::array<std::int64_t, kMaxRank> values_{};
  int rank_ = 0;
  int given_ = 0;  ///< 0, or how many there were where they are too many
};

/// False if no array can have this shape with elements of `item` bytes: a size is negative, or the bytes are more than
/// an address can count, those of its rows too where another size is 0.
constexpr bool can_be_array(const Dims& shape, std::size_t item) {
  std::int64_t bytes = static_cast<std::int64_t>(item);
  for (auto n : shape) {
    if (n < 0 || __builtin_mul_overflow(bytes, n > 1 ? n : 1, &bytes)) return false;
  }
  return true;
}

/// No array has more bytes: it is as much as a process can have addresses for.
inline constexpr std::int64_t kMostArrayBytes = std::int64_t{1} << 48;

/// False if no array of its own, and only a view, can have this shape: its bytes would be above kMostArrayBytes.
constexpr bool can_be_allocated(const Dims& shape, std::size_t item) {
  std::int64_t bytes = static_cast<std::int64_t>(item);
  bool none = false;
  for (auto n : shape) {
    if (n < 0 || __builtin_mul_overflow(bytes, n > 1 ? n : 1, &bytes)) return false;
    none = none || n == 0;
  }
  return none || bytes <= kMostArrayBytes;
}

/// Strides, in elements, of a row-major array of this shape.
inline Dims row_major(const Dims& shape) {
  Dims strides = shape;
  std::int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<std::int64_t>(shape[i], 1);
  }
  return strides;
}

/// "(64, 10)", "(3,)", "()", as NumPy prints shapes.
inline std::string to_string(const Dims& dims) {
  if (dims.too_long()) return "(" + std::to_string(dims.given()) + " numbers)";
  std::string text = "(";
  for (int i = 0; i < dims.rank(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + (dims.rank() == 1 ? ",)" : ")");
}

}  // namespace sluice
