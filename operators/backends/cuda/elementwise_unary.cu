// Operators of one array, and their gradients.
#include "sluice/operators/backends/cuda/elementwise.h"

namespace sluice::cuda {

void add_unary_kernels(const Rows& rows) {
  functors::Unary::each([&]<class F>() {
    add_typed<F, Unary<F>::template Make>(rows, F::name);
    if constexpr (F::keeps_input || F::keeps_output) {
      rows.add<Binary<functors::Derivative<F>>::template Make>(F::grad_name, backends::Floating{});
    }
  });
  functors::Predicate::each([&]<class F>() { add_typed<F, Unary<F>::template Make>(rows, F::name); });
  functors::WithNumber::each([&]<class F>() { add_typed<F, WithScalar<F>::template Make>(rows, F::name); });
}

}  // namespace sluice::cuda
