#include "sluice/ndarray/dlpack.h"
#include "sluice/ndarray/dry_run.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <tuple>

#include "sluice/ndarray/imports.h"
#include "sluice/ndarray/storage.h"

namespace sluice {
namespace {

constexpr std::array<dlpack::DataType, kDTypeCount> kTypes = {
    {{2, 32, 1}, {2, 64, 1}, {2, 16, 1}, {4, 16, 1}, {0, 8, 1}, {1, 8, 1}, {0, 32, 1}, {0, 64, 1}, {6, 8, 1}}};
static_assert(static_cast<int>(DType::bf16) == 3 && static_cast<int>(DType::boolean) == 8);

/// What an exported tensor keeps alive.
template <class Managed>
struct Export {
  Managed managed{};
  NDArray array;
  Ref<Version> version;
  std::vector<Borrow> holds;
  std::array<std::int64_t, kMaxRank> shape{}, strides{};
};

template <class Managed>
Managed* export_tensor(const NDArray& x, bool writable, const char* name, const std::source_location& where) {
  Array& array = x.in_memory(name, where);
  DryRun::check_elements(array, name, where);
  if (array.device().kind != DeviceKind::cpu) {
    throw ArrayError(name, where, "the array is on " + to_string(array.device()) + ", wanted the host: use to(cpu(0))");
  }
  auto owner = std::make_unique<Export<Managed>>();
  if (writable) {
    owner->array = x;
    std::tie(owner->version, owner->holds) = detail::borrow_array(x, true, where);
  } else {
    // Memory that others may write is copied: those writes go to it, whoever holds its value.
    bool stays = array.stays();
    if (!stays) {
      std::lock_guard lock(array.mutex());
      stays = array.group() != nullptr;
      if (!stays) owner->array = x.on(array.snapshot());
    }
    if (stays) owner->array = from_bytes(x.to_bytes(where), x.shape(), x.dtype(), cpu(0), where);
    owner->array.wait(where);
    std::lock_guard lock(owner->array.array()->mutex());
    owner->version = owner->array.array()->version();
  }
  const NDArray& shown = owner->array;
  for (int i = 0; i < shown.rank(); ++i) {
    owner->shape[static_cast<std::size_t>(i)] = shown.shape()[i];
    owner->strides[static_cast<std::size_t>(i)] = shown.strides()[i];
  }
  auto* const data = owner->version->buffer().data();
  dlpack::Tensor& tensor = owner->managed.tensor;
  tensor.data = data ? data + shown.offset() * static_cast<std::int64_t>(size_of(shown.dtype())) : nullptr;
  tensor.device = {1, 0};
  tensor.ndim = shown.rank();
  tensor.dtype = kTypes[static_cast<std::size_t>(shown.dtype())];
  tensor.shape = owner->shape.data();
  tensor.strides = owner->strides.data();
  owner->managed.manager = owner.get();
  owner->managed.deleter = [](Managed* managed) { delete static_cast<Export<Managed>*>(managed->manager); };
  return &owner.release()->managed;
}

dlpack::ManagedTensorVersioned* versioned(dlpack::ManagedTensorVersioned* tensor, std::uint64_t flags) {
  tensor->version = {1, 0};
  tensor->flags = flags;
  return tensor;
}

template <class Managed>
NDArray import_tensor(Managed* managed, bool read_only, const std::source_location& where) {
  const auto refuse = [&](const std::string& what) { throw ArrayError("from_dlpack", where, what); };
  const std::shared_ptr<void> owner(managed, [](void* held) {
    auto* const tensor = static_cast<Managed*>(held);
    if (tensor && tensor->deleter) tensor->deleter(tensor);
  });
  if (!managed) refuse("no tensor");
  const dlpack::Tensor& tensor = managed->tensor;
  if (tensor.device.type != 1) {
    refuse("memory of DLPack's device " + std::to_string(tensor.device.type) + ", wanted 1, the host");
  }
  std::optional<DType> dtype;
  for (int i = 0; i < kDTypeCount; ++i) {
    const dlpack::DataType& known = kTypes[static_cast<std::size_t>(i)];
    if (known.code == tensor.dtype.code && known.bits == tensor.dtype.bits && known.lanes == tensor.dtype.lanes) {
      dtype = static_cast<DType>(i);
    }
  }
  if (!dtype) {
    refuse("dtype of DLPack's code " + std::to_string(tensor.dtype.code) + ", " + std::to_string(tensor.dtype.bits) +
           " bits and " + std::to_string(tensor.dtype.lanes) + " lanes, which Sluice has none for");
  }
  if (tensor.ndim < 0 || tensor.ndim > kMaxRank) {
    refuse("rank " + std::to_string(tensor.ndim) + ", wanted 0 to " + std::to_string(kMaxRank));
  }
  Dims shape, strides;
  for (int i = 0; i < tensor.ndim; ++i) shape.push_back(tensor.shape[i]);
  bool countable = true;
  std::int64_t step = 1, low = 0, high = 0;  // the furthest elements, from the first
  for (int i = 0; i < tensor.ndim; ++i) countable = countable && shape[i] >= 0;
  const bool none = countable && std::find(shape.begin(), shape.end(), 0) != shape.end();
  std::array<std::int64_t, kMaxRank> row{};
  for (int i = tensor.ndim - 1; i >= 0 && countable; --i) {
    row[static_cast<std::size_t>(i)] = step;
    countable = !__builtin_mul_overflow(step, std::max<std::int64_t>(shape[i], 1), &step);
  }
  for (int i = 0; i < tensor.ndim && countable; ++i) {
    strides.push_back(tensor.strides && !none ? tensor.strides[i] : row[static_cast<std::size_t>(i)]);
    std::int64_t reach = 0;
    countable = none || (!__builtin_mul_overflow(shape[i] - 1, strides[i], &reach) &&
                         !__builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high));
  }
  const auto item = static_cast<std::int64_t>(size_of(*dtype));
  std::int64_t span = 0, bytes = 0;
  countable = countable && !__builtin_sub_overflow(high, low, &span) && !__builtin_add_overflow(span, 1, &span) &&
              !__builtin_mul_overflow(span, item, &bytes);
  if (!countable) refuse("sizes and strides that cannot be counted");
  if (none) return empty(shape, *dtype, cpu(0), where);
  if (!tensor.data) refuse("no memory");
  std::byte* const first = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  if (reinterpret_cast<std::uintptr_t>(first) % static_cast<std::uintptr_t>(item) != 0) {
    refuse("memory that is not aligned for " + std::string(name_of(*dtype)));
  }
  // The array is the whole stretch that the strides reach, and the result a view of it.
  Ref<Array> array = import_array(default_engine(), first + low * item, owner, Dims{span}, *dtype, cpu(0), where);
  if (read_only) {  // a snapshot shows the memory, and is never written in place
    std::unique_lock lock(array->mutex());
    Ref<Array> snapshot = array->snapshot();
    lock.unlock();
    array = std::move(snapshot);
  }
  return NDArray(std::move(array)).strided(shape, strides, -low, where);
}

}  // namespace

