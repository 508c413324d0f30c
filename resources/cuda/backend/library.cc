// The backend library's one symbol.
#include "sluice/resources/cuda/backend/cuda_provider.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#if __has_include(<cuda_double/observed.h>)
#include <cuda_double/observed.h>  // what the double's record is told; a card keeps none
#endif

namespace sluice::cuda {

void add_kernels(void* registry, const void* add);  // operators/backends/cuda/backend.cu

namespace {

Host host;

/// Whether code that was built for these architectures, as CMake names them ("80-real 90 120-virtual"), runs on a card:
/// machine code on cards of its family that came later, a virtual architecture on all later ones.
bool runs_on(std::string_view built, int capability) {
  while (!built.empty()) {
    const std::string_view word = built.substr(0, built.find(' '));
    built.remove_prefix(std::min(built.size(), word.size() + 1));
    const int architecture = std::atoi(std::string(word).c_str());
    if (capability < architecture) continue;
    if (!word.ends_with("-real") || architecture / 10 == capability / 10) return true;
  }
  return false;
}

/// Asks CUDA how many cards there are, and why if there is none.
struct Cards {
  int count = 0;
  std::string why;
  Cards() {
    const cudaError_t answer = cudaGetDeviceCount(&count);
    if (answer == cudaSuccess && count > 0) {
      check_capabilities();
      return;
    }
    count = 0;
    why = std::string("the driver says: ") + cudaGetErrorString(answer == cudaSuccess ? cudaErrorNoDevice : answer);
    cudaGetLastError();
  }

 private:
  void check_capabilities() {
    for (int card = 0; card < count; ++card) {
      cudaDeviceProp card_is{};
      SLUICE_CUDA(cudaGetDeviceProperties, &card_is, card);
      if (runs_on(SLUICE_CUDA_BUILT_FOR, card_is.major * 10 + card_is.minor)) continue;
      why = std::string(card_is.name) + " has the compute capability " + std::to_string(card_is.major) + "." +
            std::to_string(card_is.minor) + ", and libsluice_cuda.so was built for " + SLUICE_CUDA_BUILT_FOR +
            " (SLUICE_CUDA_ARCHITECTURES; CUDA_VISIBLE_DEVICES leaves cards out)";
      count = 0;
      return;
    }
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

CudaProvider& working_provider(Provider& given) { return static_cast<CudaProvider&>(host.provider(given)); }
CudaStream& working_stream(Stream& given) { return static_cast<CudaStream&>(host.stream(given)); }

}  // namespace sluice::cuda

extern "C" __attribute__((visibility("default"))) const sluice::cuda::Library* sluice_cuda_library(
    const sluice::cuda::Host& given) {
  using namespace sluice::cuda;
  host = given;
  static const Library library{kLibraryVersion, unavailable, make_provider, add_kernels};
  return &library;
}
