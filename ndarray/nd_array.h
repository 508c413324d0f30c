// NDArray: a handle to a strided view of an array.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/ndarray/dims.h"
#include "sluice/ndarray/dtype.h"
#include "sluice/ndarray/ref.h"
#include "sluice/ndarray/scalar.h"
#include "sluice/ndarray/slice.h"
#include "sluice/ndarray/storage.h"

namespace sluice {

class NDArray;
template <class T>
class HostBorrow;

/// A use of an array that cannot be right: shapes, dtypes or devices that do not fit. what() is one line:
/// "[matmul] main.cc:41: (64, 10) x (12, 3): inner sizes differ".
class ArrayError : public UsageError {
 public:
  ArrayError(std::string_view operation, const std::source_location& where, std::string_view message);
};

/// An array argument with the place of the call, for errors and traces.
struct Operand {
  const NDArray& array;
  std::source_location where;
  Operand(const NDArray& a, std::source_location w = std::source_location::current())  // NOLINT: made by conversion
      : array(a), where(w) {}
};

/// A scalar argument with the place of the call.
struct ScalarOperand : Scalar {
  std::source_location where;
  template <class T>
  requires std::is_arithmetic_v<T> ScalarOperand(
      T value, std::source_location w = std::source_location::current())  // NOLINT: made by conversion
      : Scalar(value), where(w) {}
};

/// A view (shape, strides, offset) of an array. Copies view the same array. Operators on it are pushed and return at
/// once; wait, item, to_vector, borrow, printing and saving wait, and throw Error while the array is poisoned.
/// A handle is for one thread at a time; handles to one array may be used from several threads at once.
/// An NDArray made without arguments is empty: its use throws ArrayError.
class NDArray {
  using Where = std::source_location;

 public:
  NDArray() = default;
  NDArray(const NDArray&) = default;
  NDArray(NDArray&&) noexcept = default;
  /// On a named handle: makes it name what `other` names.
  NDArray& operator=(const NDArray& other) & = default;
  NDArray& operator=(NDArray&& other) & noexcept = default;
  /// On a view just made: x(i) = y writes y's elements, broadcast to the view's shape, through to the array.
  void operator=(const NDArray& other) && { assign(other); }
  void operator=(NDArray&& other) && { assign(other); }
  void operator=(const ScalarOperand& value) && { fill(value); }

