// What a program and the CUDA backend, a library that is loaded at run time, hand each other. The library takes nothing
// else from the program: its linker holds that (docs/decisions/0012-cuda.md).
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "sluice/engine/provider.h"
#include "sluice/resources/cuda/cuda.h"

namespace sluice::cuda {

/// Raised with each change of what stands here, or of a class that both sides know.
inline constexpr int kLibraryVersion = 4;

/// What the library may call.
struct Host {
  DeviceOp (*op)() noexcept;
  std::span<const MemoryUse> (*uses)() noexcept;
  /// resources/cuda/lazy_provider.h: what a body is given may be such a provider, or a stream of one.
  Provider& (*provider)(Provider& provider);
  Stream& (*stream)(Stream& stream);
};

/// What a device of CUDA can do, as far as that does not depend on the card. `memory`: in bytes; 0: not known.
inline DeviceLimits limits_of_cards(std::size_t memory) {
  DeviceLimits limits;
  limits.memory = memory;
  limits.alignment = 256;
  limits.threads_per_block = 1024;
  limits.shared_memory = std::size_t{48} << 10;
  limits.parameter_bytes = 4096;
  limits.unconfirmed = 512;  // a card's queue of launches has some 1,000 places, and blocks when it is full
  return limits;
}

/// What the library gives.
struct Library {
  int version = kLibraryVersion;
  /// Null if there is a GPU; else why not.
  const char* (*unavailable)() noexcept = nullptr;
  std::shared_ptr<Provider> (*make_provider)(const CudaOptions& options) = nullptr;
  /// Adds the kernels: `registry` is the program's sluice::Registry, `add` its function (operators/backends/cuda/).
  void (*add_kernels)(void* registry, const void* add) = nullptr;
};

/// The library's one symbol, "sluice_cuda_library". Called once.
using OpenLibrary = const Library* (*)(const Host& host);

/// The library; null if there is none. Loads it at the first call. Thread-safe.
const Library* library();
/// Whether it is loaded, and has found a card. Does not load it.
bool is_usable() noexcept;
/// Calls f with the library as soon as it is loaded, or at once. For those who add kernels; one such function.
/// Thread-safe.
void on_library(void (*f)(const Library& library));
/// For a program that has the backend linked in (the tests' double). To be called before the first use of CUDA. `cards`
/// says how many cards there are, as count_cards() does for a library that lies in a file; every engine then gets a
/// provider that asks the library later. Null: it is asked as soon as an engine is made.
void use_library(OpenLibrary open, int (*cards)() = nullptr);

}  // namespace sluice::cuda
