// The backend is linked into the tests, and is opened when a program of it would load it.
#include "sluice/resources/cuda/library.h"

#include <cuda_double/cuda_double.h>

#include "support.h"

extern "C" const sluice::cuda::Library* sluice_cuda_library(const sluice::cuda::Host& host);

namespace sluice::testing {
namespace {

const cuda::Library* open(const cuda::Host& host) {
  ++times_opened;
  cuda_double::shut_down_at_exit();  // as CUDA does where it is loaded
  return sluice_cuda_library(host);
}

const bool linked_in = (cuda::use_library(open, [] { return counted_cards.load(); }), true);

}  // namespace
}  // namespace sluice::testing
