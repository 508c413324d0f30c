// Errors that a kernel finds: entries of a ring in pinned memory. The words are the host's.
#pragma once

#include <cstdint>

namespace sluice::cuda {

/// What a kernel may find.
enum class Finding : std::uint32_t {
  label_outside,         ///< the label a of row c is not in [0, b)
  index_outside,         ///< the index a, element c, is not in [0, b)
  signed_index_outside,  ///< the same of [-b, b)
  probability_outside,   ///< a probability, element c, is not in [0, 1]: a holds the bits of its double
  device_had_error,      ///< the gate of an optimiser's step: a device had found an error before
  gate_shut,             ///< an optimiser's step behind a gate that is shut
};

struct KernelError {
  std::uint64_t op = 0;
  std::uint32_t part = 0;
  Finding finding = Finding::label_outside;
  std::int64_t a = 0, b = 0, c = 0;
  std::uint32_t wrote_nothing = 0;
  std::uint32_t lap = 0;  ///< written last: the entry's number / kEntries + 1
};

/// One for each device. Kernels write it, the host reads it.
struct KernelErrors {
  static constexpr std::uint32_t kEntries = 256;
  unsigned long long taken = 0;  ///< how many entries kernels began to write
  unsigned long long count = 0;  ///< how many they have written
  unsigned long long lost = 0;   ///< written by the host: 1 if the device is lost
  /// The number of the Reporter that an entry was written for last. An op needs one entry, and each costs several
  /// writes to the host, so a kernel looks here before it writes another.
  unsigned long long reporter = 0;
  KernelError entries[kEntries];
};

/// What a kernel that may find an error is given.
struct Reporter {
  KernelErrors* errors = nullptr;
  unsigned long long number = 0;  ///< no other of the device has it; the first is 1
  std::uint64_t op = 0;
  std::uint32_t part = 0;

  template <class F>
  void each_pointer(F f) {
    f(errors);
  }
};

}  // namespace sluice::cuda
