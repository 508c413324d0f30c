// SimControl: plants faults in simulated devices while they run, and keeps what they report.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace sluice {

namespace detail {
struct SimCore;
}

/// The exception that planted faults throw, or that they leave as a late error.
struct SimError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class SimFault : std::uint8_t {
  allocation,   ///< allocate() returns null
  launch,       ///< launch() throws SimError
  copy,         ///< copy() or fill() throws SimError
  late_kernel,  ///< the kernel does not run, and is a late error of its op
  late_copy,    ///< the copy or fill is not done, and is a late error of its op
};
inline constexpr int kSimFaults = 5;

/// Shared by a test and the devices of a provider. If several providers share one, it controls all of them.
/// Thread-safe.
class SimControl {
 public:
  // ---- faults. Calls are counted over all devices from the control's making on.
  /// Every k-th call from now on fails; with 0 none does any more.
  void fail_every(SimFault what, std::uint64_t k);
  /// The n-th call from now on fails, once; 1 is the next.
  void fail_nth(SimFault what, std::uint64_t n);
  /// How many calls there were; how many of them failed.
  std::uint64_t calls(SimFault what) const;
  std::uint64_t failures(SimFault what) const;

  /// After `kernels` more kernels the device is lost for good, when it comes to the next one.
  void lose(int device, std::uint64_t kernels = 0);
  /// After `kernels` more kernels the device stops answering, when it comes to the next one, until release().
  void silence(int device, std::uint64_t kernels = 0);
  /// Makes silent devices go on where they stopped, and cancels planned silences.
  void release();

  // ---- reports: misuse, and accesses without order
  /// All reports so far, at most the first 1,000. Each is one line.
  std::vector<std::string> reports() const;
  /// As reports(), and forgets them.
  std::vector<std::string> take_reports();
  /// Whether reports go to stderr as well, each once.
  void print_reports(bool on) { printing_.store(on); }

  // For the provider.
  enum class Condition : std::uint8_t { alive, silent, lost };
  static constexpr int kDevices = 256;
  /// Counts a call. Returns the number of the call if it is to fail, else 0.
  std::uint64_t counts(SimFault what);
  /// Counts a kernel that the device comes to.
  void come_to_kernel(int device);
  Condition condition(int device) const { return at(device).condition.load(); }
  /// Whether any device is silent or lost.
  bool broken() const { return broken_.load(); }
  std::exception_ptr loss(int device) const noexcept;
  void report(std::string line);
  void attach(const std::shared_ptr<detail::SimCore>& core);

 private:
  struct Plan {
    std::uint64_t calls = 0, failures = 0, every = 0, since = 0;
    std::vector<std::uint64_t> once;  ///< numbers of calls
  };
  struct DeviceState {
    std::atomic<Condition> condition{Condition::alive};
    std::atomic<std::uint64_t> kernels{0};
    std::uint64_t lost_from = 0, silent_from = 0;  ///< with the mutex: a number of kernels, or 0
    std::exception_ptr loss;
  };
  DeviceState& at(int device) { return devices_[static_cast<std::size_t>(device)]; }
  const DeviceState& at(int device) const { return devices_[static_cast<std::size_t>(device)]; }
  void change(int device, Condition to);
  void wake();

  mutable std::mutex mutex_;
  std::array<Plan, kSimFaults> plans_;
  std::array<DeviceState, kDevices> devices_;
  std::atomic<bool> broken_{false}, planned_{false}, printing_{true};
  std::vector<std::string> reports_;
  std::vector<std::weak_ptr<detail::SimCore>> cores_;
};

}  // namespace sluice
