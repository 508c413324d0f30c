// DevicePool: blocks of a device's memory, and of host memory that its streams copy to and from, kept for the next op.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/engine/order_observer.h"
#include "sluice/resources/block_uses.h"
#include "sluice/resources/memory_holders.h"
#include "sluice/resources/memory_pool.h"

namespace sluice {

/// The blocks of one device of an engine. It lives as long as the engine, or as the last block that is in use.
///
/// A block comes back when the last op that uses it has been issued, or later, and with it up to which point of which
/// stream it is used (BlockUses). If only one stream still uses it, ops that are issued to that stream get it at once,
/// because they come after the use on the device. Others get it when the host knows that the uses are over. Where there
/// is no such block, and a new one would give the pool more than was ever in use and an eighth of that, or 16 MiB
/// (spare()), whichever is more, they get one that is still used: their stream waits on the device for the uses. It is
/// the one that came back first. Else, and where streams cannot wait for each other, the device is asked for memory.
///
/// Thread-safe. Never waits for an op; may block while the device makes memory.
class DevicePool : public std::enable_shared_from_this<DevicePool> {
 public:
  enum Kind : std::uint8_t { device_memory, pinned_memory };
  /// Whose a block of the device's memory is: an op's name and layer.
  using Holder = MemoryHolders::Holder;

  DevicePool(std::shared_ptr<Provider> provider, Device device);
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  /// A block of at least `bytes` bytes (0 gives a block too), aligned as the device says, not cleared. `context`: of
  /// the body that calls, on a lane with a stream; work that it issues from here on, and later work of the stream, may
  /// use the block. Without one, anyone may. When the device has no memory left, takes blocks for which the stream has
  /// to wait, then gives the device what is cached and tries once more. Returns null if there is still none. The host
  /// may use pinned memory at once. `holder`: the op whose body the calling thread is in is noted as the one that holds
  /// the block, until the block is given back with this number.
  void* allocate(Kind kind, std::size_t bytes, Context* context, Holder* holder = nullptr) noexcept;
  /// Takes back a block, with the size that it was asked for. `uses`: what streams may still do with it; the host is
  /// done with it.
  void deallocate(Kind kind, void* block, std::size_t bytes, Holder holder = 0, BlockUses uses = {}) noexcept;
  /// Gives a block of the device's memory, that allocate() has just returned to this body and nobody has used, back to
  /// the device.
  void discard(void* block, std::size_t bytes, Context* context, Holder holder) noexcept;
  /// What uses of a stream refer to; the same for each call with the stream. Throws std::bad_alloc.
  std::shared_ptr<StreamProgress> progress(Stream& stream, Device device);
  /// How much more than was ever in use at once (since reset_peak) the pool asks its device for before it makes a
  /// stream wait for another one: an eighth of that, or so many bytes. At first 16 MiB.
  void spare(std::size_t bytes) noexcept;

  /// Gives the cached blocks back to the device; returns their bytes.
  std::size_t trim() noexcept;
  /// Counts of the device's memory, or of pinned memory. Blocks that came back while streams use them count as cached.
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
  /// A block that came back, and that streams may still use.
  struct Waiting {
    void* memory = nullptr;
    BlockUses uses;
  };
  struct Class {
    std::vector<void*> free;
    std::vector<Waiting> waiting;  ///< in the order in which they came
    std::size_t made = 0;          ///< blocks; both lists have room for so many
  };
  struct Cache {
    std::array<Class, MemoryPool::kClasses> classes;
    PoolStats stats;
  };

  void* take(Kind kind, int size_class, Context* context, std::unique_lock<std::mutex>& lock) noexcept;
  void* take_own(Class& blocks, const Stream* stream) noexcept;
  void* take_free(Class& blocks) noexcept;
  void* take_after(Class& blocks, Context& context, std::unique_lock<std::mutex>& lock) noexcept;
  bool may_grow(std::size_t size) const noexcept;
  void* make(Kind kind, int size_class, Stream* stream) noexcept;
  void unmake(Kind kind, void* block, std::size_t size, Stream* stream) noexcept;
  std::size_t trim_locked() noexcept;

  const std::shared_ptr<Provider> provider_;
  const Device device_;
  OrderObserver* const observer_;
  mutable std::mutex mutex_;
  std::array<Cache, 2> caches_;
  std::size_t spare_ = std::size_t{16} << 20;
  std::vector<std::shared_ptr<StreamProgress>> streams_;
  MemoryHolders holders_;
};

/// The pool of an engine's device that has streams. Throws UsageError where the engine has no such device.
DevicePool& device_pool(Engine& engine, Device device);

}  // namespace sluice
