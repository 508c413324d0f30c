// Handles and views: arithmetic on shapes, strides and offsets. Nothing here touches elements.
#include "sluice/ndarray/nd_array.h"

#include <algorithm>
#include <atomic>

#include "sluice/ndarray/check_device.h"
#include "sluice/ndarray/tensor_view.h"
#include "sluice/ndarray/user_names.h"
#include "sluice/resources/cuda/cuda.h"

namespace sluice {
namespace {

std::atomic<Engine*> chosen_engine{nullptr};

int checked_axis(int axis, int rank, const char* who, const Dims& shape, const std::source_location& where) {
  const int positive = axis < 0 ? axis + rank : axis;
  if (positive < 0 || positive >= rank) {
    throw ArrayError(who, where, sluice::to_string(shape) + ": no axis " + std::to_string(axis));
  }
  return positive;
}

}  // namespace

const char*& detail::called_function() {
  constinit thread_local const char* name = nullptr;
  return name;
}

// Inside of a function that is made of operators the scope has the program's line, and `where` is the library's.
ArrayError::ArrayError(std::string_view operation, const std::source_location& where, std::string_view message)
    : UsageError([&] {
        const std::source_location& program = current_scope().where;
        const bool inside = program.line() != 0;
        const char* const called = inside ? detail::called_function() : nullptr;
        return "[" + std::string(called ? called : name_for_users(operation)) + "] " +
               call_site(inside ? program : where) + ": " + std::string(message);
      }()) {}

namespace {
/// The process's engine has the machine's GPUs.
[[maybe_unused]] const bool has_gpus = (Engine::instance_providers().push_back(cuda_devices()), true);
}  // namespace

Engine& default_engine() {
  Engine* engine = chosen_engine.load(std::memory_order_acquire);
  return engine ? *engine : Engine::instance();
}

void set_default_engine(Engine* engine) { chosen_engine.store(engine, std::memory_order_release); }

void detail::refuse_empty(std::string_view operation, const std::source_location& where) {
  throw ArrayError(operation, where, "an empty handle");
}

void detail::check_device(std::string_view operation, Device device, const std::source_location& where) {
  const Engine& engine = default_engine();
  if (device.index < engine.device_count(device.kind)) return;
  try {
    engine.provider(device);
  } catch (const UsageError& e) {
    throw ArrayError(operation, where, e.what());
  }
}

std::int64_t NDArray::size(int axis, Where where) const {
  present("size", where);
  return shape_[checked_axis(axis, rank(), "size", shape_, where)];
}

NDArray NDArray::narrow(int axis, std::int64_t begin, std::int64_t end, Where where) const {
  present("narrow", where);
  axis = checked_axis(axis, rank(), "narrow", shape_, where);
  if (begin < 0 || end < begin || end > shape_[axis]) {
    throw ArrayError("narrow", where,
                     sluice::to_string(shape_) + ": [" + std::to_string(begin) + ", " + std::to_string(end) +
                         ") on axis " + std::to_string(axis));
  }
  NDArray view = *this;
  view.shape_[axis] = end - begin;
  if (end > begin) view.offset_ += begin * strides_[axis];
  return view;
}

NDArray NDArray::permute(const Dims& axes, Where where) const {
  present("permute", where);
  const auto fail = [&] {
    throw ArrayError("permute", where,
                     sluice::to_string(shape_) + ": axes " + sluice::to_string(axes) + "; wanted is each of its " +
                         std::to_string(rank()) + " axes once");
  };
  if (axes.rank() != rank()) fail();
  NDArray view(array_, {}, {}, offset_);
  std::uint32_t seen = 0;
  for (std::int64_t a : axes) {
    if (a < 0) a += rank();
    if (a < 0 || a >= rank() || (seen >> a & 1U) != 0) fail();
    seen |= 1U << a;
    view.shape_.push_back(shape_[static_cast<int>(a)]);
    view.strides_.push_back(strides_[static_cast<int>(a)]);
  }
  return view;
}

NDArray NDArray::transpose(Where where) const {
  present("transpose", where);
  Dims axes;
  for (int i = rank() - 1; i >= 0; --i) axes.push_back(i);
  return permute(axes, where);
}

NDArray NDArray::broadcast_to(const Dims& shape, Where where) const {
  present("broadcast_to", where);
  const auto fail = [&] {
    throw ArrayError("broadcast_to", where,
                     sluice::to_string(shape_) + " does not broadcast to " + sluice::to_string(shape));
  };
  if (shape.rank() < rank()) fail();
  check_view_shape("broadcast_to", shape, dtype(), where);
  NDArray view(array_, shape, {}, offset_);
  const int added = shape.rank() - rank();
  for (int i = 0; i < shape.rank(); ++i) {
    if (i < added || (shape_[i - added] == 1 && shape[i] != 1)) {
      view.strides_.push_back(0);
    } else {
      if (shape_[i - added] != shape[i]) fail();
      view.strides_.push_back(strides_[i - added]);
    }
  }
  return view;
}

NDArray NDArray::squeeze(int axis, Where where) const {
  present("squeeze", where);
  axis = checked_axis(axis, rank(), "squeeze", shape_, where);
  if (shape_[axis] != 1) {
    throw ArrayError("squeeze", where,
                     sluice::to_string(shape_) + ": axis " + std::to_string(axis) + " is not of size 1");
  }
  NDArray view(array_, {}, {}, offset_);
  for (int i = 0; i < rank(); ++i) {
    if (i == axis) continue;
    view.shape_.push_back(shape_[i]);
    view.strides_.push_back(strides_[i]);
  }
  return view;
}

NDArray NDArray::unsqueeze(int axis, Where where) const {
  present("unsqueeze", where);
  axis = checked_axis(axis, rank() + 1, "unsqueeze", shape_, where);
  if (rank() == kMaxRank) {
    throw ArrayError("unsqueeze", where,
                     sluice::to_string(shape_) + ": a view of more than " + std::to_string(kMaxRank) + " axes");
  }
  NDArray view(array_, {}, {}, offset_);
  for (int i = 0; i <= rank(); ++i) {
    if (i == axis) {
      view.shape_.push_back(1);
      view.strides_.push_back(0);
    }
    if (i == rank()) break;
    view.shape_.push_back(shape_[i]);
    view.strides_.push_back(strides_[i]);
  }
  return view;
}

NDArray NDArray::reshape(const Dims& wanted, Where where) const {
  present("reshape", where);
  const auto fail = [&](const char* why = "the numbers of elements differ") {
    throw ArrayError("reshape", where, sluice::to_string(shape_) + " to " + sluice::to_string(wanted) + ": " + why);
  };
  if (wanted.too_long()) fail(("an array has at most " + std::to_string(kMaxRank) + " axes").c_str());
  Dims shape = wanted;
  int open = -1;
  std::int64_t known = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == -1 && open < 0) {
      open = i;
    } else {
      if (shape[i] == -1) fail("at most one size may be -1, which stands for what is left");
      if (shape[i] < 0) fail("a negative size");
      if (__builtin_mul_overflow(known, shape[i], &known)) fail();
    }
  }
  if (open >= 0) {
    if (known == 0 || count() % known != 0) fail();
    shape[open] = count() / known;
  }
  check_view_shape("reshape", shape, dtype(), where);
  if (shape.count() != count()) fail();
  if (is_contiguous()) return NDArray(array_, shape, row_major(shape), offset_);
  // Axes that step evenly join; each group of old axes must then split into new ones of the same count.
  Dims strides = row_major(shape);
  int from = 0, to = 0;
  while (from < rank() || to < shape.rank()) {
    std::int64_t have = from < rank() ? shape_[from] : 1, want = to < shape.rank() ? shape[to] : 1;
    int from_end = std::min(from + 1, rank()), to_end = std::min(to + 1, shape.rank());
    while (have != want) {
      if (have < want) {
        if (from_end >= rank()) break;
        have *= shape_[from_end++];
      } else {
        if (to_end >= shape.rank()) break;
        want *= shape[to_end++];
      }
    }
    if (have != want) return contiguous(where).reshape(shape, where);
    std::int64_t step = 0;
    for (int i = from_end - 1, last = -1; i >= from; --i) {  // the old axes must be one even run
      if (shape_[i] == 1) continue;
      if (last >= 0 && strides_[i] != strides_[last] * shape_[last]) return contiguous(where).reshape(shape, where);
      if (last < 0) step = strides_[i];
      last = i;
    }
    for (int i = to_end - 1; i >= to; --i) {
      strides[i] = step;
      step *= shape[i];
    }
    from = from_end;
    to = to_end;
  }
  return NDArray(array_, shape, strides, offset_);
}

