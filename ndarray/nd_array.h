// NDArray: a handle to a strided view of an array.
#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <iterator>
#include <new>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/ndarray/dims.h"
#include "sluice/ndarray/dtype.h"
#include "sluice/ndarray/ref.h"
#include "sluice/ndarray/scalar.h"
#include "sluice/ndarray/slice.h"
#include "sluice/ndarray/spec.h"
#include "sluice/ndarray/storage.h"
#include "sluice/ndarray/tensor_view.h"

namespace sluice {

class NDArray;
class IndexedArray;
template <class T>
class HostBorrow;

/// Thrown at the call for a wrong use of an array: shapes, dtypes or devices that do not fit. what() is one line:
/// "[matmul] main.cc:41: (64, 10) x (12, 3): inner sizes differ", or "[matmul] main.cc:41 in encoder.2: ..." in a layer
/// (engine/layer.h).
class ArrayError : public UsageError {
 public:
  ArrayError(std::string_view operation, const std::source_location& where, std::string_view message);
};

/// Throws ArrayError where no array can have this shape: "[zeros] main.cc:41: (-3, 4) f32: ...". All sizes that a
/// program gives go through one of the two, before anything is computed with them. A view, whose elements may lie on
/// each other, may be larger than an array.
void check_shape(std::string_view operation, const Dims& shape, DType dtype, const std::source_location& where);
void check_view_shape(std::string_view operation, const Dims& shape, DType dtype, const std::source_location& where);

namespace detail {
/// Throws ArrayError for an array handle that is empty.
[[noreturn]] void refuse_empty(std::string_view operation, const std::source_location& where);
/// Of an array without elements (dry_run.h). Throws ArrayError unless the calling thread runs dry.
void check_absent(std::string_view operation, const std::source_location& where);
/// Of an array without memory of its own: that, and an owner's (owner.h), for which it throws ArrayError.
void check_memory(const Array& array, std::string_view operation, const std::source_location& where);
/// Throws ArrayError where the host can have no list of n elements of `item` bytes: it is more than the machine has.
/// For lists that a call makes itself; arrays get their memory as their ops run.
void check_host_list(std::string_view operation, std::int64_t n, std::size_t item, const std::source_location& where);
std::string no_memory_for(std::int64_t n, std::size_t item);
/// Such a list of n elements. Throws ArrayError where there is no memory for it.
template <class T>
std::vector<T> host_list(std::string_view operation, std::int64_t n, const std::source_location& where) {
  check_host_list(operation, n, sizeof(T), where);
  try {
    return std::vector<T>(static_cast<std::size_t>(n));
  } catch (const std::bad_alloc&) {
    throw ArrayError(operation, where, no_memory_for(n, sizeof(T)));
  }
}
}  // namespace detail

/// An array argument with the place of the call, for errors and traces.
struct Operand {
  const NDArray& array;
  std::source_location where;
  Operand(const NDArray& a, std::source_location w = std::source_location::current())  // NOLINT: made by conversion
      : array(a), where(w) {}
  /// The elements that x(rows) reads.
  Operand(IndexedArray&& a, std::source_location w = std::source_location::current());  // NOLINT
};

/// A scalar argument with the place of the call.
struct ScalarOperand : Scalar {
  std::source_location where;
  template <class T>
  requires std::is_arithmetic_v<T> ScalarOperand(
      T value, std::source_location w = std::source_location::current())  // NOLINT: made by conversion
      : Scalar(value), where(w) {}
};

struct BackwardOptions {
  bool retain = false;  ///< keeps the tape, for another pass; else it is freed as the pass goes
};

/// A view (shape, strides, offset) of an array. Copies view the same array. Operators on it are pushed and return at
/// once; wait, item, to_vector, borrow, printing and saving wait, and throw Error while the array is poisoned. One
/// handle may be used by one thread at a time; several handles to one array, by several threads at once. An NDArray
/// that was made without arguments is empty. An empty handle throws ArrayError ("an empty handle") wherever an array is
/// wanted: as the array itself, an operand, an index, a mask, an option or a member of a list, unless the comment there
/// says what it means. Only defined, same_array and the numbers of a view (shape, rank, count, strides, offset,
/// is_contiguous: those of a scalar) can be asked of it.
class NDArray {
  using Where = std::source_location;

