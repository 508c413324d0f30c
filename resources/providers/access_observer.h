// What may be told of every access to the memory of simulated devices.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "sluice/engine/provider.h"

namespace sluice {

/// Simulated devices tell it, in the order of each stream's commands, what their streams record, wait for and touch
/// (SimOptions::observer); resources/testing/order_record.h is one. Thread-safe; the functions of one stream are called
/// one after the other.
class AccessObserver {
 public:
  using Stream = std::uint32_t;
  /// Whose an access is.
  struct Caller {
    DeviceOp op;
    OpLabel label;
  };
  using Points = std::span<const std::pair<Stream, std::uint64_t>>;

  virtual ~AccessObserver() = default;

  /// A stream by its name in reports. `reached`: its last point that is passed; lives until remove(). `lost`: says
  /// whether its device is lost; a lost device touches nothing any more.
  virtual Stream add(std::string name, const std::atomic<std::uint64_t>* reached, std::function<bool()> lost = {}) = 0;
  /// The stream is gone and all its work is over: everything comes after that.
  virtual void remove(Stream stream) noexcept = 0;

  virtual void recorded(Stream stream, std::uint64_t point) noexcept = 0;
  virtual void waits(Stream stream, Stream other, std::uint64_t point) noexcept = 0;
  /// OrderObserver::stream_after. A point that is not passed is a mistake of the caller.
  virtual void ordered_after(Stream stream, Stream other, std::uint64_t point, const Caller& caller) noexcept = 0;
  virtual void touches(Stream stream, std::span<const MemoryUse> uses, const Caller& caller) noexcept = 0;

  /// A block that the stream may use, and others after it.
  virtual void allocated(Stream stream, const void* block, std::size_t bytes, const Caller& caller) noexcept = 0;
  /// A block that anyone may use.
  virtual void allocated(const void* block, std::size_t bytes) noexcept = 0;
  virtual void freed(Stream stream, const void* block, const Caller& caller) noexcept = 0;
  /// A free at once: what was done with the block must be over.
  virtual void freed(const void* block, const Caller& caller) noexcept = 0;

  /// OrderObserver's, for the calling thread.
  virtual void host_after(Points passed, bool afresh) noexcept = 0;
  virtual void host_returns() noexcept = 0;
  virtual void host_touches(std::span<const MemoryUse> uses, const Caller& caller) noexcept = 0;
  virtual void block_reused(const void* block) noexcept = 0;

  /// A kernel touches memory that its launch did not name.
  virtual void undeclared(const Caller& caller) noexcept = 0;
  /// There was no memory to say something: from here on not everything is known.
  virtual void forget() noexcept = 0;
};

/// Makes an observer that calls `report` with a line for each mistake that it finds.
using AccessObserverFactory = std::unique_ptr<AccessObserver> (*)(std::function<void(std::string)> report);

}  // namespace sluice
