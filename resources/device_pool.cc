#include "sluice/resources/device_pool.h"
#include "sluice/engine/bytes_in_words.h"
#include "sluice/resources/memory_summary.h"

#include <algorithm>
#include <stdexcept>

namespace sluice {
DevicePool::DevicePool(std::shared_ptr<Provider> provider, Device device)
    : provider_(std::move(provider)), device_(device), observer_(dynamic_cast<OrderObserver*>(provider_.get())) {}

DevicePool::~DevicePool() {
  // The engine is gone, and its streams with it: all is over.
  for (Early& e : early_) e.stream = nullptr;
  trim_locked();
}

void* DevicePool::allocate(Kind kind, std::size_t bytes, Stream* stream, Holder* holder) noexcept {
  if (holder) *holder = 0;
  const int size_class = MemoryPool::class_of(bytes);
  if (size_class >= MemoryPool::kClasses) return nullptr;
  const char* const name = holder && kind == device_memory ? current_op_label().name : nullptr;
  const char* const layer = name ? current_op_layer() : "";
  std::lock_guard lock(mutex_);
  void* const block = take(kind, size_class, stream);
  if (block && name) {
    *holder = holders_.find(name, layer);
    holders_.add(*holder, MemoryPool::size_of_class(size_class));
  }
  return block;
}

/// A block of the cache, or a new one. With the mutex held, so that one thread's trim helps it and no other.
void* DevicePool::take(Kind kind, int size_class, Stream* stream) noexcept {
  const std::size_t size = MemoryPool::size_of_class(size_class);
  Cache& cache = caches_[kind];
  ++cache.stats.allocations;
  void* block = nullptr;
  const auto early =
      kind == pinned_memory ? early_.rend() : std::find_if(early_.rbegin(), early_.rend(), [&](const Early& e) {
        return e.stream == stream && e.size_class == size_class;
      });
  auto& list = cache.free[static_cast<std::size_t>(size_class)];
  if (early != early_.rend()) {
    block = early->memory;
    early_.erase(std::next(early).base());
  } else if (!list.empty()) {
    block = list.back();
    list.pop_back();
    if (observer_) observer_->block_reused(block);
  }
  if (block) {
    cache.stats.cached -= size;
    ++cache.stats.hits;
  } else {
    block = make(kind, size, stream);
    if (!block && trim_locked() > 0) block = make(kind, size, stream);
    if (!block) return nullptr;
  }
  cache.stats.in_use += size;
  cache.stats.peak = std::max(cache.stats.peak, cache.stats.in_use);
  return block;
}

void DevicePool::deallocate(Kind kind, void* block, std::size_t bytes, Holder holder) noexcept {
  const int size_class = MemoryPool::class_of(bytes);
  std::lock_guard lock(mutex_);
  holders_.remove(holder, MemoryPool::size_of_class(size_class));
  caches_[kind].stats.in_use -= MemoryPool::size_of_class(size_class);
  keep(kind, size_class, block);
}

void DevicePool::deallocate_after(void* block, std::size_t bytes, Stream* stream, const void* op,
                                  Holder holder) noexcept {
  const int size_class = MemoryPool::class_of(bytes);
  const std::size_t size = MemoryPool::size_of_class(size_class);
  std::lock_guard lock(mutex_);
  PoolStats& stats = caches_[device_memory].stats;
  holders_.remove(holder, size);
  stats.in_use -= size;
  try {
    early_.push_back({block, size_class, stream, op});
    stats.cached += size;
  } catch (const std::bad_alloc&) {
    unmake(device_memory, block, size, stream);
  }
}

void DevicePool::over(const void* op) noexcept {
  std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < early_.size();) {
    const Early e = early_[i];
    if (e.op != op) {
      ++i;
      continue;
    }
    early_.erase(early_.begin() + static_cast<std::ptrdiff_t>(i));
    caches_[device_memory].stats.cached -= MemoryPool::size_of_class(e.size_class);
    keep(device_memory, e.size_class, e.memory);
  }
}

