#include "sluice/ndarray/storage.h"

#include "sluice/resources/memory_pool.h"

namespace sluice {

Buffer::Buffer(Device device, std::size_t bytes, void* data, std::shared_ptr<void> owner)
    : bytes_(bytes), data_(static_cast<std::byte*>(data)), foreign_(std::make_unique<Foreign>()), device_(device) {
  foreign_->owner = std::move(owner);
}

Buffer::Buffer(Device device, std::unique_ptr<Import> import)
    : bytes_(static_cast<std::size_t>(import->end() - import->begin())),
      data_(import->begin()),
      foreign_(std::make_unique<Foreign>()),
      device_(device) {
  foreign_->import = std::move(import);
}

Buffer::Buffer(DevicePool& pool, bool pinned, std::size_t bytes)
    : bytes_(bytes), foreign_(std::make_unique<Foreign>()), device_(pinned ? cpu(0) : pool.device()) {
  foreign_->owner = pool.shared_from_this();
  foreign_->pool = &pool;
}

Buffer::~Buffer() {
  std::byte* data = data_.load(std::memory_order_acquire);
  if (!data) return;
  if (!foreign_) {
    memory_pool(device_).deallocate(data, bytes_);
  } else if (DevicePool* const pool = foreign_->pool) {
    pool->deallocate(pinned() ? DevicePool::pinned_memory : DevicePool::device_memory, data, bytes_, foreign_->holder,
                     std::move(foreign_->uses));
  }
}

std::uint32_t Buffer::number() {
  static std::atomic<std::uint32_t> last{0};
  std::uint32_t known = number_.load(std::memory_order_relaxed);
  while (known == 0) {
    const std::uint32_t fresh = last.fetch_add(1, std::memory_order_relaxed) + 1;
    if (number_.compare_exchange_strong(known, fresh, std::memory_order_relaxed)) known = fresh;
  }
  return known;
}

std::byte* Buffer::allocate(Context* context) {
  DevicePool* const pool = this->pool();
  if (foreign_ && !pool) return nullptr;  // brought, and empty
  std::byte* fresh = nullptr;
  DevicePool::Holder holder = 0;
  const DevicePool::Kind kind = pinned() ? DevicePool::pinned_memory : DevicePool::device_memory;
  if (pool) {
    fresh = static_cast<std::byte*>(allocate_block(*pool, kind, bytes_, context, holder));
  } else {
    fresh = static_cast<std::byte*>(memory_pool(device_).allocate(bytes_));
  }
  std::byte* expected = nullptr;
  if (data_.compare_exchange_strong(expected, fresh, std::memory_order_acq_rel)) {
    if (holder) foreign_->holder = holder;  // the thread that lets go of the buffer last reads it
    return fresh;
  }
  if (pool && kind == DevicePool::device_memory) {
    pool->discard(fresh, bytes_, context, holder);  // the stream alone may use it, after work of others
  } else if (pool) {
    pool->deallocate(kind, fresh, bytes_);
  } else {
    memory_pool(device_).deallocate(fresh, bytes_);
  }
  return expected;
}

std::byte* Buffer::data_for(Context& context) {
  std::byte* const there = data_.load(std::memory_order_acquire);
  return there ? there : allocate(&context);
}

void Buffer::used(const std::shared_ptr<StreamProgress>& stream, std::uint64_t point) {
  const std::lock_guard lock(foreign_->mutex);
  foreign_->uses.add(stream, point);
}

Ref<Buffer> Buffer::another(std::size_t bytes) const {
  return Ref<Buffer>(pool() && !pinned() ? new Buffer(*pool(), false, bytes) : new Buffer(device_, bytes));
}

void* allocate_block(DevicePool& pool, DevicePool::Kind kind, std::size_t bytes, Context* context,
                     DevicePool::Holder& holder) {
  if (void* block = pool.allocate(kind, bytes, context, &holder)) return block;
  // What is issued comes to its end whatever else happens; what is only queued may wait for this very op.
  if (context && context->stream()) context->await_issued();
  pool.trim();
  if (void* block = pool.allocate(kind, bytes, context, &holder)) return block;
  pool.fail(kind, bytes);
}

Ref<Buffer> new_buffer(Engine& engine, Device device, std::size_t bytes) {
  return Ref<Buffer>(device.kind == DeviceKind::cpu ? new Buffer(device, bytes)
                                                    : new Buffer(device_pool(engine, device), false, bytes));
}

Ref<Buffer> new_pinned_buffer(Engine& engine, Device device, std::size_t bytes) {
  return Ref<Buffer>(new Buffer(device_pool(engine, device), true, bytes));
}

void Array::set_version(Ref<Version> version) {
  if (version == version_) return;
  if (listed_) {
    ShareGroup::strike_snapshot(group(), this);
    listed_ = false;
  }
  version->shown();
  version_->hidden();
  version_ = std::move(version);
}

Ref<Array> Array::snapshot() {
  Ref<Array> copy(new Array(*engine_, dtype_, shape_, version_));
  copy->history = history;
  copy->history_output = history_output;
  copy->leaf = leaf;
  copy->base_offset_ = base_offset_;
  copy->kind_ = kind_;
  if (stays_ || listed_) {
    copy->mutex_.join(group());
    group()->list_snapshot(copy.get());
    copy->listed_ = true;
  }
  return copy;
}

Stretch Array::stretch() const {
  const auto item = static_cast<std::intptr_t>(size_of(dtype_));
  return Stretch::of(version_->buffer(), base_offset_ * item, (base_offset_ + shape_.count()) * item);
}

void Array::join(Ref<ShareGroup> group, std::int64_t base_offset) {
  mutex_.join(std::move(group));
  base_offset_ = base_offset;
  stays_ = true;
}

}  // namespace sluice
