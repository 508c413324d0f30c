// MemoryPool: blocks of device memory that come back and are handed out again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "sluice/engine/device.h"

namespace sluice {

struct PoolStats {
  std::size_t in_use = 0;         ///< bytes handed out, by size class
  std::size_t cached = 0;         ///< bytes kept for the next allocation
  std::size_t asked = 0;          ///< bytes handed out, as they were asked for
  std::size_t peak = 0;           ///< the largest in_use so far, or since reset_peak; so are the next two
  std::size_t peak_asked = 0;     ///< the largest `asked`
  std::size_t peak_held = 0;      ///< the largest in_use + cached: what the pool had of the memory
  std::uint64_t allocations = 0;  ///< calls of allocate
  std::uint64_t hits = 0;         ///< how many of them the cache served

  /// A block goes out to a user, or comes back from one: of its class's size, for so many bytes.
  void out(std::size_t size, std::size_t bytes) noexcept;
  void back(std::size_t size, std::size_t bytes) noexcept;
  void reset_peaks() noexcept;
};

/// There is no memory for what an op needs, although cached memory was given back, and on a device all work issued
/// before was over. The message says so: "the host has no 4.00 TiB left: 1.50 GiB are in use, 0 B cached". Of a device
/// further lines say the results of which ops hold the memory, largest first:
/// "sim(0) has no 1.50 GiB left: 3.90 GiB of it are in use, 0 B cached
///   2.40 GiB  conv2d in encoder.2, 12 blocks
///   1.50 GiB  relu in encoder.2, 6 blocks".
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string message) : message_(std::make_shared<std::string>(std::move(message))) {}
  const char* what() const noexcept override { return message_->c_str(); }

 private:
  std::shared_ptr<const std::string> message_;  // copies do not throw
};

/// A caching allocator over host memory. Size classes are powers of two with quarter steps, so a
/// block wastes at most a fifth. Thread-safe. Never waits for an operation.
class MemoryPool {
 public:
  static constexpr std::size_t kAlignment = 64;

  /// `limit`: the largest sum of bytes in use and cached; 0 means as much as the system gives.
  explicit MemoryPool(std::size_t limit = 0) : limit_(limit) {}
  ~MemoryPool() { trim(); }
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// A block of at least `bytes` bytes (0 gives a block too), 64-byte aligned, not cleared. When the system has none
  /// left, empties the cache and tries once more. Throws OutOfMemory.
  void* allocate(std::size_t bytes);
  /// Takes back a block with the size that it was asked for.
  void deallocate(void* block, std::size_t bytes) noexcept;

  /// Gives the cached blocks back to the system; returns their bytes.
  std::size_t trim() noexcept;
  PoolStats stats() const;
  void reset_peak();
  /// Changes the limit for allocations from now on.
  void set_limit(std::size_t limit);

  /// The size of the block that serves `bytes`.
  static std::size_t class_size(std::size_t bytes);

 public:  // for pools of other memory
  static constexpr int kClasses = 4 * 42;
  static int class_of(std::size_t bytes);  ///< kClasses or more: no pool has such blocks
  static std::size_t size_of_class(int index);

 private:
  std::size_t trim_locked() noexcept;
  [[noreturn]] void fail(std::size_t bytes) const;
  void* system_allocate(std::size_t size) noexcept;

  friend struct CpuPools;
  mutable std::mutex mutex_;
  std::array<std::vector<void*>, kClasses> free_;
  PoolStats stats_;
  std::size_t limit_;
};

/// The bytes of memory and swap that the machine has.
std::size_t host_memory_bytes() noexcept;

/// The pool of a CPU device. There is one for each in the process, made at first use and never destroyed. Throws
/// UsageError for a number out of range, and for other devices, whose pools belong to their engines (device_pool.h).
MemoryPool& memory_pool(Device device);

}  // namespace sluice