  // What it is. Nothing here waits.
  explicit operator bool() const { return static_cast<bool>(array_); }
  const Dims& shape() const { return shape_; }
  /// Elements along an axis; negative axes count from the last.
  std::int64_t size(int axis, Where where = Where::current()) const;
  int rank() const { return shape_.rank(); }
  std::int64_t count() const { return shape_.count(); }
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype()); }
  DType dtype() const { return checked().dtype(); }
  Device device() const { return checked().device(); }
  Engine& engine() const { return checked().engine(); }
  const Dims& strides() const { return strides_; }
  std::int64_t offset() const { return offset_; }
  /// Row-major without gaps (then reshape makes no copy).
  bool is_contiguous() const;
  /// True if both view the same array.
  bool same_array(const NDArray& other) const { return array_ == other.array_; }
  friend std::int64_t len(const NDArray& x) { return x.size(0); }

  // Views: no elements are copied or waited for, and writing to the view writes to the array.
  /// x(1), x(slice(0, 10, 2), all), x(-1, all, slice_from(3)): as NumPy's indexing; missing indices mean `all`. Throws
  /// ArrayError for a position out of range and for more indices than axes.
  template <class... I>
  requires(sizeof...(I) > 0 && (std::convertible_to<I, Index> && ...)) NDArray operator()(I... index) const {
    const Index list[] = {Index(index)...};
    return index_view(list);
  }
  NDArray index_view(std::span<const Index> index, Where where = Where::current()) const;
  /// Elements [begin, end) of an axis.
  NDArray narrow(int axis, std::int64_t begin, std::int64_t end, Where where = Where::current()) const;
  NDArray permute(const Dims& axes, Where where = Where::current()) const;
  /// All axes reversed: the transpose of a matrix.
  NDArray transpose() const;
  NDArray broadcast_to(const Dims& shape, Where where = Where::current()) const;
  /// Drops an axis of size 1; adds one before `axis`.
  NDArray squeeze(int axis, Where where = Where::current()) const;
  NDArray unsqueeze(int axis, Where where = Where::current()) const;
  /// The same elements in another shape; one size may be -1. A view where the strides allow it, else a copy.
  NDArray reshape(const Dims& shape, Where where = Where::current()) const;
  /// Axes from `axis` on joined into one.
  NDArray flatten(int axis = 0, Where where = Where::current()) const;
  /// Any window on the array: strides and offset in elements, from the start of its buffer. Checked against its size.
  NDArray strided(const Dims& shape, const Dims& strides, std::int64_t offset, Where where = Where::current()) const;

  // Operators that are members. Each pushes and returns at once.
  /// This view if it is contiguous, else a copy that is.
  NDArray contiguous(Where where = Where::current()) const;
  /// A new array with these elements.
  NDArray copy(Where where = Where::current()) const;
  /// On another device (this one: the same handle). Runs on that device's copy-in lane; to the host, on this one's
  /// copy-out lane. Between devices of different kinds it goes through cpu(0).
  NDArray to(Device device, Where where = Where::current()) const;
  /// In another dtype, as static_cast would (this one: the same handle).
  NDArray to(DType dtype, Where where = Where::current()) const;
  /// Writes y's elements, broadcast, to this view. Throws where y's dtype differs, and, outside of a NoGrad scope,
  /// where this is an array made by with_grad (all writes below do).
  void assign(const Operand& y) const;
  void fill(const ScalarOperand& value) const;
  NDArray& operator+=(const Operand& y);
  NDArray& operator-=(const Operand& y);
  NDArray& operator*=(const Operand& y);
  NDArray& operator/=(const Operand& y);
  NDArray& operator+=(const ScalarOperand& y);
  NDArray& operator-=(const ScalarOperand& y);
  NDArray& operator*=(const ScalarOperand& y);
  NDArray& operator/=(const ScalarOperand& y);

  // Host access. Blocking; throws Error while the array is poisoned.
  /// Returns when the value is readable: all ops pushed before that write it have completed.
  void wait() const;
  /// The only element. Throws ArrayError unless there is exactly one, T is of the dtype's kind (floating, integer,
  /// bool) and the value fits T.
  template <class T>
  T item(Where where = Where::current()) const;
  /// The elements in row-major order. Throws ArrayError unless T is the dtype's type.
  template <class T>
  std::vector<T> to_vector(Where where = Where::current()) const;
  /// The elements' bytes in row-major order, of any dtype.
  std::vector<std::byte> to_bytes(Where where = Where::current()) const;
  /// The memory itself, held like an op would hold it until the HostBorrow goes: `borrow<const float>()` to read,
  /// `borrow<float>()` to read and write. The view must be contiguous, T its dtype's type, and the array in host
  /// memory: what is on a device comes to the host with to(cpu(0)), and as item, to_vector, to_bytes and printing bring
  /// it.
  template <class T>
  HostBorrow<T> borrow(Where where = Where::current()) const;

  // Gradients (defined in autograd/).
  /// Marks the array as one whose gradient is wanted; returns this handle. The array must be floating and must not come
  /// from recorded operators; views of it are no leaves.
  NDArray with_grad(Where where = Where::current()) const;
  /// True if operators on it are recorded.
  bool requires_grad() const;
  /// The gradient that backward() added up; an empty handle if none. Same shape as the array was made with.
  NDArray grad() const;
  /// Sets the gradient of a leaf, or drops it (an empty handle).
  void set_grad(const NDArray& gradient, Where where = Where::current()) const;
  void zero_grad() const { set_grad({}); }
  /// Adds the gradients of this array's only element to the .grad() of the leaves that it was made from, and frees the
  /// tape unless `retain`.
  void backward(bool retain = false, Where where = Where::current()) const;
  /// The present value as an array of its own without history: it keeps the value when this array is written.
  NDArray detach() const;

  /// As NumPy prints it. Waits.
  std::string to_string() const;
  friend std::ostream& operator<<(std::ostream& out, const NDArray& x);

 public:  // for operators/ and autograd/
  NDArray(Ref<Array> array, const Dims& shape, const Dims& strides, std::int64_t offset)
      : array_(std::move(array)), shape_(shape), strides_(strides), offset_(offset) {}
  /// The array as a whole.
  explicit NDArray(Ref<Array> array)
      : NDArray(array, array->shape(), row_major(array->shape()), array->base_offset()) {}
  const Ref<Array>& array() const { return array_; }
  /// The array, or a throw for an empty handle.
  Array& checked(std::string_view operation = "array", Where where = Where::current()) const;
  /// The same window on another array.
  NDArray on(Ref<Array> array) const { return {std::move(array), shape_, strides_, offset_}; }

 private:
  double item_real(Where where) const;
  std::int64_t item_integer(bool boolean, Where where) const;
  void copy_out(std::byte* into, Where where) const;
  void check_type(DType type, const char* who, Where where) const;

  Ref<Array> array_;
  Dims shape_;
  Dims strides_;
  std::int64_t offset_ = 0;
};

