// Providers of the CUDA backend that tell the double's record what it cannot see.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "cuda_double/order.h"
#include "sluice/resources/cuda/backend/cuda_provider.h"

namespace cuda_double {

template <class P>
class Observed final : public P, public sluice::OrderObserver {
 public:
  using P::P;
  void stream_after(sluice::Stream& stream, std::span<const sluice::StreamEvent> passed) noexcept override {
    sluice::cuda::cuda_stream(&stream)->ordered_after(passed);
  }
  void host_after(std::span<const sluice::StreamEvent> passed, bool afresh) noexcept override try {
    cuda_double::host_after(sluice::cuda::passed_points(passed), afresh);
  } catch (...) {
    // Without memory the record knows less.
  }
  void host_returns() noexcept override { cuda_double::host_returns(); }
  void host_touches(std::span<const sluice::MemoryUse> uses) noexcept override { cuda_double::host_touches(uses); }
  void block_reused(const void* block) noexcept override { cuda_double::block_reused(block); }
};

/// Makes a provider of class P; one that tells, where a record is kept.
template <class P>
std::shared_ptr<sluice::Provider> make_provider(std::shared_ptr<sluice::cuda::CudaCore> core) {
  if (keeps_order()) return std::make_shared<Observed<P>>(std::move(core));
  return std::make_shared<P>(std::move(core));
}

}  // namespace cuda_double
