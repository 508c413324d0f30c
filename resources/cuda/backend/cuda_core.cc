#include "sluice/resources/cuda/backend/cuda_core.h"

#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>

#include "sluice/resources/cuda/backend/ends.h"

namespace sluice::cuda {

Ending::State& Ending::state() {
  static auto* const state = new State;
  return *state;
}
void Ending::before_what_is_loaded() {
  std::atexit([] {
    std::lock_guard lock(state().mutex);
    state().exits = true;
  });
}

namespace {

/// A function of the driver. The library is not linked with it, so that it can be loaded where there is none.
void* driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
  SLUICE_CUDA(cudaGetDriverEntryPointByVersion, name, &found, 12000, cudaEnableDefault, &status);
  if (!found || status != cudaDriverEntryPointSuccess) {
    throw CudaError(std::string("the driver has no ") + name, cudaErrorInsufficientDriver);
  }
  return found;
}

}  // namespace

bool has_context(int card) noexcept try {
  using Get = CUresult (*)(CUdevice*, int);
  using GetState = CUresult (*)(CUdevice, unsigned int*, int*);
  static const auto get = reinterpret_cast<Get>(driver_function("cuDeviceGet"));
  static const auto get_state = reinterpret_cast<GetState>(driver_function("cuDevicePrimaryCtxGetState"));
  CUdevice device = 0;
  unsigned int flags = 0;
  int active = 0;
  return get(&device, card) == CUDA_SUCCESS && get_state(device, &flags, &active) == CUDA_SUCCESS && active != 0;
} catch (...) {
  return true;  // a thread keeps its card where nobody can tell
}

CudaCore::CudaCore(const CudaOptions& options, int count, const Host& given)
    : host(given), nvtx(options.nvtx), cards(count) {
  for (int card = 0; card < cards; ++card) {
    cudaDeviceProp properties{};
    SLUICE_CUDA(cudaGetDeviceProperties, &properties, card);
    for (int i = 0; i < options.logical; ++i) {
      auto device = std::make_unique<CudaDevice>();
      device->card = card;
      if (options.logical > 1) device->budget = properties.totalGlobalMem / static_cast<std::size_t>(options.logical);
      if (options.memory) device->budget = options.memory;
      devices.push_back(std::move(device));
    }
  }
  idle_points = std::make_unique<std::atomic<std::uint64_t>[]>(devices.size() * kLanes);
}

CardTime::~CardTime() {
  if (!event || device.lost.load()) return;
  const OnCard on(device.card, std::nothrow);
  cudaEventDestroy(event);
}

CudaCore::~CudaCore() {
  Ending ending;
  for (auto& device : devices) {
    if (!device->libraries) continue;
    // The end of a handle waits for all of its card's work, which a card that is lost never ends.
    if (!ending.allowed() || device->lost.load()) {
      ending.keep(std::move(device->libraries));
    } else {
      const OnCard on(device->card, std::nothrow);
      device->libraries.reset();
    }
  }
  if (!ending.allowed()) return;
  for (auto& device : devices) {
    device->clock.reset();
    if (!device->made.load() || device->lost.load()) continue;
    const OnCard on(device->card, std::nothrow);
    cudaStreamSynchronize(device->memory);
    cudaStreamDestroy(device->memory);
  }
  // A card that is lost may still write to them, and freeing them would wait for it.
  if (losses() > 0) return;
  std::vector<void*> pinned{words_.load()};
  for (auto& device : devices) pinned.push_back(device->errors);
  std::erase(pinned, nullptr);
  if (pinned.empty()) return;
  const OnCard on(card_in_use(), std::nothrow);
  for (void* const block : pinned) cudaFreeHost(block);
}