/// The engine's variable of the array's present value: engine.wait(x), engine.error(x), engine.recover(x), and read(x)
/// in a push. To write arrays in an op of one's own, see push_arrays (ndarray/push.h). The whole of a partition, and an
/// import that overlaps several earlier ones, have several variables: this is the first.
Variable variable_of(const NDArray& x);

/// Host memory of an array, held until this goes. Move-only.
template <class T>
class HostBorrow : public std::span<T> {
 public:
  HostBorrow(std::span<T> elements, Ref<Version> version, std::vector<Borrow> holds)
      : std::span<T>(elements), version_(std::move(version)), holds_(std::move(holds)) {}
  HostBorrow(HostBorrow&&) noexcept = default;
  HostBorrow& operator=(HostBorrow&&) noexcept = default;
  /// Lets later ops on.
  void release() { holds_.clear(); }

 private:
  Ref<Version> version_;
  std::vector<Borrow> holds_;
};

/// The engine that new arrays belong to: Engine::instance() unless a program sets another (nullptr sets it back), as
/// tests do. The engine must outlive its arrays. Not for use while other threads make arrays.
Engine& default_engine();
void set_default_engine(Engine* engine);

/// An array to write: its elements are unspecified until then. On the device of the thread's scope.
NDArray empty(const Dims& shape, DType dtype = DType::f32);
NDArray empty(const Dims& shape, DType dtype, Device device);
/// The same, from rows sizes[0], sizes[1], ... along axis 0, each part an array of its own in one buffer: ops on
/// different parts may run at once, and an op on the whole waits for all.
struct Partitioned {
  NDArray whole;
  std::vector<NDArray> parts;
};
Partitioned partitioned(std::span<const std::int64_t> sizes, const Dims& row_shape, DType dtype, Device device,
                        std::source_location where = std::source_location::current());

/// An array with these elements, row-major; they are copied at the call, so that it has its value at once; on a device
/// with memory of its own it gets them from there by a transfer.
NDArray from_bytes(std::span<const std::byte> bytes, const Dims& shape, DType dtype, Device device,
                   std::source_location where = std::source_location::current());