 public:
  NDArray() = default;
  NDArray(const NDArray&) = default;
  NDArray(NDArray&&) noexcept = default;
  /// On a named handle: makes the handle view the array of `other`.
  NDArray& operator=(const NDArray& other) & = default;
  NDArray& operator=(NDArray&& other) & noexcept = default;
  /// On a view without a name: x(i) = y writes y's elements, broadcast to the view's shape, to the array.
  void operator=(const Operand& other) && { assign(other); }
  void operator=(const ScalarOperand& value) && { fill(value); }

  // What it is. Nothing here waits.
  /// False for an empty handle. An array is no condition: `if (x)` and `if (a < b)` do not compile, and item<bool>() of
  /// one element is.
  bool defined() const { return static_cast<bool>(array_); }
  const Dims& shape() const { return shape_; }
  /// Elements along an axis; negative axes count from the last.
  std::int64_t size(int axis, Where where = Where::current()) const;
  int rank() const { return shape_.rank(); }
  std::int64_t count() const { return shape_.count(); }
  std::size_t bytes(Where where = Where::current()) const {
    return static_cast<std::size_t>(count()) * size_of(present("bytes", where).dtype());
  }
  DType dtype(Where where = Where::current()) const { return present("dtype", where).dtype(); }
  Device device(Where where = Where::current()) const { return present("device", where).device(); }
  /// Shape, dtype and device as one value.
  Spec spec(Where where = Where::current()) const {
    const Array& array = present("spec", where);
    return {shape_, array.dtype(), array.device()};
  }
  Engine& engine(Where where = Where::current()) const { return present("engine", where).engine(); }
  const Dims& strides() const { return strides_; }
  std::int64_t offset() const { return offset_; }
  /// True if the elements lie in row-major order without gaps; then reshape makes no copy.
  bool is_contiguous() const { return is_row_major(shape_, strides_); }
  /// True if both view the same array.
  bool same_array(const NDArray& other) const { return array_ == other.array_; }
  friend std::int64_t len(const NDArray& x, Where where = Where::current()) { return x.size(0, where); }

  // Views. They copy no elements and wait for nothing. A write to the view is a write to the array.
  /// x(1), x(slice(0, 10, 2), all), x(-1, newaxis, ellipsis, slice_from(3)): as NumPy's indexing; missing indices mean
  /// `all`. Throws ArrayError for a position out of range and for more indices than axes.
  template <class... I>
  requires(std::convertible_to<I, Index>&&...) NDArray operator()(const Index& first, I... more) const {
    const Index list[] = {first, Index(more)...};
    return index_view(list, first.where);
  }
  /// x(rows), x(mask), x(all, rows, columns): indices that are arrays. What comes back is no view: it can be read, as a
  /// copy, and assigned to; see IndexedArray.
  template <class... I>
  IndexedArray operator()(const Operand& first, const I&... more) const;
  template <class... I>
  requires(!(std::convertible_to<I, Index> && ...)) IndexedArray operator()(const Index& first, const I&... more) const;
  NDArray index_view(std::span<const Index> index, Where where = Where::current()) const;
  /// Elements [begin, end) of an axis.
  NDArray narrow(int axis, std::int64_t begin, std::int64_t end, Where where = Where::current()) const;
  NDArray permute(const Dims& axes, Where where = Where::current()) const;
  /// All axes reversed: the transpose of a matrix.
  NDArray transpose(Where where = Where::current()) const;
  NDArray broadcast_to(const Dims& shape, Where where = Where::current()) const;
  /// squeeze drops an axis of size 1, or all such axes; unsqueeze adds one before `axis`.
  NDArray squeeze(Where where = Where::current()) const;
  NDArray squeeze(int axis, Where where = Where::current()) const;
  NDArray unsqueeze(int axis, Where where = Where::current()) const;
  /// Two axes change places; one axis goes to another place, and the others keep their order.
  NDArray swapaxes(int a, int b, Where where = Where::current()) const;
  NDArray movedim(int from, int to, Where where = Where::current()) const;
  /// The axes backwards.
  NDArray flip(const Axes& axes = all, Where where = Where::current()) const;
  /// The elements whose indices along axes a and b are (i, i + offset), as a new last axis in the place of both.
  NDArray diagonal(std::int64_t offset = 0, int a = 0, int b = 1, Where where = Where::current()) const;
  /// Windows of `size` elements along an axis, each `step` after the one before: the axis counts the windows, and a new
  /// last axis the elements of one. Windows may overlap; such a view cannot be written.
  NDArray unfold(int axis, std::int64_t size, std::int64_t step, Where where = Where::current()) const;
  /// The same elements in another shape; one size may be -1. A view where the strides allow it, else a copy.
  NDArray reshape(const Dims& shape, Where where = Where::current()) const;
  /// Joins the axes from `axis` on into one.
  NDArray flatten(int axis = 0, Where where = Where::current()) const;
  /// Any window on the array: strides and offset are in elements, from the start of its buffer. Throws ArrayError for a
  /// window that goes beyond the buffer.
  NDArray strided(const Dims& shape, const Dims& strides, std::int64_t offset, Where where = Where::current()) const;

