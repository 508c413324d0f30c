// What the streams of the CUDA provider share: cards, their memory, and what is known of their errors.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "sluice/resources/cuda/backend/check.h"
#include "sluice/resources/cuda/backend/kernel_errors.h"
#include "sluice/resources/cuda/library.h"

namespace sluice::cuda {

/// Whether this process has a context on the card (CUDA's primary one, of some hundred megabytes).
bool has_context(int card) noexcept;

/// Makes a card current on the calling thread while it lives. A thread whose card nobody uses stays on this one,
/// because CUDA makes a context where a card is made current.
class OnCard {
 public:
  explicit OnCard(int card) { check(enter(card), "cudaSetDevice"); }
  /// For the ends of things, which go on where it cannot be done.
  OnCard(int card, std::nothrow_t) noexcept { enter(card); }
  ~OnCard() {
    if (changed_ && has_context(before_)) cudaSetDevice(before_);
  }
  OnCard(const OnCard&) = delete;
  OnCard& operator=(const OnCard&) = delete;

 private:
  cudaError_t enter(int card) noexcept {
    // A thread that comes for the first time has device 0 and no context, which calls of the driver want.
    static thread_local bool bound = false;
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = card;
    if (before_ == card && bound) return cudaSuccess;
    const cudaError_t error = cudaSetDevice(card);
    changed_ = error == cudaSuccess && before_ != card;
    bound = bound || error == cudaSuccess;
    return error;
  }

  int before_ = 0;
  bool changed_ = false;
};

/// A number that a stream writes and the host reads, in pinned memory.
struct alignas(64) Word {
  std::uint64_t value = 0;
  std::uint64_t read() const noexcept { return __atomic_load_n(&value, __ATOMIC_ACQUIRE); }
};

/// What a compute lane keeps for the libraries that its kernels call: handles, and a workspace
/// (operators/backends/cuda/libraries.h). Made at the card's start, because CUDA waits for all of a card's work when a
/// handle is made.
struct Libraries;
std::shared_ptr<Libraries> make_libraries(int card);
/// The lane's stream: the handles are for it, and the workspace is its. Null: the workspace is freed in its order.
void set_stream(Libraries& libraries, cudaStream_t stream);

struct CudaDevice;

/// A moment as an event with a time, and as nanoseconds of the host's steady clock: so other events' times can be told.
struct CardTime {
  explicit CardTime(CudaDevice& d) : device(d) {}
  ~CardTime();
  CardTime(const CardTime&) = delete;
  CardTime& operator=(const CardTime&) = delete;
  CudaDevice& device;
  cudaEvent_t event = nullptr;
  std::int64_t host = 0;
};

/// One logical device.
struct CudaDevice {
  int card = 0;
  std::size_t budget = 0;  ///< the most bytes it gives out; 0: as many as the card has
  std::atomic<std::size_t> in_use{0};
  KernelErrors* errors = nullptr;           ///< pinned; made with the words
  std::atomic<std::uint64_t> reporters{0};  ///< how many Reporters there were
  cudaStream_t memory = nullptr;            ///< for blocks and copies without a stream
  std::shared_ptr<Libraries> libraries;
  std::mutex clock_mutex;
  std::shared_ptr<const CardTime> clock;  ///< with its mutex, as the next: the latest; null before the first
  std::int64_t no_clock_before = 0;       ///< the card did not answer when it was asked for the last time
  std::once_flag ready;
  std::atomic<bool> made{false};  ///< `ready` has been passed
  std::atomic<bool> lost{false};
  std::exception_ptr why;  ///< written before `lost`
};

struct CudaCore {
  CudaCore(const CudaOptions& options, int cards, const Host& host);
  ~CudaCore();

  const Host host;
  const bool nvtx;
  const int cards;
  std::vector<std::unique_ptr<CudaDevice>> devices;

  /// The device, with everything that is made at its first use. Throws CudaError.
  CudaDevice& use(int device);
  CudaDevice& at(int device) const { return *devices[static_cast<std::size_t>(device)]; }
  /// For calls that concern no card, which would make a context on the thread's: one that has a context, if any has.
  int card_in_use() const noexcept;

  /// Gives the memory that was freed, and is not in use, back to the card. Waits for what is done at once. Throws
  /// CudaError.
  void trim(CudaDevice& device);

  /// A moment of the device's card, a few seconds ago at most, because CUDA tells the time between two events as a
  /// float of milliseconds. Waits a moment for the card where it makes one. Throws CudaError,
  /// and std::runtime_error where the card does not answer.
  std::shared_ptr<const CardTime> clock(int device);

  /// The words of the streams; made at the first call, with every device's ring of errors. Throws CudaError.
  Word* words();
  Word* words_if_made() const noexcept { return words_.load(std::memory_order_acquire); }
  static constexpr int kLanes = static_cast<int>(std::size(kDeviceLanes));  ///< streams of a device
  /// The last point of each stream, by its word's number, that was recorded before CUDA's stream was made. Nothing was
  /// issued before it, so it is passed.
  std::unique_ptr<std::atomic<std::uint64_t>[]> idle_points;

  /// Looks at an error code: throws as check() does, and if the error is sticky marks every device of the card as lost.
  void check(cudaError_t code, const char* call, int card);
  /// Asks a stream of the card whether the card still works. Any answer but "done" and "not done" that it gives twice
  /// marks every device of the card as lost.
  void look(cudaStream_t stream, int card) noexcept;
  void lose(int card, std::exception_ptr why) noexcept;
  std::uint64_t losses() const noexcept { return losses_.load(std::memory_order_acquire); }
  std::uint64_t errors(int device) const noexcept;

  /// Lets the stream write the word when it gets there. Throws CudaError.
  void write(cudaStream_t stream, Word& word, std::uint64_t value, int card);

 private:
  /// What use() makes at the first use of a device.
  void start(CudaDevice& device);
  /// Lets two cards copy from each other without the host, where there is a link.
  void link(int card, int other) noexcept;

  using WriteValue = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned int);
  WriteValue write_value_ = nullptr;
  std::once_flag words_once_;
  std::atomic<Word*> words_{nullptr};
  std::atomic<std::uint64_t> losses_{0};
  std::mutex lose_mutex_, start_mutex_;  ///< the second: cards start one after the other
};

}  // namespace sluice::cuda
