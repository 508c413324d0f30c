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
#include "sluice/resources/memory_pool.h"

namespace sluice {

/// A device has no memory for what an op wants, not even after what was cached went back to it and what had been issued
/// was over: "sim(0) has no 1.50 GiB left: 3.90 GiB of it are in use, 0 B cached".
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string message) : message_(std::make_shared<std::string>(std::move(message))) {}
  const char* what() const noexcept override { return message_->c_str(); }

 private:
  std::shared_ptr<const std::string> message_;  // copies do not throw
};

/// The blocks of one device of an engine. It lives as long as the engine, or the last block that somebody holds.
///
/// A block goes back when nobody uses it any more: an op's closure, which holds it, goes when the device is over with
/// the op. What only the op itself uses (packed operands, scratch) may go back earlier, when the op is issued: the next
/// op of the same stream comes after it on the device, and gets it at once; other streams get it when the op is over.
/// Thread-safe. Never waits for an op; may block while the device makes memory.
class DevicePool : public std::enable_shared_from_this<DevicePool> {
 public:
  enum Kind : std::uint8_t { device_memory, pinned_memory };
  /// Which streams used a block, as bits (bit_of); for a record of accesses alone, else 0.
  using Users = std::uint64_t;

  DevicePool(std::shared_ptr<Provider> provider, Device device);
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  /// At least `bytes` bytes (0 gives a block too), aligned as the device says, not cleared, for use on the stream from
  /// here on (null: by anyone). When the device has none left, gives it what is cached and tries once more. Null where
  /// there is none. `before`: who used it before, all over; whoever uses it calls order() first.
  void* allocate(Kind kind, std::size_t bytes, Stream* stream, Users& before) noexcept;
  /// What is issued to the stream is after the last uses of a block, which are over: for a record of accesses, which
  /// does not count what merely happens to be over.
  void order(Users users, Stream* stream) noexcept;
  /// Takes back a block that nobody uses any more, with the size that it was asked for.
  void deallocate(Kind kind, void* block, std::size_t bytes, Users users) noexcept;
  /// Takes back a block of the device's memory that an op uses which has been issued to this stream, and that no other
  /// op uses. `op` names it until over() is called.
  void deallocate_after(void* block, std::size_t bytes, Stream* stream, const void* op) noexcept;
  /// The device is over with an op.
  void over(const void* op) noexcept;

  /// Gives the cached blocks back to the device; returns their bytes.
  std::size_t trim() noexcept;
  /// Of the device's memory. Blocks that went back early count as cached.
  PoolStats stats(Kind kind = device_memory) const;
  /// Throws OutOfMemory.
  [[noreturn]] void fail(Kind kind, std::size_t bytes) const;

  Provider& provider() const { return *provider_; }
  Device device() const { return device_; }
  /// Whether a record of accesses is kept.
  bool wants_order() const { return wants_order_; }
  /// A bit for the stream, which is of this engine; 0 where nobody keeps a record of accesses.
  Users bit_of(Stream* stream) noexcept;

 private:
  struct Block {
    void* memory;
    Users users;
  };
  struct Early {
    void* memory;
    int size_class;
    Stream* stream;
    const void* op;
  };
  struct Cache {
    std::array<std::vector<Block>, MemoryPool::kClasses> free;
    PoolStats stats;
  };

  void* take(Kind kind, int size_class, Stream* stream, Users& before) noexcept;
  void* make(Kind kind, std::size_t size, Stream* stream) noexcept;
  void unmake(Kind kind, void* block, std::size_t size, Stream* stream) noexcept;
  void keep(Kind kind, int size_class, Block block) noexcept;
  std::size_t trim_locked() noexcept;
  Users bit_of_locked(Stream* stream) noexcept;

  const std::shared_ptr<Provider> provider_;
  const Device device_;
  const bool wants_order_;
  mutable std::mutex mutex_;
  std::array<Cache, 2> caches_;
  std::deque<Early> early_;       ///< in the order of their coming
  std::vector<Stream*> streams_;  ///< at i: of bit i
};

/// The pool of an engine's device that has streams. Throws UsageError where the engine has no such device.
DevicePool& device_pool(Engine& engine, Device device);

}  // namespace sluice
