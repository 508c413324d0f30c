#include "sluice/operators/backends/cuda/libraries.h"

#include <cstdlib>
#include <string_view>

namespace sluice::cuda {

Libraries::Libraries(int on_card, cudaStream_t on_stream) : card(on_card), stream(on_stream) {
  try {
    check(cublasLtCreate(&blas), "cublasLtCreate");
    check(cudnnCreate(&dnn), "cudnnCreate");
    check(cudnnSetStream(dnn, stream), "cudnnSetStream");
    SLUICE_CUDA(cudaMallocAsync, &workspace, kWorkspace, stream);
  } catch (...) {
    if (blas) cublasLtDestroy(blas);
    if (dnn) cudnnDestroy(dnn);
    throw;
  }
}

Libraries::~Libraries() {
  cudaFreeAsync(workspace, stream);
  cudnnDestroy(dnn);
  cublasLtDestroy(blas);
}

std::shared_ptr<Libraries> make_libraries(int card, cudaStream_t stream) {
  return std::make_shared<Libraries>(card, stream);
}

bool allows_tf32() {
  static const bool allowed = [] {
    const char* const text = std::getenv("SLUICE_TF32");
    return text && std::string_view(text) == "1";
  }();
  return allowed;
}

}  // namespace sluice::cuda
