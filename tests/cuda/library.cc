// The backend is linked into the tests, and takes the place of the library that programs load.
#include "sluice/resources/cuda/library.h"

#include <cstdlib>

extern "C" const sluice::cuda::Library* sluice_cuda_library(const sluice::cuda::Host& host);

namespace {

/// With SLUICE_TEST_LAZY=1 engines count the cards first, and get a provider that asks the library later.
int counted_cards() { return 4; }  // kGpus of tests/support/devices.h, which programs without GoogleTest do not include

const bool linked_in =
    (sluice::cuda::use_library(sluice_cuda_library, std::getenv("SLUICE_TEST_LAZY") ? counted_cards : nullptr), true);

}  // namespace