/// An array over host memory that `owner` keeps alive and that nobody but arrays of this engine writes meanwhile. On a
/// device with memory of its own: a copy by a transfer, and what follows is of no concern. Else no copy, and writes
/// always go to this memory: a value that a snapshot or the tape holds is copied away first.
///
/// Imports may overlap in any way, with other dtypes, from several threads: operations on them take effect in push
/// order, as if they were views of one array. While arrays show overlapping memory they share their poison too, which a
/// write heals that overwrites all that they show. Gradients follow arrays, not memory: recorded operators may write to
/// an import only while no other array shows its memory, and once they did nobody may write through another.
///
/// When the array and the last operation on it are gone, the owner's deleter runs on the I/O lane (at once where the
/// engine was stopped). Throws ArrayError; where operations are in flight on an import of this memory that is gone,
/// what Engine::push throws.
NDArray from_memory(void* data, std::shared_ptr<void> owner, const Dims& shape, DType dtype, Device device,
                    std::source_location where = std::source_location::current());
template <class T>
NDArray from(std::span<const T> elements, const Dims& shape,
             std::source_location where = std::source_location::current()) {
  return from_bytes(std::as_bytes(elements), shape, dtype_of<T>, current_scope().device, where);
}
template <class T>
NDArray from(const std::vector<T>& elements, const Dims& shape,
             std::source_location where = std::source_location::current()) {
  if constexpr (std::is_same_v<T, bool>) {
    std::vector<std::uint8_t> bytes(elements.begin(), elements.end());
    return from_bytes(std::as_bytes(std::span(bytes)), shape, DType::boolean, current_scope().device, where);
  } else {
    return from(std::span<const T>(elements), shape, where);
  }
}
template <class T>
NDArray from(std::initializer_list<T> elements, const Dims& shape,
             std::source_location where = std::source_location::current()) {
  return from(std::vector<T>(elements), shape, where);
}

template <class T>
T NDArray::item(Where where) const {
  static_assert(std::is_arithmetic_v<T>);
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(item_real(where));
  } else {
    const std::int64_t value = item_integer(std::is_same_v<T, bool>, where);
    if constexpr (!std::is_same_v<T, bool>) {
      if (!std::in_range<T>(value)) throw ArrayError("item", where, std::to_string(value) + " does not fit the type");
    }
    return static_cast<T>(value);
  }
}

template <class T>
std::vector<T> NDArray::to_vector(Where where) const {
  check_type(dtype_of<T>, "to_vector", where);
  if constexpr (std::is_same_v<T, bool>) {
    const std::vector<std::byte> bytes = to_bytes(where);
    std::vector<bool> elements;
    for (std::byte b : bytes) elements.push_back(b != std::byte{0});
    return elements;
  } else {
    std::vector<T> elements(static_cast<std::size_t>(count()));
    copy_out(reinterpret_cast<std::byte*>(elements.data()), where);
    return elements;
  }
}

namespace detail {
/// An array over memory that belongs to `owner` alone. No copy.
NDArray adopt_memory(void* data, std::shared_ptr<void> owner, const Dims& shape, DType dtype, Device device);
/// An array to write, in memory of cpu(0) that streams of the device copy from and to.
NDArray empty_pinned(const Dims& shape, DType dtype, Device device);
/// An array with these elements, there.
NDArray host_array(std::span<const std::byte> bytes, const Dims& shape, DType dtype, Device device);
/// Takes the holds for borrow(); with `update`, moves a held value away first.
std::pair<Ref<Version>, std::vector<Borrow>> borrow_array(const NDArray& x, bool update, std::source_location where);
}  // namespace detail

template <class T>
HostBorrow<T> NDArray::borrow(Where where) const {
  check_type(dtype_of<std::remove_const_t<T>>, "borrow", where);
  if (!is_contiguous()) throw ArrayError("borrow", where, "the view is not contiguous");
  auto [version, holds] = detail::borrow_array(*this, !std::is_const_v<T>, where);
  T* data = reinterpret_cast<T*>(version->buffer().data()) + offset_;
  return HostBorrow<T>(std::span<T>(data, static_cast<std::size_t>(count())), std::move(version), std::move(holds));
}

}  // namespace sluice
