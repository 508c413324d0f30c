// The generator's words as a device makes them, for random_test.cc.
#include "random_kernels.h"

#include "sluice/operators/backends/cuda/kernel.h"
#include "sluice/resources/philox.h"

namespace sluice::testing {
namespace {

struct WordsAt {
  std::int64_t *words, *numbers;
  ElementKey key;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(words);
    visit(numbers);
  }
  __device__ void operator()(std::int64_t i) const {
    words[i] = key.word32(static_cast<std::uint64_t>(i));
    numbers[i] = uniform_int(key, static_cast<std::uint64_t>(i), kLowest, kHighest);
  }
};

}  // namespace

void fill_with_random_integers(ArrayContext& c) {
  cuda::for_index(cuda::Issue(c), c.output().count(),
                  WordsAt{c.output(0).as<std::int64_t>(), c.output(1).as<std::int64_t>(), ElementKey(kIntegersOf)});
}

}  // namespace sluice::testing