void DevicePool::keep(Kind kind, int size_class, void* block) noexcept {
  const std::size_t size = MemoryPool::size_of_class(size_class);
  try {
    caches_[kind].free[static_cast<std::size_t>(size_class)].push_back(block);
    caches_[kind].stats.cached += size;
  } catch (const std::bad_alloc&) {
    unmake(kind, block, size, nullptr);
  }
}

void* DevicePool::make(Kind kind, std::size_t size, Stream* stream) noexcept {
  return kind == pinned_memory ? provider_->allocate_pinned(size) : provider_->allocate(device_.index, size, stream);
}

void DevicePool::unmake(Kind kind, void* block, std::size_t size, Stream* stream) noexcept {
  if (kind == pinned_memory) {
    provider_->free_pinned(block, size);
  } else {
    provider_->free(device_.index, block, size, stream);
  }
}

std::size_t DevicePool::trim_locked() noexcept {
  std::size_t freed = 0;
  for (const Kind kind : {device_memory, pinned_memory}) {
    Cache& cache = caches_[kind];
    for (std::size_t c = 0; c < cache.free.size(); ++c) {
      const std::size_t size = MemoryPool::size_of_class(static_cast<int>(c));
      for (void* const block : cache.free[c]) {
        if (observer_) observer_->block_reused(block);
        unmake(kind, block, size, nullptr);
        freed += size;
        cache.stats.cached -= size;
      }
      cache.free[c].clear();
    }
  }
  // What an issued op uses goes back behind it, in its stream.
  for (const Early& e : early_) {
    const std::size_t size = MemoryPool::size_of_class(e.size_class);
    unmake(device_memory, e.memory, size, e.stream);
    freed += size;
    caches_[device_memory].stats.cached -= size;
  }
  early_.clear();
  return freed;
}

std::size_t DevicePool::trim() noexcept {
  std::lock_guard lock(mutex_);
  return trim_locked();
}

PoolStats DevicePool::stats(Kind kind) const {
  std::lock_guard lock(mutex_);
  return caches_[kind].stats;
}

void DevicePool::reset_peak(Kind kind) {
  std::lock_guard lock(mutex_);
  caches_[kind].stats.peak = caches_[kind].stats.in_use;
}

std::string DevicePool::holders() const {
  std::lock_guard lock(mutex_);
  return holders_.in_words(caches_[device_memory].stats.in_use);
}

void DevicePool::fail(Kind kind, std::size_t bytes) const {
  try {
    if (const std::exception_ptr why = provider_->lost(device_.index)) std::rethrow_exception(why);
  } catch (const std::exception& e) {
    throw std::runtime_error(to_string(device_) + " was lost: " + e.what());
  }
  const PoolStats now = stats(kind);
  throw OutOfMemory(to_string(device_) + " has no " + bytes_in_words(bytes) +
                    (kind == pinned_memory ? " of pinned host memory left: " : " left: ") + bytes_in_words(now.in_use) +
                    " of it are in use, " + bytes_in_words(now.cached) + " cached" +
                    (kind == device_memory ? holders() : ""));
}

DevicePool& device_pool(Engine& engine, Device device) {
  const auto make = [&] { return std::make_shared<DevicePool>(engine.provider(device), device); };
  return *static_cast<DevicePool*>(engine.keep(device, make));
}

std::string memory_summary(Engine& engine, Device device) {
  const auto sentence = [](const PoolStats& stats) {
    return bytes_in_words(stats.in_use) + " in use, at most " + bytes_in_words(stats.peak) + " so far, " +
           bytes_in_words(stats.cached) + " cached";
  };
  const std::string head = to_string(device) + ": ";
  if (device.kind == DeviceKind::cpu) {
    if (device.index >= engine.device_count()) throw UsageError("no device " + to_string(device) + " in this engine");
    return head + sentence(memory_pool(device).stats());
  }
  const DevicePool& pool = device_pool(engine, device);
  return head + sentence(pool.stats()) + "; pinned host memory: " + sentence(pool.stats(DevicePool::pinned_memory)) +
         pool.holders();
}

}  // namespace sluice
