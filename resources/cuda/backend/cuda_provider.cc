#include "sluice/resources/cuda/backend/cuda_provider.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <stdexcept>
#include <thread>

#include "sluice/resources/value_errors.h"

namespace sluice::cuda {

std::unique_ptr<Stream> CudaProvider::make_stream(int device, LaneKind lane) {
  return std::make_unique<CudaStream>(core_, device, lane);
}

// ---- progress

std::uint64_t CudaProvider::progress() const noexcept {
  std::uint64_t sum = core_->losses();
  const Word* const words = core_->words_if_made();
  for (std::size_t i = 0; i < core_->devices.size() * CudaCore::kLanes; ++i) {
    sum += core_->idle_points[i].load(std::memory_order_acquire) + (words ? words[i].read() : 0);
  }
  for (int i = 0; i < devices(); ++i) sum += core_->errors(i);
  return sum;
}

/// Looks at the words; after a while with pauses, and now and then at whether the cards still work.
void CudaProvider::await_progress(std::uint64_t seen, std::chrono::nanoseconds limit) noexcept {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  auto next_look = std::chrono::nanoseconds(std::chrono::milliseconds(1));
  while (progress() == seen) {
    const auto waited = Clock::now() - begin;
    if (waited >= limit) return;
    if (waited < std::chrono::microseconds(20)) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(waited / 8, std::chrono::microseconds(100)));
    if (waited < next_look) continue;
    for (auto& device : core_->devices) {
      if (!device->made.load(std::memory_order_acquire) || device->lost.load(std::memory_order_relaxed)) continue;
      core_->look(device->memory, device->card);
    }
    next_look = waited + std::chrono::milliseconds(20);
  }
}

// ---- errors

std::string sentence(const KernelError& error) {
  switch (error.finding) {
    case Finding::label_outside:
      return label_outside(error.a, error.c, error.b);
    case Finding::index_outside:
      return index_outside(error.a, error.c, 0, error.b);
    case Finding::signed_index_outside:
      return index_outside(error.a, error.c, -error.b, error.b);
    case Finding::probability_outside:
      return probability_outside(std::bit_cast<double>(error.a), error.c);
    case Finding::device_had_error:
      return "a device had found an error before the step";
    case Finding::gate_shut:
      return "its gate was shut";
  }
  return "an unknown error of a kernel: " + std::to_string(error.a) + ", " + std::to_string(error.b);
}

std::vector<LateError> CudaProvider::late_errors(int number, std::uint64_t from) {
  const CudaDevice& device = core_->at(number);
  std::vector<LateError> found;
  if (!device.made.load(std::memory_order_acquire)) return found;
  KernelErrors& ring = *device.errors;
  const std::uint64_t end = __atomic_load_n(&ring.count, __ATOMIC_ACQUIRE);
  for (std::uint64_t i = std::max(from, end - std::min<std::uint64_t>(end, KernelErrors::kEntries)); i < end; ++i) {
    KernelError& entry = ring.entries[i % KernelErrors::kEntries];
    const auto lap = static_cast<std::uint32_t>(i / KernelErrors::kEntries + 1);
    // Kernels write at the same time, so a later entry may be counted before this one is whole.
    for (int tries = 0; __atomic_load_n(&entry.lap, __ATOMIC_ACQUIRE) < lap && tries < 1000; ++tries) {
      std::this_thread::sleep_for(std::chrono::microseconds(10));
    }
    const bool whole = __atomic_load_n(&entry.lap, __ATOMIC_ACQUIRE) == lap;
    const KernelError copy = entry;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (!whole || __atomic_load_n(&entry.lap, __ATOMIC_RELAXED) != lap) continue;  // overwritten: one of the lost
    found.push_back(
        {{copy.op, copy.part}, std::make_exception_ptr(std::runtime_error(sentence(copy))), copy.wrote_nothing != 0});
  }
  if (device.lost.load(std::memory_order_acquire)) found.push_back({{}, device.why, false});
  return found;
}

std::exception_ptr CudaProvider::lost(int number) const noexcept {
  const CudaDevice& device = core_->at(number);
  return device.lost.load(std::memory_order_acquire) ? device.why : nullptr;
}

/// A card cannot be stopped from outside, so all of it is given up, and what it was given stays allocated.
void CudaProvider::give_up(int number) noexcept {
  try {
    core_->lose(core_->at(number).card,
                std::make_exception_ptr(std::runtime_error("the card has not answered and was given up")));
  } catch (...) {
    core_->lose(core_->at(number).card, std::current_exception());
  }
}

Reporter CudaProvider::reporter(int number) const {
  const DeviceOp op = core_->host.op();
  CudaDevice& device = core_->use(number);
  return {device.errors, device.reporters.fetch_add(1, std::memory_order_relaxed) + 1, op.id, op.part};
}

// ---- memory