  // Operators that are members. Each pushes and returns at once.
  /// This view if it is contiguous, and the parts of an owner's array are, else a contiguous copy.
  NDArray contiguous(Where where = Where::current()) const;
  /// A new array with these elements.
  NDArray copy(Where where = Where::current()) const;
  /// A copy on another device; for this array's own device, this view itself. It runs on a copy lane: of
  /// that device, for what comes from the host or from peers, or, to the host, of this one. Between devices of
  /// different kinds it goes through cpu(0).
  NDArray to(Device device, Where where = Where::current()) const;
  /// A copy in another dtype, converted as by static_cast; for this array's own dtype, this view itself.
  NDArray to(DType dtype, Where where = Where::current()) const;
  /// Writes y's elements, broadcast, to this view. Writes never widen an array: y is converted if promote(dtype(),
  /// y.dtype()) is this array's dtype, else this and the operators below throw ArrayError (use y.to(dtype)). A number
  /// must fit the dtype (Scalar::fits). Outside of a NoGrad scope this and all writes below throw ArrayError for an
  /// array made by with_grad.
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
  // Of integers and bool.
  NDArray& operator&=(const Operand& y);
  NDArray& operator|=(const Operand& y);
  NDArray& operator^=(const Operand& y);
  NDArray& operator&=(const ScalarOperand& y);
  NDArray& operator|=(const ScalarOperand& y);
  NDArray& operator^=(const ScalarOperand& y);

  // Host access. Blocking; throws Error while the array is poisoned.
  /// Returns when the value is readable: all ops that write it and were pushed before have completed.
  void wait(Where where = Where::current()) const;
  /// The only element. Throws ArrayError unless there is exactly one, T is of the dtype's kind (floating, integer,
  /// bool) and the value fits T.
  template <class T>
  T item(Where where = Where::current()) const;
  /// The elements in row-major order. Throws ArrayError unless T is the dtype's type.
  template <class T>
  std::vector<T> to_vector(Where where = Where::current()) const;
  /// The elements' bytes in row-major order, of any dtype.
  std::vector<std::byte> to_bytes(Where where = Where::current()) const;
  /// The memory itself, held as an op would hold it until the HostBorrow is destroyed: `borrow<const float>()` to read,
  /// `borrow<float>()` to read and write. The view must be contiguous, T must be its dtype's type, and the array must
  /// be in host memory. An array on a device can be copied to the host by to(cpu(0)), item, to_vector or to_bytes.
  /// To gradients, what is borrowed to be written is a constant from then on. Outside of a NoGrad scope such a borrow
  /// throws for an array made by with_grad, and for a part of an array that recorded operators made.
  template <class T>
  HostBorrow<T> borrow(Where where = Where::current()) const;

  // Gradients (defined in autograd/).
  /// Marks the array as a leaf, whose gradient is wanted; returns this handle. The array must be floating and must not
  /// be the result of recorded operators. Views of it are not leaves.
  NDArray with_grad(Where where = Where::current()) const;
  /// True if operators on it are recorded.
  bool requires_grad(Where where = Where::current()) const;
  /// The gradient that backward() added up; an empty handle if none. Same shape as the array was made with.
  NDArray grad(Where where = Where::current()) const;
  /// Sets the gradient of a leaf to the value that this array has now, or drops it (an empty handle).
  void set_grad(const NDArray& gradient, Where where = Where::current()) const;
  void zero_grad(Where where = Where::current()) const { set_grad({}, where); }
  /// Adds the gradients of this array's only element to the .grad() of the leaves that it was made from.
  void backward(const BackwardOptions& options = {}, Where where = Where::current()) const;
  /// The present value as another array, without history. It keeps this value when this array is written.
  NDArray detach(Where where = Where::current()) const;

