// Handles, the engine that arrays belong to, and new arrays. Nothing here touches elements.
#include "sluice/ndarray/nd_array.h"

#include <algorithm>
#include <atomic>

#include "sluice/ndarray/check_device.h"
#include "sluice/ndarray/tensor_view.h"
#include "sluice/ndarray/user_names.h"
#include "sluice/resources/cuda/cuda.h"
#include "sluice/resources/cuda/library.h"

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
  const bool there = device.index < engine.device_count(device.kind);
  // Cards are counted without CUDA, which is loaded here, and brings the kernels. It may say that they cannot be used.
  if (there && (device.kind != DeviceKind::gpu || cuda::is_usable())) return;
  std::string why;
  try {
    why = engine.provider(device)->unavailable();
  } catch (const UsageError& e) {
    why = e.what();
  }
  if (!why.empty()) throw ArrayError(operation, where, why);
}

std::int64_t NDArray::size(int axis, Where where) const {
  present("size", where);
  return shape_[checked_axis(axis, rank(), "size", shape_, where)];
}

Variable variable_of(const NDArray& x, std::source_location where) {
  Array& array = x.in_memory("variable", where);
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