NDArray NDArray::flatten(int axis, Where where) const {
  present("flatten", where);
  if (rank() == 0) return reshape({1}, where);
  axis = checked_axis(axis, rank(), "flatten", shape_, where);
  Dims shape;
  std::int64_t rest = 1;
  for (int i = 0; i < rank(); ++i) {
    if (i < axis) {
      shape.push_back(shape_[i]);
    } else {
      rest *= shape_[i];
    }
  }
  shape.push_back(rest);
  return reshape(shape, where);
}

NDArray NDArray::strided(const Dims& shape, const Dims& strides, std::int64_t offset, Where where) const {
  const Array& array = present("strided", where);
  check_view_shape("strided", shape, array.dtype(), where);
  const std::int64_t first = array.base_offset(), end = first + array.shape().count();
  const bool none = shape.count() == 0;
  std::int64_t low = none ? first : offset, high = low;
  bool countable = shape.rank() == strides.rank() && !strides.too_long();
  for (int i = 0; !none && countable && i < shape.rank(); ++i) {
    std::int64_t reach = 0;
    countable = !__builtin_mul_overflow(shape[i] - 1, strides[i], &reach) &&
                !(reach < 0 ? __builtin_add_overflow(low, reach, &low) : __builtin_add_overflow(high, reach, &high));
  }
  if (!countable || (!none && (low < first || high >= end))) {
    throw ArrayError("strided", where,
                     sluice::to_string(shape) + " with strides " + sluice::to_string(strides) + " from " +
                         std::to_string(offset) + " leaves the array of " + sluice::to_string(array.shape()));
  }
  return NDArray(array_, shape, strides, none ? first : offset);
}

