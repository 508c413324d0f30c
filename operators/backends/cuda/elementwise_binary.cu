// Operators of two arrays, or of an array and a number.
#include "sluice/operators/backends/cuda/elementwise.h"

namespace sluice::cuda {

void add_binary_kernels(const Rows& rows) {
  functors::Binary::each([&]<class F>() {
    add_typed<F, Binary<F>::template Make>(rows, F::name);
    add_typed<F, WithScalar<F>::template Make>(rows, F::scalar_name);
  });
}

}  // namespace sluice::cuda
