// What a program and the CUDA backend, a library that is loaded at run time, hand each other. The library takes nothing
// else from the program: its linker holds that (docs/decisions/0012-cuda.md).
#pragma once

#include <memory>

#include "sluice/engine/provider.h"
#include "sluice/resources/cuda/cuda.h"

namespace sluice::cuda {

/// Raised with each change of what stands here, or of a class that both sides know.
inline constexpr int kLibraryVersion = 3;

/// What the library may call.
struct Host {
  DeviceOp (*op)() noexcept;
  std::span<const MemoryUse> (*uses)() noexcept;
};

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
/// Calls f with the library as soon as it is loaded, or at once. For those who add kernels; one such function.
/// Thread-safe.
void on_library(void (*f)(const Library& library));
/// For a program that has the backend linked in (the tests' double). To be called before the first use of CUDA.
void use_library(OpenLibrary open);

}  // namespace sluice::cuda
