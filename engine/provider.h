// Providers: what the engine, and the memory pools above it, need from a kind of device. docs/adding-a-backend.md says
// how to write one.
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
#include <string>
#include <vector>

#include "sluice/engine/device.h"
#include "sluice/engine/stream.h"

namespace sluice {

/// Names an op to its device, so that a kernel can report for it. `part` is the number, from 1 on, of the captured op
/// inside a replay.
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

/// The label of the op whose body the calling thread is in; without a name outside of bodies.
OpLabel current_op_label() noexcept;

/// The layer that this op was pushed in (LayerScope); empty: in none, or outside of bodies. The text lives as long as
/// the program. Two ops of one layer get the same address.
const char* current_op_layer() noexcept;

/// An error that a kernel reported after its op was issued.
struct LateError {
  DeviceOp op;
  std::exception_ptr what;
  bool wrote_nothing = false;  ///< the op's outputs are as they were
};

/// What a device can do.
struct DeviceLimits {
  std::size_t memory = 0;             ///< bytes; 0: not known
  std::size_t alignment = 64;         ///< of every block of memory
  std::size_t threads_per_block = 0;  ///< 0: no limit; so for the next two
  std::size_t shared_memory = 0;      ///< bytes for each block of threads
  std::size_t parameter_bytes = 0;    ///< bytes of one kernel's arguments
  int unconfirmed = 512;              ///< ops that a lane may have issued and not seen confirmed
};

/// What a kernel needs from a device.
struct KernelNeeds {
  std::size_t threads_per_block = 0, shared_memory = 0, parameter_bytes = 0;
};

/// One kind of device, for one engine. Thread-safe. It outlives its streams, and everything that holds its memory.
class Provider {
 public:
  virtual ~Provider() = default;
  virtual DeviceKind kind() const = 0;
  virtual int devices() const = 0;
  /// Why there are no devices, for the error of a push to one: "no CUDA device: ...". Empty if there is nothing to say.
  virtual std::string unavailable() const { return {}; }

  // ---- lanes
  /// A stream for the device's lane. Null for a device whose ops are over when their bodies return (CPU devices).
  virtual std::unique_ptr<Stream> make_stream(int device, LaneKind lane) = 0;
  /// Makes the device current on the calling thread, before it runs bodies of one of the device's lanes.
  virtual void enter(int /*device*/) noexcept {}

  // ---- progress: for the engine's one watcher
  /// A number that rises whenever a stream of this provider passes a recorded point, and whenever an error or a loss
  /// becomes known.
  virtual std::uint64_t progress() const noexcept = 0;
  /// Blocks until progress() is not `seen` any more or the time is over; it may return earlier. Called only while some
  /// op is in flight.
  virtual void await_progress(std::uint64_t seen, std::chrono::nanoseconds limit) noexcept = 0;

  // ---- ranges, for the tools of a device's maker that show what a thread does (NVTX)
  /// Whether the provider wants to be told of each op that is issued. The engine asks once for each lane; where it does
  /// not, the next two are not called.
  virtual bool wants_ranges() const noexcept { return false; }
  /// The calling thread issues an op of this name to one of the provider's streams, until range_ends(). Ranges nest.
  virtual void range_begins(const char* /*name*/) noexcept {}
  virtual void range_ends() noexcept {}

  // ---- errors that a device finds late (docs/semantics.md, 16)
  /// How many errors the device's kernels have reported. Only grows. An error is counted before its op's point is seen
  /// as reached. The device's end counts as one more, a report of no op, before what other devices' streams have behind
  /// it goes on: a gate (operators/optimizer_steps.h) is shut by it.
  virtual std::uint64_t errors(int /*device*/) const noexcept { return 0; }
  /// The reports from number `from` on, in their order. If the device's ring has lost some there are fewer than
  /// errors() says; then any unconfirmed op may have failed. May throw std::bad_alloc.
  virtual std::vector<LateError> late_errors(int /*device*/, std::uint64_t /*from*/) { return {}; }
  /// Null while the device works; else the reason why it will never answer again. Nothing that it was given touches
  /// memory any more by then, because the engine frees what unconfirmed ops use.
  virtual std::exception_ptr lost(int /*device*/) const noexcept { return nullptr; }
  /// The engine takes the device for lost, because it has not answered for so long (EngineOptions::device_limit). When
  /// this returns, nothing that its streams have touches memory any more, because the engine frees what those ops use.
  virtual void give_up(int /*device*/) noexcept {}

  // ---- memory, for the pools (resources/memory_pool.h)
  virtual DeviceLimits limits(int /*device*/) const { return {}; }
  virtual bool fits(int device, const KernelNeeds& needs) const {
    const DeviceLimits most = limits(device);
    const auto within = [](std::size_t wanted, std::size_t limit) { return limit == 0 || wanted <= limit; };
    return within(needs.threads_per_block, most.threads_per_block) && within(needs.shared_memory, most.shared_memory) &&
           within(needs.parameter_bytes, most.parameter_bytes);
  }
  /// A block of the device's memory, aligned as limits() says. Work that is issued to `stream` from here on may use it;
  /// without a stream, anyone may use it at once. Returns null where there is no memory. May block.
  virtual void* allocate(int device, std::size_t bytes, Stream* stream) noexcept = 0;
  /// Takes a block back; with a stream, after the work that was issued to it before.
  virtual void free(int device, void* block, std::size_t bytes, Stream* stream) noexcept = 0;
  /// Host memory that streams copy from and to without staging, aligned to 64 bytes. Null where there is none.
  virtual void* allocate_pinned(std::size_t bytes) noexcept {
    return ::operator new (bytes, std::align_val_t{64}, std::nothrow);
  }
  virtual void free_pinned(void* block, std::size_t /*bytes*/) noexcept {
    ::operator delete (block, std::align_val_t{64});
  }
  /// Copies between memory of this provider's devices, and between that and host memory, in the stream's order. `to`
  /// and `from` do not overlap, and live until the stream has passed the copy. Without a stream the copy is done when
  /// this returns. May throw.
  virtual void copy(void* to, const void* from, std::size_t bytes, Stream* stream) = 0;
  /// Sets all bytes to the value, in the stream's order; without a stream as copy() does.
  virtual void fill(void* to, std::byte value, std::size_t bytes, Stream* stream) = 0;
};

/// Makes an engine's provider: EngineOptions::providers.
using ProviderFactory = std::function<std::shared_ptr<Provider>()>;

namespace detail {
/// The CPU devices of an engine.
std::shared_ptr<Provider> make_cpu_provider(int devices);
}  // namespace detail

}  // namespace sluice