dlpack::ManagedTensorVersioned* to_dlpack(const NDArray& x, std::source_location where) {
  return versioned(export_tensor<dlpack::ManagedTensorVersioned>(x, false, "to_dlpack", where), dlpack::kReadOnly);
}
dlpack::ManagedTensor* to_dlpack_unversioned(const NDArray& x, std::source_location where) {
  return export_tensor<dlpack::ManagedTensor>(x, false, "to_dlpack", where);
}
dlpack::ManagedTensorVersioned* to_dlpack_writable(const NDArray& x, std::source_location where) {
  return versioned(export_tensor<dlpack::ManagedTensorVersioned>(x, true, "to_dlpack_writable", where), 0);
}

NDArray from_dlpack(dlpack::ManagedTensorVersioned* tensor, std::source_location where) {
  if (tensor && tensor->version.major != 1) {
    const std::string version = std::to_string(tensor->version.major) + "." + std::to_string(tensor->version.minor);
    if (tensor->deleter) tensor->deleter(tensor);
    throw ArrayError("from_dlpack", where, "DLPack of version " + version + ", wanted 1");
  }
  return import_tensor(tensor, tensor && (tensor->flags & dlpack::kReadOnly) != 0, where);
}
NDArray from_dlpack(dlpack::ManagedTensor* tensor, std::source_location where) {
  return import_tensor(tensor, false, where);
}

}  // namespace sluice
