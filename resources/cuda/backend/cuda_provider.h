// The provider of the machine's GPUs.
#pragma once

#include <vector>

#include "sluice/resources/cuda/backend/cuda_stream.h"
#include "sluice/resources/cuda/backend/ranges.h"

namespace sluice::cuda {

/// Tests derive providers that make mistakes (tests/cuda/planted_provider_test.cc).
class CudaProvider : public Provider {
 public:
  explicit CudaProvider(std::shared_ptr<CudaCore> core) : core_(std::move(core)) {}
  DeviceKind kind() const override { return DeviceKind::gpu; }
  int devices() const override { return static_cast<int>(core_->devices.size()); }
  std::unique_ptr<Stream> make_stream(int device, LaneKind lane) override;
  void enter(int device) noexcept override { cudaSetDevice(core_->at(device).card); }

  std::uint64_t progress() const noexcept override;
  void await_progress(std::uint64_t seen, std::chrono::nanoseconds limit) noexcept override;

  bool wants_ranges() const noexcept override { return core_->nvtx; }
  void range_begins(const char* name) noexcept override { push_range(name); }
  void range_ends() noexcept override { pop_range(); }

  std::uint64_t errors(int device) const noexcept override { return core_->errors(device); }
  std::vector<LateError> late_errors(int device, std::uint64_t from) override;
  std::exception_ptr lost(int device) const noexcept override;
  void give_up(int device) noexcept override;

  DeviceLimits limits(int device) const override;
  void* allocate(int device, std::size_t bytes, Stream* stream) noexcept override;
  void free(int device, void* block, std::size_t bytes, Stream* stream) noexcept override;
  void* allocate_pinned(std::size_t bytes) noexcept override;
  void free_pinned(void* block, std::size_t bytes) noexcept override;
  void copy(void* to, const void* from, std::size_t bytes, Stream* stream) override;
  void fill(void* to, std::byte value, std::size_t bytes, Stream* stream) override;

  CudaCore& core() const { return *core_; }
  /// What a kernel is given that may find an error in the op that the calling thread issues.
  Reporter reporter(int device) const;

 private:
  /// The stream, or the device's own for what is done before the call returns.
  cudaStream_t stream_of(int device, Stream* stream) const;
  static int card_of(const void* address);
  int device_of(const void* address) const;

  const std::shared_ptr<CudaCore> core_;
};

/// The provider, and the stream, that do the work of what a body was given (Host::provider). May throw.
CudaProvider& working_provider(Provider& given);
CudaStream& working_stream(Stream& given);

/// The sentence for what a kernel found.
std::string sentence(const KernelError& error);

}  // namespace sluice::cuda
