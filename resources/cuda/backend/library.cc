// The backend library's one symbol.
#include "sluice/resources/cuda/backend/cuda_provider.h"

#include <cstdlib>
#include <memory>
#include <string>

#if __has_include(<cuda_double/observed.h>)
#include <cuda_double/observed.h>  // what the double's record is told; a card keeps none
#endif

namespace sluice::cuda {

void add_kernels(void* registry, const void* add);  // operators/backends/cuda/backend.cu

namespace {

Host host;

/// Asks CUDA how many cards there are, and why if there is none.
struct Cards {
  int count = 0;
  std::string why;
  Cards() {
    const cudaError_t answer = cudaGetDeviceCount(&count);
    if (answer == cudaSuccess && count > 0) return;
    count = 0;
    why = std::string("the driver says: ") + cudaGetErrorString(answer == cudaSuccess ? cudaErrorNoDevice : answer);
    cudaGetLastError();
  }
};

const char* unavailable() noexcept try {
  static const Cards found;
  return found.why.empty() ? nullptr : found.why.c_str();
} catch (...) {
  return "there is no memory to ask";
}

std::shared_ptr<Provider> provider_of(std::shared_ptr<CudaCore> core) {
#if __has_include(<cuda_double/observed.h>)
  return cuda_double::make_provider<CudaProvider>(std::move(core));
#else
  return std::make_shared<CudaProvider>(std::move(core));
#endif
}

std::shared_ptr<Provider> make_provider(const CudaOptions& options) {
  return provider_of(std::make_shared<CudaCore>(options, Cards().count, host));
}

}  // namespace
}  // namespace sluice::cuda

extern "C" __attribute__((visibility("default"))) const sluice::cuda::Library* sluice_cuda_library(
    const sluice::cuda::Host& given) {
  using namespace sluice::cuda;
  host = given;
  // A kernel that is loaded at its first launch, the driver's default, may wait for all of the card's work. The driver
  // asks this when it begins.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  static const Library library{kLibraryVersion, unavailable, make_provider, add_kernels};
  return &library;
}