DeviceLimits CudaProvider::limits(int number) const { return limits_of_cards(core_->at(number).budget); }

cudaStream_t CudaProvider::stream_of(int number, Stream* stream) const {
  if (CudaStream* const own = cuda_stream(stream)) return own->stream();
  return core_->use(number).memory;
}

void* CudaProvider::allocate(int number, std::size_t bytes, Stream* stream) noexcept try {
  CudaDevice& device = core_->use(number);
  const std::size_t used = device.in_use.fetch_add(bytes) + bytes;
  if (device.budget && used > device.budget) {
    device.in_use.fetch_sub(bytes);
    return nullptr;
  }
  void* block = nullptr;
  try {
    const OnCard on(device.card);
    const cudaStream_t in = stream_of(number, stream);
    try {
      core_->check(cudaMallocAsync(&block, std::max<std::size_t>(bytes, 1), in), "cudaMallocAsync", device.card);
    } catch (const std::bad_alloc&) {
      // What was freed may still be on its way back, or lie in pieces in the card's pool.
      core_->trim(device);
      core_->check(cudaMallocAsync(&block, std::max<std::size_t>(bytes, 1), in), "cudaMallocAsync", device.card);
    }
    if (!stream) core_->check(cudaStreamSynchronize(in), "cudaStreamSynchronize", device.card);
  } catch (...) {
    device.in_use.fetch_sub(bytes);
    throw;
  }
  return block;
} catch (...) {
  return nullptr;
}

void CudaProvider::free(int number, void* block, std::size_t bytes, Stream* stream) noexcept {
  if (!block) return;
  CudaDevice& device = core_->at(number);
  device.in_use.fetch_sub(bytes);
  if (device.lost.load(std::memory_order_acquire)) return;
  try {
    const OnCard on(device.card);
    core_->check(cudaFreeAsync(block, stream_of(number, stream)), "cudaFreeAsync", device.card);
  } catch (...) {
    // The card is lost, or will be found so.
  }
}

void* CudaProvider::allocate_pinned(std::size_t bytes) noexcept try {
  void* block = nullptr;
  const OnCard on(core_->card_in_use());
  SLUICE_CUDA(cudaHostAlloc, &block, std::max<std::size_t>(bytes, 1), cudaHostAllocPortable);
  return block;
} catch (...) {
  return nullptr;
}

void CudaProvider::free_pinned(void* block, std::size_t) noexcept {
  // A card that is given up may still write to it.
  if (!block || core_->losses() > 0) return;
  const OnCard on(core_->card_in_use(), std::nothrow);
  cudaFreeHost(block);
}

/// The card whose memory an address is of; -1: it is the host's.
int CudaProvider::card_of(const void* address) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, address) == cudaSuccess && attributes.type == cudaMemoryTypeDevice) {
    return attributes.device;
  }
  return -1;
}

int CudaProvider::device_of(const void* address) const {
  const OnCard on(core_->card_in_use(), std::nothrow);
  const int card = card_of(address);
  for (int i = 0; card >= 0 && i < devices(); ++i) {
    if (core_->at(i).card == card) return i;
  }
  return 0;
}

void CudaProvider::copy(void* to, const void* from, std::size_t bytes, Stream* stream) {
  if (bytes == 0) return;
  CudaStream* const own = cuda_stream(stream);
  const auto device_of_memory = [&] {
    const OnCard on(core_->card_in_use(), std::nothrow);
    return device_of(card_of(to) < 0 ? from : to);
  };
  const int number = own ? own->device() : device_of_memory();
  const int card = core_->at(number).card;
  const OnCard on(card);
  const cudaStream_t in = stream_of(number, stream);
  const int source = core_->cards > 1 ? card_of(from) : -1, target = core_->cards > 1 ? card_of(to) : -1;
  if (source >= 0 && target >= 0 && source != target) {
    // Between cards without a link a copy of memory of their pools has to be told whose it is.
    core_->check(cudaMemcpyPeerAsync(to, target, from, source, bytes, in), "cudaMemcpyPeerAsync", card);
  } else {
    core_->check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, in), "cudaMemcpyAsync", card);
  }
  if (!stream) core_->check(cudaStreamSynchronize(in), "cudaStreamSynchronize", card);
}

void CudaProvider::fill(void* to, std::byte value, std::size_t bytes, Stream* stream) {
  if (bytes == 0) return;
  CudaStream* const own = cuda_stream(stream);
  const int number = own ? own->device() : device_of(to);
  const int card = core_->at(number).card;
  const OnCard on(card);
  const cudaStream_t in = stream_of(number, stream);
  core_->check(cudaMemsetAsync(to, std::to_integer<int>(value), bytes, in), "cudaMemsetAsync", card);
  if (!stream) core_->check(cudaStreamSynchronize(in), "cudaStreamSynchronize", card);
}

}  // namespace sluice::cuda