  /// NumPy's str() to the letter (bf16 by its own digits); above 1,000 elements "..." stands for the middle. Waits.
  std::string to_string(Where where = Where::current()) const;
  friend std::ostream& operator<<(std::ostream& out, const Operand& x);

 public:  // for operators/ and autograd/
  NDArray(Ref<Array> array, const Dims& shape, const Dims& strides, std::int64_t offset)
      : array_(std::move(array)), shape_(shape), strides_(strides), offset_(offset) {}
  /// The array as a whole.
  explicit NDArray(Ref<Array> array)
      : NDArray(array, array->shape(), row_major(array->shape()), array->base_offset()) {}
  const Ref<Array>& array() const { return array_; }
  /// The array, or a throw for an empty handle. The array may have no elements (Array::absent): for what asks for none.
  Array& present(const char* operation = "array", Where where = Where::current()) const {
    if (!array_) [[unlikely]]
      detail::refuse_empty(operation, where);
    return *array_;
  }
  /// The same; throws also for an array without elements, but in a dry run. It may be an owner's, without a version:
  /// for what makes calls of it.
  Array& checked(const char* operation = "array", Where where = Where::current()) const {
    Array& array = present(operation, where);
    if (array.absent()) [[unlikely]]
      detail::check_absent(operation, where);
    return array;
  }
  /// The same; throws also for an array of an owner: for what asks for its version.
  Array& in_memory(const char* operation = "array", Where where = Where::current()) const {
    Array& array = present(operation, where);
    if (array.kind() != Array::Kind::memory) [[unlikely]]
      detail::check_memory(array, operation, where);
    return array;
  }
  /// The same window on another array.
  NDArray on(Ref<Array> array) const { return {std::move(array), shape_, strides_, offset_}; }

 private:
  friend struct Views;
  friend struct IndexViews;
  double item_real(Where where) const;
  std::int64_t item_integer(bool boolean, Where where) const;
  void copy_out(std::byte* into, Where where) const;
  void check_type(DType type, const char* who, Where where) const;

  Ref<Array> array_;
  Dims shape_;
  Dims strides_;
  std::int64_t offset_ = 0;
};

/// "(3, 4)", "f32", "gpu(0)".
std::ostream& operator<<(std::ostream& out, const Dims& shape);
std::ostream& operator<<(std::ostream& out, DType dtype);
std::ostream& operator<<(std::ostream& out, Device device);

/// One index of x(...) where some are arrays.
struct ArrayIndex {
  Index index{all};
  NDArray array{};
  bool is_array = false;  ///< else it is `index`
  template <class I>
  requires std::convertible_to<I, Index> ArrayIndex(const I& i) : index(i) {}  // NOLINT: made by conversion
  ArrayIndex(const NDArray& a) : array(a), is_array(true) {}                   // NOLINT
};

/// x(indices) where some indices are arrays; it lives for one expression. Reading it pushes the ops that copy the
/// elements: it converts to an NDArray. Writing goes to x, in the place of the call.
///
/// Arrays of integers (i64, i32, i8 or u8; negative numbers count from the end) broadcast together, and their shape
/// takes the place of the axes that they index, as in NumPy. An array of bool marks elements of as many axes as it has,
/// whose sizes must be the same; it stands for the arrays of nonzero(mask), and the call waits for its value, which
/// stages of pipelines must not (operators/waiting.h). (x(mask) = y, where y is a number or has one element, does not
/// wait, nor do += -= *= /= of such a y.) Other indices may stand beside the arrays; arrays must stand side by side.
/// Throws ArrayError. A number out of range fails the op, and poisons what it writes.
///
/// Where an element is named several times, x(rows) = y keeps the last, and x(rows) += y adds all, in order, as do -=.
/// *= and /= change each once. Writes are recorded for gradients as those to views are.
class IndexedArray {
  using Where = std::source_location;

 public:
  IndexedArray(const NDArray& x, std::vector<ArrayIndex> indices, Where where)
      : x_(x), indices_(std::move(indices)), where_(where) {}
  IndexedArray(const IndexedArray&) = delete;
  IndexedArray& operator=(const IndexedArray&) = delete;

