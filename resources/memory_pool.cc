#include "sluice/resources/memory_pool.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <limits>
#include <new>

#include "sluice/engine/bytes_in_words.h"
#include "sluice/engine/detail/forks.h"
#include "sluice/engine/errors.h"

namespace sluice {

void PoolStats::out(std::size_t size, std::size_t bytes) noexcept {
  in_use += size;
  asked += bytes;
  peak = std::max(peak, in_use);
  peak_asked = std::max(peak_asked, asked);
  peak_held = std::max(peak_held, in_use + cached);
}

void PoolStats::back(std::size_t size, std::size_t bytes) noexcept {
  in_use -= size;
  asked -= bytes;
}

void PoolStats::reset_peaks() noexcept {
  peak = in_use;
  peak_asked = asked;
  peak_held = in_use + cached;
}

// Class 4 e + q holds blocks of (4 + q) * 2^(e + 4) bytes: 64, 80, 96, 112, 128, 160, ... rounded up to the alignment,
// so the first few classes share a size.
std::size_t MemoryPool::size_of_class(int index) {
  const std::size_t size = static_cast<std::size_t>(4 + index % 4) << (index / 4 + 4);
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

int MemoryPool::class_of(std::size_t bytes) {
  if (bytes <= kAlignment) return 0;
  const int exponent = std::bit_width(bytes - 1) - 1;  // 2^exponent < bytes <= 2^(exponent + 1)
  const std::size_t quarter = std::size_t{1} << (exponent - 2);
  const auto steps = static_cast<int>((bytes + quarter - 1) / quarter);  // 5 to 8
  return steps == 8 ? 4 * (exponent - 5) : 4 * (exponent - 6) + steps - 4;
}

std::size_t MemoryPool::class_size(std::size_t bytes) {
  const int index = class_of(bytes);
  return index < kClasses ? size_of_class(index) : bytes;
}

std::size_t host_memory_bytes() noexcept {
  return detail::first_use([] {
    static constinit std::size_t bytes = std::numeric_limits<std::size_t>::max();
    struct sysinfo info = {};
    if (::sysinfo(&info) == 0) bytes = (static_cast<std::size_t>(info.totalram) + info.totalswap) * info.mem_unit;
    return &bytes;
  });
}

void* MemoryPool::system_allocate(std::size_t size) noexcept {
  // The system may promise more than there is, and end the process that uses it.
  if (size > host_memory_bytes()) return nullptr;
  if (limit_ != 0 && stats_.in_use + stats_.cached + size > limit_) return nullptr;
  return ::operator new (size, std::align_val_t{kAlignment}, std::nothrow);
}

void* MemoryPool::allocate(std::size_t bytes) {
  const int index = class_of(bytes);
  std::lock_guard lock(mutex_);
  if (index >= kClasses) fail(bytes);
  const std::size_t size = size_of_class(index);
  ++stats_.allocations;
  void* block = nullptr;
  auto& list = free_[static_cast<std::size_t>(index)];
  if (!list.empty()) {
    block = list.back();
    list.pop_back();
    stats_.cached -= size;
    ++stats_.hits;
  } else {
    // Room for the block's return, so that deallocate never allocates.
    if (list.capacity() == list.size()) list.reserve(2 * list.size() + 8);
    block = system_allocate(size);
    if (!block) {
      trim_locked();
      block = system_allocate(size);
    }
    if (!block) fail(bytes);
  }
  stats_.out(size, bytes);
  return block;
}

/// Under the lock.
void MemoryPool::fail(std::size_t bytes) const {
  throw OutOfMemory("the host has no " + bytes_in_words(bytes) + " left: " + bytes_in_words(stats_.in_use) +
                    " are in use, " + bytes_in_words(stats_.cached) + " cached" +
                    (limit_ != 0 ? ", and the limit is " + bytes_in_words(limit_) : ""));
}

void MemoryPool::deallocate(void* block, std::size_t bytes) noexcept {
  const int index = class_of(bytes);
  const std::size_t size = size_of_class(index);
  std::lock_guard lock(mutex_);
  stats_.back(size, bytes);
  try {
    free_[static_cast<std::size_t>(index)].push_back(block);
    stats_.cached += size;
  } catch (const std::bad_alloc&) {
    ::operator delete (block, std::align_val_t{kAlignment});
  }
}

std::size_t MemoryPool::trim_locked() noexcept {
  for (auto& list : free_) {
    for (void* block : list) ::operator delete (block, std::align_val_t{kAlignment});
    list.clear();
  }
  const std::size_t freed = stats_.cached;
  stats_.cached = 0;
  return freed;
}

std::size_t MemoryPool::trim() noexcept {
  std::lock_guard lock(mutex_);
  return trim_locked();
}

PoolStats MemoryPool::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void MemoryPool::reset_peak() {
  std::lock_guard lock(mutex_);
  stats_.reset_peaks();
}

void MemoryPool::set_limit(std::size_t limit) {
  std::lock_guard lock(mutex_);
  limit_ = limit;
}

/// Those of the process's CPU devices.
struct CpuPools : std::array<MemoryPool, 256> {
  /// Never destroyed: buffers may be given back while the process ends.
  static CpuPools& get() {
    return detail::first_use([] {
      auto* const made = new CpuPools;
      static constinit detail::OverFork over_forks{.take = [] { return get().take(); },
                                                   .give_back = [] { get().give_back(get().size()); }};
      detail::over_fork(over_forks);
      return made;
    });
  }
  MemoryPool& of(std::size_t device) {
    if (!is_used(device)) {
      const detail::InFirstUse in_use;  // so that no fork has begun without it
      used[device / 64].fetch_or(std::uint64_t{1} << device % 64, std::memory_order_relaxed);
    }
    return (*this)[device];
  }
  bool is_used(std::size_t device) const {
    return (used[device / 64].load(std::memory_order_relaxed) >> device % 64 & 1) != 0;
  }
  bool take() {
    for (std::size_t device = 0; device < size(); ++device) {
      if (!is_used(device) || (*this)[device].mutex_.try_lock()) continue;
      give_back(device);
      return false;
    }
    return true;
  }
  void give_back(std::size_t end) {
    while (end-- > 0)
      if (is_used(end)) (*this)[end].mutex_.unlock();
  }
  /// A fork takes these alone: it would touch a page for each of the others, and ThreadSanitizer follows 64 locks.
  std::array<std::atomic<std::uint64_t>, 4> used{};
};

MemoryPool& memory_pool(Device device) {
  if (device.kind != DeviceKind::cpu) throw UsageError(to_string(device) + " has its pool with an engine");
  if (device.index == detail::kNoDevice) throw UsageError("[memory_pool] no engine has a device " + to_string(device));
  return CpuPools::get().of(device.index);
}

}  // namespace sluice
