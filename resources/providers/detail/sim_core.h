// What the streams of a simulated provider share. It lives until the last of their threads has ended.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sluice/resources/providers/access_observer.h"
#include "sluice/resources/providers/detail/sim_memory.h"
#include "sluice/resources/providers/sim.h"

namespace sluice::detail {

/// A device's error ring: a counter that only grows, and the last reports.
class SimErrorRing {
 public:
  static constexpr std::uint64_t kEntries = 256;
  void add(LateError error) noexcept;
  std::uint64_t count() const noexcept { return count_.load(std::memory_order_acquire); }
  std::vector<LateError> from(std::uint64_t number) const;

 private:
  mutable std::mutex mutex_;
  std::array<LateError, kEntries> entries_;
  std::atomic<std::uint64_t> count_{0};
};

struct SimDevice {
  explicit SimDevice(const SimMemory::Options& options) : memory(options) {}
  SimMemory memory;
  SimErrorRing errors;
  std::atomic<int> running{0};  ///< kernels and copies that run, or look whether they may
};

struct SimCore {
  SimCore(int count, const SimOptions& given);

  const SimOptions options;
  const std::shared_ptr<SimControl> control;  ///< never null
  const std::uint64_t number;                 ///< no other core has it
  std::vector<std::unique_ptr<SimDevice>> devices;
  std::unique_ptr<AccessObserver> observer;  ///< may be null
  std::atomic<std::uint64_t> streams{0};     ///< made so far

  /// The device whose memory the address is of, or -1.
  int owner(const void* address) const;
  /// Where a copy finds what an address names: memory of a device by its other mapping, memory of the host as it is.
  /// Throws UsageError, and reports, for a range that is not inside of one live block.
  void* reach(const void* address, std::size_t bytes, bool at_once);
  void* allocate_pinned(std::size_t bytes) noexcept;
  void free_pinned(void* block) noexcept;

  void end_free(int device, void* block, std::uint64_t ticket) noexcept;
  /// The device of the calling thread.
  void enter(int device) noexcept;
  /// Throws where the thread has entered another one.
  void check_entered(int device);
  AccessObserver::Caller caller() const { return {options.op(), options.label()}; }
  /// Reports it, with the op, and throws UsageError.
  [[noreturn]] void misuse(const OpLabel& label, const std::string& what);

  // ---- progress
  std::atomic<std::uint64_t> progress{0};
  /// Something was passed, or failed, or is lost: those who wait look again.
  void advance() noexcept;
  /// Waits until the condition is true. advance() follows upon everything that can make it so.
  template <class Condition>
  void await(Condition condition);
  template <class Condition>
  void await(std::chrono::nanoseconds limit, Condition condition);
  void report_error(int device, LateError error) noexcept;
  /// The device's end, as a report of no op.
  void note_loss(int device, std::exception_ptr why) noexcept {
    const auto at = static_cast<std::size_t>(device);
    if (at < devices.size()) devices[at]->errors.add({{}, std::move(why), false});
  }

 private:
  bool is_pinned(const void* address, std::size_t bytes);

  std::mutex pinned_mutex_;
  std::map<const std::byte*, std::size_t, std::less<>> pinned_;  ///< blocks and their bytes

  std::atomic<int> waiting_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// A limit that clocks can add to their now.
inline std::chrono::nanoseconds sensible(std::chrono::nanoseconds limit) {
  return std::min<std::chrono::nanoseconds>(limit, std::chrono::hours(1));
}

template <class Condition>
void SimCore::await(Condition condition) {
  std::unique_lock lock(mutex_);
  waiting_.fetch_add(1);
  changed_.wait(lock, condition);
  waiting_.fetch_sub(1);
}

template <class Condition>
void SimCore::await(std::chrono::nanoseconds limit, Condition condition) {
  std::unique_lock lock(mutex_);
  waiting_.fetch_add(1);
  changed_.wait_for(lock, sensible(limit), condition);
  waiting_.fetch_sub(1);
}

}  // namespace sluice::detail
