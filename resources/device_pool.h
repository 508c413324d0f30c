// DevicePool: blocks of a device's memory, and of host memory that its streams copy to and from, kept for the next op.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/engine/order_observer.h"
#include "sluice/resources/memory_holders.h"
#include "sluice/resources/memory_pool.h"

namespace sluice {

/// The blocks of one device of an engine. It lives as long as the engine, or as the last block that is in use.
///
/// A block goes back when it is not used any more. The closure of an op holds the blocks that the op uses, and is
/// destroyed when the device is over with the op. Blocks that only the op itself uses (packed operands, scratch) may go
/// back earlier, when the op is issued: the next op of the same stream comes after it on the device and gets such a
/// block at once; other streams get it when the op is over. Thread-safe. Never waits for an op; may block while the
/// device makes memory.
class DevicePool : public std::enable_shared_from_this<DevicePool> {
 public:
  enum Kind : std::uint8_t { device_memory, pinned_memory };
  /// Whose a block of the device's memory is: an op's name and layer.
  using Holder = MemoryHolders::Holder;

  DevicePool(std::shared_ptr<Provider> provider, Device device);
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  /// A block of at least `bytes` bytes (0 gives a block too), aligned as the device says, not cleared. Work that is
  /// issued to the stream from here on may use it; without a stream, anyone. When the device has no memory left, gives
  /// it the cached blocks and tries once more. Returns null if there is still none. The host may use pinned memory at
  /// once. `holder`: the op whose body the calling thread is in is noted as the one that holds the block, until the
  /// block is given back with this number.
  void* allocate(Kind kind, std::size_t bytes, Stream* stream, Holder* holder = nullptr) noexcept;
  /// Takes back a block that is not used any more, with the size that it was asked for.
  void deallocate(Kind kind, void* block, std::size_t bytes, Holder holder = 0) noexcept;
  /// Takes back a block of the device's memory that is used by one op only, which has been issued to this stream. `op`
  /// names the op until over() is called.
  void deallocate_after(void* block, std::size_t bytes, Stream* stream, const void* op, Holder holder = 0) noexcept;
  /// Called when the device is over with an op.
  void over(const void* op) noexcept;

  /// Gives the cached blocks back to the device; returns their bytes.
  std::size_t trim() noexcept;
  /// Counts of the device's memory, or of pinned memory. Blocks that went back early count as cached.
  PoolStats stats(Kind kind = device_memory) const;
  void reset_peak(Kind kind = device_memory);
  /// Who holds the device's memory that is in use, as MemoryHolders says it.
  std::string holders() const;
  /// Throws OutOfMemory; where the device is lost, a std::runtime_error that says so.
  [[noreturn]] void fail(Kind kind, std::size_t bytes) const;

  Provider& provider() const { return *provider_; }
  Device device() const { return device_; }
  /// Who is told of the order of accesses; else null.
  OrderObserver* observer() const { return observer_; }

 private:
  struct Early {
    void* memory;
    int size_class;
    Stream* stream;
    const void* op;
  };
  struct Cache {
    std::array<std::vector<void*>, MemoryPool::kClasses> free;
    PoolStats stats;
  };

  void* take(Kind kind, int size_class, Stream* stream) noexcept;
  void* make(Kind kind, std::size_t size, Stream* stream) noexcept;
  void unmake(Kind kind, void* block, std::size_t size, Stream* stream) noexcept;
  void keep(Kind kind, int size_class, void* block) noexcept;
  std::size_t trim_locked() noexcept;

  const std::shared_ptr<Provider> provider_;
  const Device device_;
  OrderObserver* const observer_;
  mutable std::mutex mutex_;
  std::array<Cache, 2> caches_;
  MemoryHolders holders_;
  std::deque<Early> early_;  ///< in the order in which they came
};

/// The pool of an engine's device that has streams. Throws UsageError where the engine has no such device.
DevicePool& device_pool(Engine& engine, Device device);

}  // namespace sluice
