// Providers: what the engine, and the memory pools above it, ask of a kind of device. docs/devices.md tells how one is
// written.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <source_location>
#include <span>
#include <vector>

#include "sluice/engine/device.h"
#include "sluice/engine/stream.h"

namespace sluice {

/// Names an op to its device, so that a kernel can say whose it is. `part`: of a replay, which captured op, from 1 on.
struct DeviceOp {
  std::uint64_t id = 0;  ///< Ticket::id
  std::uint32_t part = 0;
  friend bool operator==(const DeviceOp&, const DeviceOp&) = default;
};

/// The op whose body the calling thread is in; {0, 0} outside of bodies.
DeviceOp current_device_op() noexcept;

/// An op in words, for reports.
struct OpLabel {
  const char* name = nullptr;    ///< null: none
  std::source_location where{};  ///< its push
};

/// Of the op whose body the calling thread is in; without a name outside of bodies.
OpLabel current_op_label() noexcept;

/// What a kernel reported, after its op was issued.
struct LateError {
  DeviceOp op;
  std::exception_ptr what;
  bool wrote_nothing = false;  ///< the op's outputs are as they were
};

/// What a device can do.
struct DeviceLimits {
  std::size_t memory = 0;             ///< bytes; 0: not known
  std::size_t alignment = 64;         ///< of every block
  std::size_t threads_per_block = 0;  ///< as the next two; 0: no limit
  std::size_t shared_memory = 0;      ///< bytes for each block
  std::size_t parameter_bytes = 0;    ///< of one kernel's arguments
  int unconfirmed = 512;              ///< ops that a lane may have issued and not seen confirmed
};

/// What a kernel wants of a device.
struct KernelNeeds {
  std::size_t threads_per_block = 0, shared_memory = 0, parameter_bytes = 0;
};

/// One kind of device, for one engine. Thread-safe. It outlives its streams, and everything that holds its memory.
class Provider {
 public:
  virtual ~Provider() = default;
  virtual DeviceKind kind() const = 0;
  virtual int devices() const = 0;

  // ---- lanes
  /// The stream of a device's lane; null where its ops are over when their bodies return (CPU devices).
  virtual std::unique_ptr<Stream> make_stream(int device, LaneKind lane) = 0;
  /// Makes the device current on the calling thread, before it runs bodies of one of the device's lanes.
  virtual void enter(int /*device*/) noexcept {}

  // ---- progress: for the engine's one watcher
  /// Rises whenever a stream of this provider has passed a recorded point, and whenever an error or a loss is known.
  virtual std::uint64_t progress() const noexcept = 0;
  /// Blocks until progress() is not `seen` any more, or the time is over, or earlier. Called only while something is in
  /// flight.
  virtual void await_progress(std::uint64_t seen, std::chrono::nanoseconds limit) noexcept = 0;

  // ---- the order of accesses, for a record of them (resources/providers/order_record.h)
  /// Whether there is a record. Asked once; where there is none, the functions for it are not called.
  virtual bool wants_order() const noexcept { return false; }
  /// What the calling thread does from here on is after these points, which it knows to be passed. `afresh`: and after
  /// no others that it was told of before: a body begins.
  virtual void host_after(std::span<const StreamEvent> /*passed*/, bool /*afresh*/) noexcept {}
  /// The calling thread reads or writes memory that streams use as well (pinned buffers), now.
  virtual void host_touches(std::span<const MemoryUse> /*uses*/) noexcept {}

  // ---- errors that a device finds late (SEMANTICS.md, 16)
  /// How many errors the device's kernels have reported. Only grows. An error is counted before its op's point is seen
  /// as reached. The device's end counts as one more, before what other devices' streams have behind it goes on: a gate
  /// (nn/optimizer.h) is shut by it.
  virtual std::uint64_t errors(int /*device*/) const noexcept { return 0; }
  /// The reports from number `from` on, in their order. Fewer than errors() says where the device's ring has lost some:
  /// then any unconfirmed op may have failed. May throw std::bad_alloc.
  virtual std::vector<LateError> late_errors(int /*device*/, std::uint64_t /*from*/) { return {}; }
  /// The device's end: null while it lives; else why it will never answer again.
  virtual std::exception_ptr lost(int /*device*/) const noexcept { return nullptr; }
  /// The engine takes the device for lost, because it has not answered for so long (EngineOptions::device_limit): what
  /// its streams have is not to begin any more, for what it uses goes.
  virtual void give_up(int /*device*/) noexcept {}

  // ---- memory, for the pools (resources/memory_pool.h)
  virtual DeviceLimits limits(int /*device*/) const { return {}; }
  virtual bool fits(int device, const KernelNeeds& needs) const;
  /// Memory of the device, aligned as limits() says, to be used on `stream` from here on (null: at once, by anyone).
  /// Null where there is none. May block.
  virtual void* allocate(int device, std::size_t bytes, Stream* stream) noexcept = 0;
  /// Takes a block back; with a stream, after what was issued there before.
  virtual void free(int device, void* block, std::size_t bytes, Stream* stream) noexcept = 0;
  /// Memory of the host that streams copy from and to without staging, aligned to 64 bytes. Null where there is none.
  virtual void* allocate_pinned(std::size_t bytes) noexcept {
    return ::operator new (bytes, std::align_val_t{64}, std::nothrow);
  }
  virtual void free_pinned(void* block, std::size_t /*bytes*/) noexcept {
    ::operator delete (block, std::align_val_t{64});
  }
  /// Copies between memory of this provider's devices, and between it and host memory, in the stream's order. `to` and
  /// `from` do not overlap, and live until the stream has passed it. With no stream: before it returns. May throw.
  virtual void copy(void* to, const void* from, std::size_t bytes, Stream* stream) = 0;
  /// Sets all bytes, in the stream's order.
  virtual void fill(void* to, std::byte value, std::size_t bytes, Stream* stream) = 0;
};

/// Makes an engine's provider: EngineOptions::providers.
using ProviderFactory = std::function<std::shared_ptr<Provider>()>;

namespace detail {
/// The CPU devices of an engine.
std::shared_ptr<Provider> make_cpu_provider(int devices);
}  // namespace detail

}  // namespace sluice
