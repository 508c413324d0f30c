// Host access: waiting, elements to and from host memory, borrowing.
#include <array>
#include <cstring>
#include <exception>

#include "sluice/ndarray/array_call.h"
#include "sluice/ndarray/dry_run.h"
#include "sluice/ndarray/half.h"
#include "sluice/ndarray/nd_array.h"
#include "sluice/ndarray/owner.h"
#include "sluice/ndarray/push.h"
#include "sluice/ndarray/rerun.h"
#include "sluice/ndarray/strided_copy.h"

namespace sluice {
namespace {

Ref<Version> version_of(Array& array) {
  std::lock_guard lock(array.mutex());
  return array.version();
}

/// The host reads, and no push of the thread's scope: nothing cancels it, it stands in no sequence, and it runs.
struct Reading : ScopeGuard {
  Reading() {
    current_scope().flags &= ~kDryFlag;
    current_scope().cancel = nullptr;
    current_scope().sequence = {};
  }
};

/// Its elements, if it has some to read, are those of another array.
bool of_owner(const NDArray& x) { return x.defined() && x.array()->kind() == Array::Kind::owned; }

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

}  // namespace

void NDArray::wait(Where where) const {
  if (checked("wait", where).kind() == Array::Kind::owned) {
    std::exception_ptr first;
    sluice::detail::each_plain(*this, [&](const NDArray& part) {
      try {
        part.wait(where);
      } catch (...) {
        if (!first) first = std::current_exception();
      }
    });
    if (first) std::rethrow_exception(first);
    return;
  }
  Array& array = in_memory("wait", where);
  DryRun::check_elements(array, "wait", where);
  const Ref<Version> version = version_of(array);
  version->each_variable([&](const Variable& v) { array.engine().wait(v, where); });
}

void NDArray::check_type(DType type, const char* who, Where where) const {
  if (of_owner(*this)) [[unlikely]] {
    if (const NDArray value = sluice::detail::value_of(*this); value.defined())
      return value.check_type(type, who, where);
  }
  if (in_memory(who, where).dtype() != type) {
    throw ArrayError(who, where, std::string(name_of(type)) + " asked of an array of " + std::string(name_of(dtype())));
  }
}

void NDArray::copy_out(std::byte* into, Where where) const {
  if (of_owner(*this)) [[unlikely]] {
    if (const NDArray value = sluice::detail::value_of(*this); value.defined()) return value.copy_out(into, where);
  }
  Array& array = in_memory("to_vector", where);
  DryRun::check_elements(array, "to_vector", where);
  // Elements on a device are brought to the host first, as this array's value is now; no tape hears of it.
  if (array.device().kind != DeviceKind::cpu) {
    NDArray here;
    {
      const Reading scope;
      here = detach().to(cpu(0), where);
    }
    return here.copy_out(into, where);
  }
  // Borrowed, not only waited for: a later push must not write while the elements are copied.
  const auto [version, holds] = detail::borrow_array(Rerun::seen(*this), false, where);
  if (count() == 0) return;
  std::byte* const data = version->buffer().data() + offset_ * static_cast<std::int64_t>(size_of(dtype()));
  const TensorView window{data, dtype(), shape_, strides_};
  if (version->buffer().pinned()) touch_pinned(version->buffer(), window, false);
  strided_copy(window, {into, dtype(), shape_, row_major(shape_)});
}

std::vector<std::byte> NDArray::to_bytes(Where where) const {
  if (of_owner(*this)) [[unlikely]] {
    if (const NDArray value = sluice::detail::value_of(*this); value.defined()) return value.to_bytes(where);
  }
  in_memory("to_bytes", where);
  const auto n = static_cast<std::int64_t>(bytes(where));
  std::vector<std::byte> result = detail::host_list<std::byte>("to_bytes", n, where);
  copy_out(result.data(), where);
  return result;
}

double NDArray::item_real(Where where) const {
  if (of_owner(*this)) [[unlikely]] {
    if (const NDArray value = sluice::detail::value_of(*this); value.defined()) return value.item_real(where);
  }
  const DType type = in_memory("item", where).dtype();
  if (count() != 1) throw ArrayError("item", where, sluice::to_string(shape_) + " has not one element");
  if (!is_floating(type)) {
    throw ArrayError("item", where, "a floating type asked of an array of " + std::string(name_of(type)));
  }
  std::array<std::byte, 8> element{};
  copy_out(element.data(), where);
  switch (type) {
    case DType::f64:
      return load<double>(element.data());
    case DType::f32:
      return static_cast<double>(load<float>(element.data()));
    case DType::f16:
      return static_cast<double>(static_cast<float>(load<Float16>(element.data())));
    default:
      return static_cast<double>(static_cast<float>(load<BFloat16>(element.data())));
  }
}

std::int64_t NDArray::item_integer(bool boolean, Where where) const {
  if (of_owner(*this)) [[unlikely]] {
    if (const NDArray value = sluice::detail::value_of(*this); value.defined())
      return value.item_integer(boolean, where);
  }
  const DType type = in_memory("item", where).dtype();
  if (count() != 1) throw ArrayError("item", where, sluice::to_string(shape_) + " has not one element");
  if (boolean ? type != DType::boolean : !is_integer(type)) {
    throw ArrayError(
        "item", where,
        std::string(boolean ? "bool" : "an integer type") + " asked of an array of " + std::string(name_of(type)));
  }
  std::array<std::byte, 8> element{};
  copy_out(element.data(), where);
  switch (type) {
    case DType::i8:
      return load<std::int8_t>(element.data());
    case DType::i32:
      return load<std::int32_t>(element.data());
    case DType::i64:
      return load<std::int64_t>(element.data());
    default:
      return load<std::uint8_t>(element.data());
  }
}

NDArray from_bytes(std::span<const std::byte> bytes, const Dims& shape, DType dtype, Device device,
                   std::source_location where) {
  check_shape("from", shape, dtype, where);
  const std::size_t needed = static_cast<std::size_t>(shape.count()) * size_of(dtype);
  if (bytes.size() != needed) {
    throw ArrayError("from", where,
                     std::to_string(bytes.size() / size_of(dtype)) + " elements for the shape " + to_string(shape));
  }
  return detail::host_array(bytes, shape, dtype, device).to(device, where);
}

/// With the elements, in host memory that the device reaches.
NDArray detail::host_array(std::span<const std::byte> bytes, const Dims& shape, DType dtype, Device device) {
  Engine& engine = default_engine();
  const bool staged = device.kind != DeviceKind::cpu;
  Ref<Buffer> buffer =
      staged ? new_pinned_buffer(engine, device, bytes.size()) : Ref<Buffer>(new Buffer(device, bytes.size()));
  std::byte* data = buffer->data();
  if (staged) touch_pinned(*buffer, {data, dtype, shape, row_major(shape)}, true);
  if (!bytes.empty()) std::memcpy(data, bytes.data(), bytes.size());
  return NDArray(Ref<Array>(new Array(engine, dtype, shape, new Version(std::move(buffer), engine.variable("array")))));
}

namespace detail {

std::pair<Ref<Version>, std::vector<Borrow>> borrow_array(const NDArray& x, bool update, std::source_location where) {
  Array& array = x.in_memory("borrow", where);
  DryRun::check_elements(array, "borrow", where);
  if (array.device().kind != DeviceKind::cpu) {
    throw ArrayError("borrow", where,
                     "the array is on " + to_string(array.device()) + ", out of the host's reach; use to(cpu(0))");
  }
  if (update) {
    // A push that changes nothing: it moves a held value away, as any write would.
    ArrayPush push;
    push.body = [](ArrayContext&) {};
    push.outputs = std::span(&x, 1);
    push.updates = Updates::only(0);
    push.opaque = true;
    push.options.name = "borrow";
    push.where = where;
    push_arrays(push);
  }
  Ref<Version> version = version_of(array);
  std::vector<Borrow> holds;
  version->each_variable(
      [&](const Variable& v) { holds.push_back(array.engine().borrow(update ? sluice::update(v) : read(v), where)); });
  return {std::move(version), std::move(holds)};
}

}  // namespace detail
}  // namespace sluice
