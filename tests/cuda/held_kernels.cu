// A kernel that holds its stream up.
#include "held_kernels.h"

#include "sluice/operators/backends/cuda/kernel.h"

namespace sluice::testing {
namespace {

struct Held {
  const std::uint64_t* word;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(word);
  }
  __device__ void operator()(std::int64_t) const {
    while (*static_cast<const volatile std::uint64_t*>(word) == 0) {
    }
  }
};

}  // namespace

void hold_until(ArrayContext& c, const std::uint64_t* word) {
  cuda::Issue(c).launch(cuda::indexed<Held>, {.blocks = 1, .threads = 1}, std::int64_t{1}, Held{word});
}

}  // namespace sluice::testing