  /// The elements, in a new array. (A name for the proxy itself, `auto y = x(rows)`, can be used for this alone.)
  NDArray get() const;
  operator NDArray() && { return get(); }  // NOLINT: made by conversion

  void operator=(const Operand& y) &&;
  void operator=(const ScalarOperand& y) &&;
  void operator=(IndexedArray&& y) && { std::move(*this) = Operand(std::move(y), where_); }
  void operator+=(const Operand& y) &&;
  void operator-=(const Operand& y) &&;
  void operator*=(const Operand& y) &&;
  void operator/=(const Operand& y) &&;
  void operator+=(const ScalarOperand& y) &&;
  void operator-=(const ScalarOperand& y) &&;
  void operator*=(const ScalarOperand& y) &&;
  void operator/=(const ScalarOperand& y) &&;

  // Members of the array that get() gives.
  Dims shape() const { return get().shape(); }
  DType dtype() const { return x_.dtype(where_); }
  std::int64_t count() const { return get().count(); }
  NDArray to(Device device, Where where = Where::current()) const { return get().to(device, where); }
  NDArray to(DType dtype, Where where = Where::current()) const { return get().to(dtype, where); }
  NDArray reshape(const Dims& shape, Where where = Where::current()) const { return get().reshape(shape, where); }
  template <class T>
  T item(Where where = Where::current()) const {
    return get().item<T>(where);
  }
  template <class T>
  std::vector<T> to_vector(Where where = Where::current()) const {
    return get().to_vector<T>(where);
  }
  std::string to_string(Where where = Where::current()) const { return get().to_string(where); }
  friend std::ostream& operator<<(std::ostream& out, const IndexedArray& x) {
    return out << x.get().to_string(x.where_);
  }

 private:
  friend struct Operand;
  NDArray x_;
  std::vector<ArrayIndex> indices_;
  Where where_;
  NDArray value_;  ///< what an Operand refers to
};

template <class... I>
IndexedArray NDArray::operator()(const Operand& first, const I&... more) const {
  return IndexedArray(*this, {ArrayIndex(first.array), ArrayIndex(more)...}, first.where);
}
template <class... I>
requires(!(std::convertible_to<I, Index> && ...)) IndexedArray NDArray::operator()(const Index& first,
                                                                                   const I&... more) const {
  return IndexedArray(*this, {ArrayIndex(first), ArrayIndex(more)...}, first.where);
}

/// Arguments that are several arrays: a span or a vector of them, or a list, {x, y}. Owns nothing.
struct NDArrays : std::span<const NDArray> {
  template <class R>
  requires std::convertible_to<const R&, std::span<const NDArray>> NDArrays(const R& arrays)  // NOLINT: made by
      : span(arrays) {}
  NDArrays(std::initializer_list<NDArray> arrays) : span(arrays.begin(), arrays.size()) {}  // NOLINT: conversion
};

/// The engine's variable of the array's present value. It makes engine.wait(x) and engine.error(x) work, and read(x) in
/// a push. To write arrays in an op of your own use push_op (ndarray/push.h). The whole of a partition has several
/// variables, and so has an import that overlaps several earlier ones: this is the first of them, which is all that
/// read(x) names; waits and errors are of all.
Variable variable_of(const NDArray& x, std::source_location where = std::source_location::current());
/// Calls f(variable) for each variable of the present value: engine.recover(x) recovers all of them.
template <class F>
void each_variable_of(const NDArray& x, F&& f, std::source_location where = std::source_location::current()) {
  Array& array = x.in_memory("variable", where);
  Ref<Version> version;
  {
    std::lock_guard lock(array.mutex());
    version = array.version();
  }
  version->each_variable(f);
}

/// Host memory of an array, held until this object is destroyed. Move-only.
template <class T>
class HostBorrow : public std::span<T> {
 public:
  HostBorrow(std::span<T> elements, Ref<Version> version, std::vector<Borrow> holds)
      : std::span<T>(elements), version_(std::move(version)), holds_(std::move(holds)) {}
  HostBorrow(HostBorrow&&) noexcept = default;
  HostBorrow& operator=(HostBorrow&&) noexcept = default;
  /// Releases the array: later ops can run.
  void release() { holds_.clear(); }

