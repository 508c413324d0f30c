// A test's handle on the double of CUDA: how many devices there are, what goes wrong, and what was reported.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda_runtime_api.h"

namespace cuda_double {

struct Options {
  int devices = 1;
  /// Each command takes that long, and up to random_delay longer, drawn for each stream from the seed.
  std::chrono::microseconds delay{0}, random_delay{0};
  std::uint64_t seed = 1;
  /// Memory that was freed, or is new, is filled with 0xFF bytes (new blocks up to 1 MiB).
  bool poison = true;
  /// Any two accesses that nothing orders are reported.
  bool order_record = true;
  /// What each device gives at most, in bytes.
  std::size_t memory = std::size_t{16} << 30;
  /// Whether the devices reach each other's memory.
  bool links = true;
  /// What every call answers where it is not cudaSuccess: cudaErrorNoDevice, cudaErrorInsufficientDriver.
  cudaError_t driver = cudaSuccess;
  /// How many of 100 calls of cuBLASLt and cuDNN are refused as not supported, drawn from the seed.
  int refused_of_100 = 0;
  /// Whether cuBLASLt takes a bias or an activation with products of doubles.
  bool epilogues_f64 = true;
  /// The devices' compute capability: 90 is 9.0.
  int capability = 90;
  /// Whether reports go to stderr as well.
  bool print_reports = true;
};

/// Options from the environment: SLUICE_CUDA_DOUBLE_DEVICES and SLUICE_CUDA_DOUBLE_SEED. They hold until reset().
Options default_options();

/// Begins anew, with devices that nobody has used. Streams that were left are destroyed, and all handles and memory of
/// before are invalid. Not while another thread uses the double.
void reset(const Options& options = default_options());

/// From the process's exit handlers on, those that were registered later having had their turn, every call answers
/// cudaErrorCudartUnloading. To be called where the backend is loaded, as CUDA does.
void shut_down_at_exit();

/// Reports so far, one line each, at most 1,000: misuse, wrong accesses of kernels, accesses that nothing orders.
std::vector<std::string> take_reports();

// ---- faults. Each kind counts its calls over all devices, from reset() on.
enum class Fault : std::uint8_t {
  any,         ///< every call but those that give something back
  allocation,  ///< cudaMallocAsync, cudaMalloc
  pinned,      ///< cudaHostAlloc
  launch,      ///< kernels
  copy,        ///< copies and fills
  stream,      ///< making a stream or an event
  library,     ///< cuBLASLt and cuDNN
  write,       ///< cuStreamWriteValue64
};
inline constexpr int kFaults = 8;
/// The n-th call from now on fails, once; 1 is the next. cudaSuccess stands for the error that is usual for the kind.
void fail_nth(Fault kind, std::uint64_t n, cudaError_t error = cudaSuccess);
/// Every k-th call from now on fails; with 0 none does any more.
void fail_every(Fault kind, std::uint64_t k, cudaError_t error = cudaSuccess);
std::uint64_t calls(Fault kind);
std::uint64_t failures(Fault kind);

/// After `commands` more commands of the device's streams something goes wrong there that no call knows of: the next
/// call that concerns the device answers with the error, and does nothing else.
void fail_late(int device, cudaError_t error, std::uint64_t commands = 0);
/// As fail_late, but the error is sticky: each later call that concerns the device answers with it, and the device
/// works off nothing more.
void fail_sticky(int device, cudaError_t error = cudaErrorIllegalAddress, std::uint64_t commands = 0);
/// After `commands` more commands the device stops, until release().
void silence(int device, std::uint64_t commands = 0);
/// Silent devices go on, and silences that have not come yet will not come.
void release();

// ---- what a test can ask
/// Kernels, copies, fills and written words so far.
std::uint64_t commands();
/// How often a thread had to wait because a stream's queue of 1,024 commands was full.
std::uint64_t full_queues();
/// Blocks of device memory, pinned blocks, streams, events, and handles of cuBLASLt and cuDNN that are live.
struct Live {
  std::size_t blocks = 0, pinned = 0, streams = 0, events = 0, handles = 0;
};
Live live();
/// The devices that have a primary context: a call was made while they were a thread's current device. Calls that ask
/// for devices and their properties make none.
std::vector<int> contexts();
/// Copies between two devices: by a link that was opened (cudaMemPoolSetAccess), and by way of the host.
struct PeerCopies {
  std::uint64_t direct = 0, staged = 0;
};
PeerCopies peer_copies();

}  // namespace cuda_double
