#include "sluice/ndarray/storage.h"

#include <algorithm>

#include "sluice/resources/memory_pool.h"

namespace sluice {

Buffer::~Buffer() {
  std::byte* data = data_.load(std::memory_order_acquire);
  if (data && !owner_) memory_pool(device_).deallocate(data, bytes_);
}

std::byte* Buffer::data() {
  if (std::byte* data = data_.load(std::memory_order_acquire)) return data;
  MemoryPool& pool = memory_pool(device_);
  auto* fresh = static_cast<std::byte*>(pool.allocate(bytes_));
  std::byte* expected = nullptr;
  if (data_.compare_exchange_strong(expected, fresh, std::memory_order_acq_rel)) return fresh;
  pool.deallocate(fresh, bytes_);
  return expected;
}

Array::Array(Engine& engine, DType dtype, const Dims& shape, Ref<Version> version)
    : engine_(&engine),
      device_(version->buffer().device()),
      dtype_(dtype),
      shape_(shape),
      version_(std::move(version)) {
  version_->arrays.fetch_add(1, std::memory_order_relaxed);
}

Array::~Array() {
  if (listed_) {
    std::lock_guard lock(group_->list);
    std::erase(group_->snapshots, this);
  }
  version_->arrays.fetch_sub(1, std::memory_order_acq_rel);
}

void Array::set_version(Ref<Version> version) {
  version->arrays.fetch_add(1, std::memory_order_relaxed);
  version_->arrays.fetch_sub(1, std::memory_order_acq_rel);
  version_ = std::move(version);
}

Ref<Array> Array::snapshot() {
  Ref<Array> copy(new Array(*engine_, dtype_, shape_, version_));
  copy->history = history;
  copy->history_output = history_output;
  copy->leaf = leaf;
  if (group_) {
    copy->group_ = group_;
    copy->base_offset_ = base_offset_;
    std::lock_guard lock(group_->list);
    group_->snapshots.push_back(copy.get());
    copy->listed_ = true;
  }
  return copy;
}

std::vector<Ref<Array>> Array::holders() const {
  std::vector<Ref<Array>> found;
  const std::int64_t begin = base_offset_, end = begin + shape_.count();
  std::lock_guard lock(group_->list);
  for (Array* other : group_->snapshots) {
    if (!other->try_add_ref()) continue;  // its last owner waits for this lock to strike it off
    Ref<Array> holder = Ref<Array>::adopt(other);
    const std::int64_t first = other->base_offset_;
    if (&other->version_->buffer() == &version_->buffer() && first < end && begin < first + other->shape_.count()) {
      found.push_back(std::move(holder));
    }
  }
  return found;
}

void Array::join(Ref<PartGroup> group, std::int64_t base_offset) {
  group_ = std::move(group);
  base_offset_ = base_offset;
}

}  // namespace sluice
