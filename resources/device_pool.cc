#include "sluice/resources/device_pool.h"
#include "sluice/engine/bytes_in_words.h"
#include "sluice/resources/memory_summary.h"

#include <algorithm>
#include <stdexcept>

namespace sluice {
DevicePool::DevicePool(std::shared_ptr<Provider> provider, Device device)
    : provider_(std::move(provider)), device_(device), wants_order_(provider_->wants_order()) {}

DevicePool::~DevicePool() {
  // The engine is gone, and its streams with it: all is over.
  streams_.clear();
  for (Early& e : early_) e.stream = nullptr;
  trim_locked();
}

void* DevicePool::allocate(Kind kind, std::size_t bytes, Stream* stream, Users& before, Holder* holder) noexcept {
  before = 0;
  if (holder) *holder = 0;
  const int size_class = MemoryPool::class_of(bytes);
  if (size_class >= MemoryPool::kClasses) return nullptr;
  const char* const name = holder && kind == device_memory ? current_op_label().name : nullptr;
  const char* const layer = name ? current_op_layer() : "";
  std::lock_guard lock(mutex_);
  void* const block = take(kind, size_class, stream, before);
  if (block && name) {
    *holder = holders_.find(name, layer);
    holders_.add(*holder, MemoryPool::size_of_class(size_class));
  }
  return block;
}

/// Calls it for each of these streams.
template <class F>
void DevicePool::for_each(Users users, F f) noexcept {
  for (std::size_t i = 0; users != 0 && i < streams_.size(); ++i, users >>= 1) {
    if (users & 1) f(streams_[i]);
  }
}

/// A block of the cache, or a new one. With the mutex held, so that one thread's trim helps it and no other.
void* DevicePool::take(Kind kind, int size_class, Stream* stream, Users& before) noexcept {
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
    block = list.back().memory;
    before = list.back().users;
    list.pop_back();
    // A stream is told by order(); the host, of which anyone may come to use the block, in this way.
    if (kind == pinned_memory) {
      for_each(before, [&](Stream* other) {
        const StreamEvent passed{other, other->reached()};
        provider_->host_reuses(block, {&passed, 1});
      });
    }
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

void DevicePool::deallocate(Kind kind, void* block, std::size_t bytes, Users users, Holder holder) noexcept {
  const int size_class = MemoryPool::class_of(bytes);
  std::lock_guard lock(mutex_);
  holders_.remove(holder, MemoryPool::size_of_class(size_class));
  caches_[kind].stats.in_use -= MemoryPool::size_of_class(size_class);
  keep(kind, size_class, {block, users});
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
    keep(device_memory, e.size_class, {e.memory, bit_of_locked(e.stream)});
  }
}

void DevicePool::keep(Kind kind, int size_class, Block block) noexcept {
  const std::size_t size = MemoryPool::size_of_class(size_class);
  try {
    caches_[kind].free[static_cast<std::size_t>(size_class)].push_back(block);
    caches_[kind].stats.cached += size;
  } catch (const std::bad_alloc&) {
    unmake(kind, block.memory, size, nullptr);
  }
}

void DevicePool::order(Users users, Stream* stream) noexcept {
  if (users == 0) return;
  std::lock_guard lock(mutex_);
  for_each(users, [&](Stream* other) {
    if (other == stream) return;
    const StreamEvent passed{other, other->reached()};
    stream->ordered_after({&passed, 1});
  });
}

DevicePool::Users DevicePool::bit_of(Stream* stream) noexcept {
  if (!wants_order_) return 0;
  std::lock_guard lock(mutex_);
  return bit_of_locked(stream);
}

DevicePool::Users DevicePool::bit_of_locked(Stream* stream) noexcept {
  const auto at = std::find(streams_.begin(), streams_.end(), stream);
  const auto bit = static_cast<std::size_t>(at - streams_.begin());
  if (!wants_order_ || bit == 8 * sizeof(Users)) return 0;
  if (at == streams_.end()) try {
      streams_.push_back(stream);
    } catch (const std::bad_alloc&) {
      return 0;
    }
  return Users{1} << bit;
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
      for (const Block& block : cache.free[c]) {
        for_each(block.users, [&](Stream* other) {
          const StreamEvent passed{other, other->reached()};
          provider_->host_reuses(block.memory, {&passed, 1});
        });
        unmake(kind, block.memory, size, nullptr);
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
