// Finds and loads the CUDA backend.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/environment.h"
#include "sluice/engine/errors.h"
#include "sluice/engine/order_observer.h"
#include "sluice/resources/cuda/library.h"

namespace sluice {
namespace cuda {
namespace {

OpenLibrary linked_in = nullptr;

const Library* told_of = nullptr;  ///< with the lock of the library, as is the next
void (*tell)(const Library&) = nullptr;

/// The library's file where it lies beside the program; else its name, for the system to look for.
std::string library_file() {
  const std::string name = "libsluice_cuda.so";
  char program[4096];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program);
  if (length > 0 && length < static_cast<ssize_t>(sizeof program)) {
    const std::string path(program, static_cast<std::size_t>(length));
    const std::string beside = path.substr(0, path.rfind('/') + 1) + name;
    if (access(beside.c_str(), R_OK) == 0) return beside;
  }
  return name;
}

struct Loaded {
  const Library* library = nullptr;
  std::string why;  ///< there is none, or no card
};

Loaded load() {
  Loaded result;
  if (!detail::switch_from_environment("SLUICE_CUDA", true)) {
    result.why = "SLUICE_CUDA=0 switches it off";
    return result;
  }
  OpenLibrary open = linked_in;
  if (!open) {
    const char* const named = std::getenv("SLUICE_CUDA_LIBRARY");
    const std::string file = named ? named : library_file();
    void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      const char* const why = dlerror();
      result.why = "the CUDA backend cannot be loaded: " + (why ? why : file);
      return result;
    }
    open = reinterpret_cast<OpenLibrary>(dlsym(handle, "sluice_cuda_library"));
    if (!open) {
      result.why = file + " is no CUDA backend of Sluice";
      return result;
    }
  }
  result.library = open({current_device_op, current_memory_uses});
  if (result.library->version != kLibraryVersion) {
    result.why = "the CUDA backend is of another version of Sluice";
    result.library = nullptr;
  } else if (const char* const why = result.library->unavailable()) {
    result.why = why;
  } else {
    const std::lock_guard lock(detail::process_lock(detail::ProcessLock::cuda_library));
    told_of = result.library;
    if (tell) tell(*told_of);
  }
  return result;
}

const Loaded& loaded() {
  return detail::first_use([] {
    static const Loaded result = load();
    return &result;
  });
}

/// No devices, and why.
class NoCards final : public Provider {
 public:
  DeviceKind kind() const override { return DeviceKind::gpu; }
  int devices() const override { return 0; }
  std::string unavailable() const override { return "no CUDA device: " + cuda_unavailable(); }
  std::unique_ptr<Stream> make_stream(int, LaneKind) override { return nullptr; }
  std::uint64_t progress() const noexcept override { return 0; }
  void await_progress(std::uint64_t, std::chrono::nanoseconds) noexcept override {}
  void* allocate(int, std::size_t, Stream*) noexcept override { return nullptr; }
  void free(int, void*, std::size_t, Stream*) noexcept override {}
  void copy(void*, const void*, std::size_t, Stream*) override {}
  void fill(void*, std::byte, std::size_t, Stream*) override {}
};

int logical_gpus() {
  const char* const text = std::getenv("SLUICE_LOGICAL_GPUS");
  if (!text || !*text) return 1;
  char* end = nullptr;
  const long count = std::strtol(text, &end, 10);
  if (*end || count < 1 || count > 64) {
    throw UsageError("SLUICE_LOGICAL_GPUS=" + std::string(text) + ": a number from 1 to 64 is wanted");
  }
  return static_cast<int>(count);
}

}  // namespace

void on_library(void (*f)(const Library& library)) {
  const std::lock_guard lock(detail::process_lock(detail::ProcessLock::cuda_library));
  tell = f;
  if (told_of) f(*told_of);
}

const Library* library() { return loaded().library; }
void use_library(OpenLibrary open) { linked_in = open; }

}  // namespace cuda

const std::string& cuda_unavailable() { return cuda::loaded().why; }

ProviderFactory cuda_devices(CudaOptions options) {
  if (options.logical < 0 || options.logical > 64) {
    throw UsageError("CudaOptions: logical = " + std::to_string(options.logical) + " is not in 0..64");
  }
  return [options]() -> std::shared_ptr<Provider> {
    CudaOptions chosen = options;
    if (chosen.logical == 0) chosen.logical = cuda::logical_gpus();
    chosen.nvtx |= detail::switch_from_environment("SLUICE_NVTX", false);
    if (!cuda_unavailable().empty()) return std::make_shared<cuda::NoCards>();
    return cuda::library()->make_provider(chosen);
  };
}

}  // namespace sluice
