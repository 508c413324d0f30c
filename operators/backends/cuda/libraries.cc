#include "sluice/operators/backends/cuda/libraries.h"

#include <cstdlib>
#include <string_view>

#include "sluice/resources/cuda/backend/ends.h"

namespace sluice::cuda {

Libraries::Libraries(int on_card) : card(on_card) {
  try {
    check(cublasLtCreate(&blas), "cublasLtCreate");
    check(cudnnCreate(&dnn), "cudnnCreate");
  } catch (...) {
    if (blas) cublasLtDestroy(blas);
    throw;
  }
  static const bool once = (Ending::before_what_is_loaded(), true);
  (void)once;
}

Libraries::~Libraries() {
  cudnnDestroy(dnn);
  cublasLtDestroy(blas);
}

std::shared_ptr<Libraries> make_libraries(int card) { return std::make_shared<Libraries>(card); }

void set_stream(Libraries& libraries, cudaStream_t stream) {
  if (!stream) {
    cudaFreeAsync(libraries.workspace, libraries.stream);
  } else {
    check(cudnnSetStream(libraries.dnn, stream), "cudnnSetStream");
    SLUICE_CUDA(cudaMallocAsync, &libraries.workspace, kWorkspace, stream);
  }
  libraries.stream = stream;
}

bool allows_tf32() {
  static const bool allowed = [] {
    const char* const text = std::getenv("SLUICE_TF32");
    return text && std::string_view(text) == "1";
  }();
  return allowed;
}

}  // namespace sluice::cuda
