// A stream of CUDA as the engine uses it.
#pragma once

#include <cuda_runtime.h>

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "sluice/resources/cuda/backend/cuda_core.h"
#include "sluice/resources/cuda/backend/order.h"

namespace sluice::cuda {

/// Its progress is a word of pinned memory that the stream writes. Each recorded point is an event too, for streams
/// that wait for it. CUDA's stream is made at the first use.
class CudaStream : public Stream {
 public:
  CudaStream(std::shared_ptr<CudaCore> core, int device, LaneKind lane)
      : core_(std::move(core)),
        device_(device),
        lane_(lane),
        word_(static_cast<std::size_t>(device * CudaCore::kLanes + static_cast<int>(lane))) {}
  ~CudaStream() override;

  bool record(std::uint64_t point) noexcept override;
  std::uint64_t reached() const noexcept final;
  bool wait(const StreamEvent& event) override;
  void await(std::uint64_t point, std::chrono::nanoseconds limit) noexcept override;
  std::uint64_t begin_times() noexcept override;
  void end_times(std::uint64_t span) noexcept override;
  bool take_times(std::uint64_t span, DeviceTimes& times) noexcept override;
  /// The cudaStream_t. Throws CudaError if it cannot be made.
  void* native() const override { return stream(); }

  /// Tells the double's record that all that is issued here later comes after these points.
  void ordered_after(std::span<const StreamEvent> passed) noexcept;

  cudaStream_t stream() const;
  /// The same, or null if it was never used.
  cudaStream_t stream_if_made() const noexcept { return stream_.load(std::memory_order_acquire); }
  int device() const { return device_; }
  /// Of a compute lane. Used by the thread that issues there.
  Libraries& libraries() const {
    stream();
    return *core_->at(device_).libraries;
  }
  int card() const { return core_->at(device_).card; }
  CudaCore& core() const { return *core_; }
  /// Asks the card whether it still works; a sticky error marks it as lost.
  void look() noexcept;
  /// Points up to this one were recorded before anything was issued.
  std::uint64_t idle() const noexcept { return core_->idle_points[word_].load(std::memory_order_acquire); }
  /// Something was recorded that is not passed.
  bool in_flight() const noexcept { return reached() < last_.load(std::memory_order_acquire); }

 protected:  // for tests, which derive streams that make mistakes (tests/cuda/planted_provider_test.cc)
  struct Point {
    std::uint64_t point;
    cudaEvent_t event;
  };
  /// Two events with times.
  struct Span {
    cudaEvent_t begin = nullptr, end = nullptr;
    std::shared_ptr<const CardTime> since;
    bool ended = false;
  };
  cudaEvent_t new_event();
  Word& word() { return core_->words()[word_]; }
  LaneKind lane() const { return lane_; }

  mutable std::mutex mutex_;
  std::deque<Point> points_;        ///< recorded, and perhaps not passed, by their numbers
  std::vector<cudaEvent_t> spare_;  ///< events for the next points

 private:
  void recycle();

  const std::shared_ptr<CudaCore> core_;
  const int device_;
  const LaneKind lane_;
  const std::size_t word_;
  mutable std::once_flag once_;
  mutable std::atomic<cudaStream_t> stream_{nullptr};
  std::atomic<std::uint64_t> last_{0};  ///< recorded
  static constexpr int kMostFailures = 3;
  std::atomic<int> failures_{0};            ///< of record(), one after the other
  std::vector<Span> spans_;                 ///< what was timed, at its number - 1
  std::vector<std::uint64_t> spare_spans_;  ///< numbers of those that are not in use
  std::vector<Passed> owed_;                ///< what ordered_after() was told before CUDA's stream was made
};

/// The points of this provider's streams among these.
std::vector<Passed> passed_points(std::span<const StreamEvent> events);
/// The stream, if it is one of this provider's kind and process; else null.
CudaStream* cuda_stream(Stream* stream);

}  // namespace sluice::cuda
