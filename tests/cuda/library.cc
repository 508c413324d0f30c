// The backend is linked into the tests, and takes the place of the library that programs load.
#include "sluice/resources/cuda/library.h"

extern "C" const sluice::cuda::Library* sluice_cuda_library(const sluice::cuda::Host& host);

namespace {
const bool linked_in = (sluice::cuda::use_library(sluice_cuda_library), true);
}
