#include "sluice/resources/device_pool.h"
#include "sluice/engine/bytes_in_words.h"
#include "sluice/resources/memory_summary.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>

#include "sluice/engine/detail/forks.h"

namespace sluice {
namespace {

/// Which pools were made in which process. Looked at as a first use, so that no fork falls into it.
struct Made {
  std::mutex mutex;
  std::map<const DevicePool*, std::uint32_t> in;
  static Made& get() {
    return detail::first_use([] { return new Made; });
  }
};

std::uint32_t this_process() { return detail::fork_generation.load(std::memory_order_relaxed); }

/// In a forked child a lock of the parent's may be held by a thread that is not there, and the memory is of the
/// parent's devices: what comes back to such a pool stays where it is.
bool is_of_parent(const DevicePool* pool) noexcept {
  if (this_process() == 0) return false;  // was not forked
  Made& made = Made::get();
  const detail::InFirstUse in_use;
  const std::lock_guard lock(made.mutex);
  const auto found = made.in.find(pool);
  return found == made.in.end() || found->second != this_process();
}

}  // namespace

DevicePool::DevicePool(std::shared_ptr<Provider> provider, Device device)
    : provider_(std::move(provider)), device_(device), observer_(dynamic_cast<OrderObserver*>(provider_.get())) {
  Made& made = Made::get();
  const detail::InFirstUse in_use;
  const std::lock_guard lock(made.mutex);
  made.in[this] = this_process();
}

DevicePool::~DevicePool() {
  {
    Made& made = Made::get();
    const detail::InFirstUse in_use;
    const std::lock_guard lock(made.mutex);
    made.in.erase(this);
  }
  trim_locked();  // the engine is gone, and its streams with it: all is over
}

std::shared_ptr<StreamProgress> DevicePool::progress(Stream& stream, Device device) {
  std::lock_guard lock(mutex_);
  for (const auto& known : streams_) {
    if (known->stream == &stream) return known;
  }
  return streams_.emplace_back(std::make_shared<StreamProgress>(&stream, device));
}

void DevicePool::spare(std::size_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  spare_ = bytes;
}

void* DevicePool::allocate(Kind kind, std::size_t bytes, Context* context, Holder* holder) noexcept {
  if (holder) *holder = 0;
  const int size_class = MemoryPool::class_of(bytes);
  if (size_class >= MemoryPool::kClasses) return nullptr;
  const char* const name = holder && kind == device_memory ? current_op_label().name : nullptr;
  const char* const layer = name ? current_op_layer() : "";
  std::unique_lock lock(mutex_);
  void* const block = take(kind, size_class, context, lock);
  if (!block) return nullptr;
  const std::size_t size = MemoryPool::size_of_class(size_class);
  caches_[kind].stats.out(size, bytes);
  if (name) {
    *holder = holders_.find(name, layer);
    holders_.add(*holder, size);
  }
  return block;
}

/// A block of the cache, or a new one. The mutex is held, so that one thread's trim helps it and no other; but not
/// while a stream is told to wait.
void* DevicePool::take(Kind kind, int size_class, Context* context, std::unique_lock<std::mutex>& lock) noexcept {
  const std::size_t size = MemoryPool::size_of_class(size_class);
  Cache& cache = caches_[kind];
  Class& blocks = cache.classes[static_cast<std::size_t>(size_class)];
  Stream* const stream = context ? context->stream() : nullptr;
  ++cache.stats.allocations;
  void* block = take_own(blocks, stream);
  if (!block) block = take_free(blocks);
  const bool grows = may_grow(size);
  if (!block && stream && !grows) block = take_after(blocks, *context, lock);
  if (block) {
    cache.stats.cached -= size;
    ++cache.stats.hits;
    return block;
  }
  block = make(kind, size_class, stream);
  if (!block && stream && grows) {
    block = take_after(blocks, *context, lock);
    cache.stats.cached -= block ? size : 0;
    cache.stats.hits += block ? 1 : 0;
  }
  if (!block && trim_locked() > 0) block = make(kind, size_class, stream);
  return block;
}

/// The block that came back last of those that the stream alone still uses: whatever it is issued comes after that.
void* DevicePool::take_own(Class& blocks, const Stream* stream) noexcept {
  const auto own = std::find_if(blocks.waiting.rbegin(), blocks.waiting.rend(),
                                [&](const Waiting& w) { return stream && w.uses.over_but_for(stream); });
  if (own == blocks.waiting.rend()) return nullptr;
  void* const block = own->memory;
  if (observer_ && own->uses.others_than(stream)) observer_->block_reused(block);
  blocks.waiting.erase(std::next(own).base());
  return block;
}

void* DevicePool::take_free(Class& blocks) noexcept {
  if (blocks.free.empty()) {
    const auto over =
        std::stable_partition(blocks.waiting.begin(), blocks.waiting.end(), [](Waiting& w) { return !w.uses.over(); });
    for (auto w = over; w != blocks.waiting.end(); ++w) blocks.free.push_back(w->memory);
    blocks.waiting.erase(over, blocks.waiting.end());
  }
  if (blocks.free.empty()) return nullptr;
  void* const block = blocks.free.back();
  blocks.free.pop_back();
  if (observer_) observer_->block_reused(block);
  return block;
}

/// The block that came back first, for a stream that waits for its uses on the device.
void* DevicePool::take_after(Class& blocks, Context& context, std::unique_lock<std::mutex>& lock) noexcept {
  if (blocks.waiting.empty()) return nullptr;
  Waiting first = std::move(blocks.waiting.front());
  blocks.waiting.erase(blocks.waiting.begin());
  lock.unlock();  // a stream may have to record a point, and to ask its device for that
  bool waits = true;
  try {
    first.uses.each([&](BlockUse& use) { waits = waits && (use.over() || context.wait_on_device(use.event())); });
  } catch (...) {
    waits = false;
  }
  lock.lock();
  if (waits) {
    if (observer_) observer_->block_reused(first.memory);
    return first.memory;
  }
  blocks.waiting.insert(blocks.waiting.begin(), std::move(first));  // there is room for all blocks of the class
  return nullptr;
}

/// Whether the pool may ask its device for more before streams wait for each other.
bool DevicePool::may_grow(std::size_t size) const noexcept {
  const PoolStats& now = caches_[device_memory].stats;
  return now.in_use + now.cached + size <= now.peak + std::max(now.peak / 8, spare_);
}

void DevicePool::deallocate(Kind kind, void* block, std::size_t bytes, Holder holder, BlockUses uses) noexcept {
  if (is_of_parent(this)) return;
  const int size_class = MemoryPool::class_of(bytes);
  const std::size_t size = MemoryPool::size_of_class(size_class);
  std::lock_guard lock(mutex_);
  holders_.remove(holder, size);
  PoolStats& stats = caches_[kind].stats;
  Class& blocks = caches_[kind].classes[static_cast<std::size_t>(size_class)];
  stats.back(size, bytes);
  stats.cached += size;
  if (uses.over()) {
    blocks.free.push_back(block);
  } else {
    blocks.waiting.push_back({block, std::move(uses)});
  }
}

void DevicePool::discard(void* block, std::size_t bytes, Context* context, Holder holder) noexcept {
  if (is_of_parent(this)) return;
  const int size_class = MemoryPool::class_of(bytes);
  const std::size_t size = MemoryPool::size_of_class(size_class);
  std::lock_guard lock(mutex_);
  holders_.remove(holder, size);
  caches_[device_memory].stats.back(size, bytes);
  --caches_[device_memory].classes[static_cast<std::size_t>(size_class)].made;
  unmake(device_memory, block, size, context ? context->stream() : nullptr);
}

/// With room for the block's return, so that deallocate() never allocates.
void* DevicePool::make(Kind kind, int size_class, Stream* stream) noexcept {
  const std::size_t size = MemoryPool::size_of_class(size_class);
  Class& blocks = caches_[kind].classes[static_cast<std::size_t>(size_class)];
  try {
    const std::size_t room = blocks.made + 1;
    if (blocks.free.capacity() < room) blocks.free.reserve(2 * room);
    if (blocks.waiting.capacity() < room) blocks.waiting.reserve(2 * room);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  void* const block =
      kind == pinned_memory ? provider_->allocate_pinned(size) : provider_->allocate(device_.index, size, stream);
  if (block) ++blocks.made;
  return block;
}

void DevicePool::unmake(Kind kind, void* block, std::size_t size, Stream* stream) noexcept {
  if (kind == pinned_memory) {
    provider_->free_pinned(block, size);
  } else {
    provider_->free(device_.index, block, size, stream);
  }
}

/// What one stream of the device alone still uses goes back behind that, in its order. What others use stays.
std::size_t DevicePool::trim_locked() noexcept {
  std::size_t freed = 0;
  for (const Kind kind : {device_memory, pinned_memory}) {
    Cache& cache = caches_[kind];
    for (std::size_t c = 0; c < cache.classes.size(); ++c) {
      const std::size_t size = MemoryPool::size_of_class(static_cast<int>(c));
      Class& blocks = cache.classes[c];
      const auto give_back = [&](void* block, Stream* stream) {
        unmake(kind, block, size, stream);
        freed += size;
        cache.stats.cached -= size;
        --blocks.made;
      };
      for (void* const block : blocks.free) {
        if (observer_) observer_->block_reused(block);
        give_back(block, nullptr);
      }
      blocks.free.clear();
      std::erase_if(blocks.waiting, [&](Waiting& w) {
        Stream* stream = nullptr;
        w.uses.each([&](BlockUse& use) {
          if (!use.over() && use.by->device == device_) stream = use.by->stream;
        });
        if (!w.uses.over_but_for(stream)) return false;
        if (observer_ && (!stream || w.uses.others_than(stream))) observer_->block_reused(w.memory);
        give_back(w.memory, stream);
        return true;
      });
    }
  }
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
  caches_[kind].stats.reset_peaks();
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
  // A card that was counted, and that CUDA cannot use (resources/cuda/lazy_provider.h).
  if (const std::string why = provider_->unavailable(); !why.empty()) throw UsageError(why);
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