Word* CudaCore::words() {
  std::call_once(words_once_, [&] {
    write_value_ = reinterpret_cast<WriteValue>(driver_function("cuStreamWriteValue64"));
    const auto pinned = [](std::size_t bytes) {
      void* memory = nullptr;
      SLUICE_CUDA(cudaHostAlloc, &memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
      return memory;
    };
    // A block each, because two devices write to their rings at once.
    for (auto& device : devices) {
      if (!device->errors) device->errors = new (pinned(sizeof(KernelErrors))) KernelErrors;
    }
    const std::size_t count = devices.size() * kLanes + 1;  // one for start()
    words_.store(new (pinned(count * sizeof(Word))) Word[count], std::memory_order_release);
  });
  return words_.load(std::memory_order_acquire);
}

int CudaCore::card_in_use() const noexcept {
  int card = 0;
  if (cudaGetDevice(&card) == cudaSuccess && has_context(card)) return card;
  for (const auto& device : devices) {
    if (device->made.load(std::memory_order_acquire) && !device->lost.load(std::memory_order_acquire)) {
      return device->card;
    }
  }
  return card;
}

CudaDevice& CudaCore::use(int number) {
  CudaDevice& device = at(number);
  if (device.made.load(std::memory_order_acquire)) [[likely]]
    return device;
  std::call_once(device.ready, [&] {
    if (device.lost.load(std::memory_order_acquire)) std::rethrow_exception(device.why);
    try {
      start(device);
    } catch (const CudaError& e) {
      // Whoever asks for memory first hears only that there is none; the reason stays with the device.
      const CudaError why(std::string("the card cannot be used: ") + e.what(), e.code);
      lose(device.card, std::make_exception_ptr(why));
      throw why;
    }
  });
  return device;
}

void CudaCore::start(CudaDevice& device) {
  const OnCard on(device.card);
  words();
  // Blocks stay with the card's pool, because giving them back to the driver synchronises.
  cudaMemPool_t pool = nullptr;
  check(cudaDeviceGetDefaultMemPool(&pool, device.card), "cudaDeviceGetDefaultMemPool", device.card);
  std::uint64_t all = ~std::uint64_t{0};
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "cudaMemPoolSetAttribute", device.card);
  // Of every device of the card, because making handles waits for all of the card's work.
  {
    std::lock_guard lock(start_mutex_);
    for (auto& other : devices) {
      if (other->card == device.card && !other->libraries) other->libraries = make_libraries(device.card);
    }
  }
  check(cudaStreamCreateWithFlags(&device.memory, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", device.card);
  // All progress is told by such writes, which not every system has.
  write(device.memory, words()[devices.size() * kLanes], 1, device.card);
  check(cudaStreamSynchronize(device.memory), "cudaStreamSynchronize", device.card);
  // With the cards in use alone, because a link makes CUDA's state on both.
  std::lock_guard lock(start_mutex_);
  for (auto& other : devices) {
    if (other->card == device.card || !other->made.load(std::memory_order_acquire)) continue;
    link(device.card, other->card);
    link(other->card, device.card);
  }
  device.made.store(true, std::memory_order_release);
}

void CudaCore::write(cudaStream_t stream, Word& word, std::uint64_t value, int card) {
  const CUresult written =
      write_value_(reinterpret_cast<CUstream>(stream), reinterpret_cast<CUdeviceptr>(&word.value), value, 0);
  check(static_cast<cudaError_t>(written), "cuStreamWriteValue64", card);  // the codes are the same
}

/// Blocks are of the cards' pools, whose memory another card reaches if the pool says so (cudaDeviceEnablePeerAccess
/// does not concern them). Without a link CUDA copies by way of the host.
void CudaCore::link(int card, int other) noexcept {
  int can = 0;
  cudaMemPool_t pool = nullptr;
  const cudaMemAccessDesc access{{cudaMemLocationTypeDevice, card}, cudaMemAccessFlagsProtReadWrite};
  if (cudaDeviceCanAccessPeer(&can, card, other) == cudaSuccess && can == 0) return;
  if (can == 0 || cudaDeviceGetDefaultMemPool(&pool, other) != cudaSuccess ||
      cudaMemPoolSetAccess(pool, &access, 1) != cudaSuccess) {
    cudaGetLastError();  // copies go by way of the host; a card that is lost will be found so
  }
}

void CudaCore::trim(CudaDevice& device) {
  cudaMemPool_t pool = nullptr;
  check(cudaStreamSynchronize(device.memory), "cudaStreamSynchronize", device.card);
  check(cudaDeviceGetDefaultMemPool(&pool, device.card), "cudaDeviceGetDefaultMemPool", device.card);
  check(cudaMemPoolTrimTo(pool, 0), "cudaMemPoolTrimTo", device.card);
}

std::shared_ptr<const CardTime> CudaCore::clock(int number) {
  using Clock = std::chrono::steady_clock;
  constexpr int kTries = 4;
  constexpr std::int64_t kKept = 4'000'000'000;
  constexpr std::chrono::seconds kLimit(2);  // a busy host's thread may be away for a good part of one
  CudaDevice& device = use(number);
  std::lock_guard lock(device.clock_mutex);
  const std::int64_t now = Clock::now().time_since_epoch().count();
  if (device.clock && now - device.clock->host < kKept) return device.clock;
  if (now < device.no_clock_before) throw std::runtime_error("the card does not answer");
  const OnCard on(device.card);
  std::shared_ptr<CardTime> best;
  std::int64_t shortest = 0;
  for (int i = 0; i < kTries; ++i) {
    auto time = std::make_shared<CardTime>(device);
    check(cudaEventCreateWithFlags(&time->event, cudaEventDefault), "cudaEventCreateWithFlags", device.card);
    const auto before = Clock::now();
    // The stream for what is done at once, which has nothing else to do.
    check(cudaEventRecord(time->event, device.memory), "cudaEventRecord", device.card);
    for (;;) {
      const cudaError_t state = cudaEventQuery(time->event);
      if (state == cudaSuccess) break;
      if (state != cudaErrorNotReady) check(state, "cudaEventQuery", device.card);
      const auto waited = Clock::now() - before;
      if (waited > kLimit) {
        device.no_clock_before = now + kKept;
        throw std::runtime_error("the card does not answer");
      }
      if (waited > std::chrono::microseconds(100)) std::this_thread::yield();
    }
    const auto took = (Clock::now() - before).count();
    time->host = before.time_since_epoch().count() + took / 2;
    if (!best || took < shortest) {
      best = std::move(time);
      shortest = took;
    }
  }
  device.clock = best;
  return best;
}

void CudaCore::check(cudaError_t code, const char* call, int card) {
  if (code == cudaSuccess) return;
  try {
    cuda::check(code, call);
  } catch (const CudaError&) {
    if (is_sticky(code)) lose(card, std::current_exception());
    throw;
  }
}

void CudaCore::look(cudaStream_t stream, int card) noexcept try {
  const OnCard on(card);
  const auto is_answer = [](cudaError_t state) { return state == cudaSuccess || state == cudaErrorNotReady; };
  // An earlier call's error is answered once.
  if (is_answer(cudaStreamQuery(stream))) return;
  cudaGetLastError();
  const cudaError_t state = cudaStreamQuery(stream);
  if (is_answer(state)) return;
  cudaGetLastError();
  lose(card, std::make_exception_ptr(CudaError(std::string("cudaStreamQuery: ") + cudaGetErrorString(state), state)));
} catch (...) {
  lose(card, std::current_exception());
}

void CudaCore::lose(int card, std::exception_ptr why) noexcept {
  std::lock_guard lock(lose_mutex_);
  for (auto& device : devices) {
    if (device->card != card || device->lost.load(std::memory_order_relaxed)) continue;
    device->why = why;
    if (words_if_made()) __atomic_store_n(&device->errors->lost, 1ULL, __ATOMIC_RELEASE);
    device->lost.store(true, std::memory_order_release);
    losses_.fetch_add(1, std::memory_order_release);
  }
}

std::uint64_t CudaCore::errors(int number) const noexcept {
  if (!words_if_made()) return 0;
  const KernelErrors& ring = *at(number).errors;
  return __atomic_load_n(&ring.count, __ATOMIC_ACQUIRE) + __atomic_load_n(&ring.lost, __ATOMIC_ACQUIRE);
}

}  // namespace sluice::cuda