 private:
  Ref<Version> version_;
  std::vector<Borrow> holds_;
};

/// The engine that new arrays belong to: Engine::instance(), unless a program sets another, as tests do (nullptr sets
/// it back). The engine must outlive its arrays. Do not call set_default_engine while other threads make arrays.
Engine& default_engine();
void set_default_engine(Engine* engine);

/// An array whose elements are unspecified until it is written. Without `device` it is on the device of the thread's
/// scope.
NDArray empty(const Dims& shape, DType dtype = DType::f32,
              std::source_location where = std::source_location::current());
NDArray empty(const Dims& shape, DType dtype, Device device,
              std::source_location where = std::source_location::current());
/// One buffer in parts of sizes[0], sizes[1], ... rows along axis 0. Each part is an array of its own, and so is the
/// whole. Ops on different parts may run at once; an op on the whole comes after the earlier ops on every part.
/// Gradients follow arrays, not memory: outside of a NoGrad scope a recorded operator that writes to a part or to the
/// whole throws ArrayError, because the arrays that share the memory would not hear of it. They may be leaves, and
/// recorded operators may read them.
struct Partitioned {
  NDArray whole;
  std::vector<NDArray> parts;
};
Partitioned partitioned(std::span<const std::int64_t> sizes, const Dims& row_shape, DType dtype, Device device,
                        std::source_location where = std::source_location::current());

/// An array with these elements, row-major. They are copied at the call. On the host the array has its value at once;
/// on a device with memory of its own a transfer brings it there.
NDArray from_bytes(std::span<const std::byte> bytes, const Dims& shape, DType dtype, Device device,
                   std::source_location where = std::source_location::current());
/// An array over host memory. `owner` keeps the memory alive, and only arrays of this engine may write to it meanwhile.
/// For a device with memory of its own this makes a copy, by a transfer, and the rest of this comment does not apply.
/// For the host it makes no copy, and writes always go to this memory: a value that a snapshot or the tape holds is
/// copied away first.
///
/// Imports may overlap in any way, with different dtypes, and from several threads: operations on them take effect in
/// push order, as if the imports were views of one array. While arrays show overlapping memory they share their poison;
/// a write heals it if it overwrites everything that they show. Gradients follow arrays, not memory. So recorded
/// operators may write to an import only while no other array shows its memory, and after that no other array may be
/// used to write there.
///
/// When the array and the last operation on it are gone, the owner's deleter runs on the I/O lane (at once if the
/// engine was stopped). Throws ArrayError. If operations are still in flight on an earlier import of this memory whose
/// arrays are gone, it pushes an op, and throws what Engine::push throws.
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
/// The elements of any other range, in its order: from(std::views::iota(0, 6), {2, 3}), from(std::array{1.0F, 2.0F},
/// {2}).
template <class R>
requires requires(R& range) {
  std::end(range);
  dtype_of_t<std::remove_cvref_t<decltype(*std::begin(range))>>::value;
}
NDArray from(R&& range, const Dims& shape, std::source_location where = std::source_location::current()) {
  using T = std::remove_cvref_t<decltype(*std::begin(range))>;
  if constexpr (std::is_convertible_v<R&, std::span<const T>>) {
    return from(std::span<const T>(range), shape, where);
  } else {
    std::vector<T> elements;
    for (const T element : range) elements.push_back(element);
    return from(std::as_const(elements), shape, where);
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
    const double value = item_real(where);
    const T converted = static_cast<T>(value);
    if (std::isinf(converted) && !std::isinf(value)) {
      throw ArrayError("item", where, Scalar(value).text() + " does not fit the type");
    }
    return converted;
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
    std::vector<T> elements = detail::host_list<T>("to_vector", count(), where);
    copy_out(reinterpret_cast<std::byte*>(elements.data()), where);
    return elements;
  }
}

namespace detail {
/// An array over memory that belongs to `owner` alone. Makes no copy.
NDArray adopt_memory(void* data, std::shared_ptr<void> owner, const Dims& shape, DType dtype, Device device);
/// An array to write, in memory of cpu(0) that streams of the device copy from and to.
/// empty(), for a shape that was checked. `has_value`: its first access will be AccessMode::first.
NDArray new_array(const Dims& shape, DType dtype, Device device, bool has_value);
NDArray empty_pinned(const Dims& shape, DType dtype, Device device);
/// An array with these elements in such memory.
NDArray host_array(std::span<const std::byte> bytes, const Dims& shape, DType dtype, Device device);
/// Takes the engine's Borrows for borrow(). With `update`, a value that is held elsewhere is moved away first.
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