Variable variable_of(const NDArray& x, std::source_location where) {
  Array& array = x.checked("variable", where);
  std::lock_guard lock(array.mutex());
  return array.version()->variable();
}

NDArray empty(const Dims& shape, DType dtype, Device device, std::source_location where) {
  check_shape("empty", shape, dtype, where);
  return detail::new_array(shape, dtype, device, false);
}

NDArray detail::new_array(const Dims& shape, DType dtype, Device device, bool has_value) {
  Engine& engine = default_engine();
  const std::size_t bytes = static_cast<std::size_t>(shape.count()) * size_of(dtype);
  Variable variable = engine.variable("array", has_value);
  Ref<Version> version(device.kind == DeviceKind::cpu
                           ? new Version(device, bytes, std::move(variable))
                           : new Version(new_buffer(engine, device, bytes), std::move(variable)));
  return NDArray(Ref<Array>(new Array(engine, dtype, shape, std::move(version))));
}

NDArray detail::empty_pinned(const Dims& shape, DType dtype, Device device) {
  if (device.kind == DeviceKind::cpu) return empty(shape, dtype, device);
  Engine& engine = default_engine();
  const std::size_t bytes = static_cast<std::size_t>(shape.count()) * size_of(dtype);
  Ref<Version> version(new Version(new_pinned_buffer(engine, device, bytes), engine.variable("array", false)));
  return NDArray(Ref<Array>(new Array(engine, dtype, shape, std::move(version))));
}

NDArray empty(const Dims& shape, DType dtype, std::source_location where) {
  return empty(shape, dtype, current_scope().device, where);
}

Partitioned partitioned(std::span<const std::int64_t> sizes, const Dims& row_shape, DType dtype, Device device,
                        std::source_location where) {
  if (sizes.empty()) throw ArrayError("partitioned", where, "no parts");
  if (row_shape.given() >= kMaxRank) {
    throw ArrayError(
        "partitioned", where,
        "rows of " + to_string(row_shape) + ": an array has at most " + std::to_string(kMaxRank) + " axes");
  }
  const auto shape_of = [&](std::int64_t n) {
    Dims shape{n};
    for (std::int64_t s : row_shape) shape.push_back(s);
    return shape;
  };
  std::int64_t rows = 0;
  for (std::int64_t n : sizes) {
    check_shape("partitioned", shape_of(n), dtype, where);
    if (__builtin_add_overflow(rows, n, &rows)) throw ArrayError("partitioned", where, "too many rows to count");
  }
  check_shape("partitioned", shape_of(rows), dtype, where);
  Engine& engine = default_engine();
  const std::size_t bytes = static_cast<std::size_t>(rows * row_shape.count()) * size_of(dtype);
  Ref<Buffer> buffer = new_buffer(engine, device, bytes);
  if (buffer->pool()) buffer->data();  // ops of several streams may come first: it is for any of them
  Ref<ShareGroup> group(new ShareGroup);
  std::vector<Variable> variables;
  Partitioned result;
  std::int64_t offset = 0;
  for (std::int64_t n : sizes) {
    variables.push_back(engine.variable("part", false));
    Ref<Array> part(new Array(engine, dtype, shape_of(n), new Version(buffer, variables.back())));
    part->join(group, offset);
    offset += n * row_shape.count();
    result.parts.emplace_back(std::move(part));
  }
  Ref<Array> whole(new Array(engine, dtype, shape_of(rows), new Version(buffer, std::move(variables))));
  whole->join(group, 0);
  result.whole = NDArray(std::move(whole));
  return result;
}

NDArray from_memory(void* data, std::shared_ptr<void> owner, const Dims& shape, DType dtype, Device device,
                    std::source_location where) {
  check_shape("from_memory", shape, dtype, where);
  const Device host = device.kind == DeviceKind::cpu ? device : cpu(0);
  return NDArray(import_array(default_engine(), data, std::move(owner), shape, dtype, host, where)).to(device, where);
}

NDArray detail::adopt_memory(void* data, std::shared_ptr<void> owner, const Dims& shape, DType dtype, Device device) {
  Engine& engine = default_engine();
  const std::size_t bytes = static_cast<std::size_t>(shape.count()) * size_of(dtype);
  const Device host = device.kind == DeviceKind::cpu ? device : cpu(0);
  Ref<Buffer> buffer(new Buffer(host, bytes, data, std::move(owner)));
  return NDArray(Ref<Array>(new Array(engine, dtype, shape, new Version(std::move(buffer), engine.variable("array")))))
      .to(device);
}

}  // namespace sluice
