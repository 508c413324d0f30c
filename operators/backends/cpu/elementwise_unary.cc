#include "sluice/operators/backends/cpu/elementwise_rows.h"

namespace sluice::cpu_backend {

void add_unary_kernels(Registry& registry) {
  functors::Unary::each([&]<class F>() {
    add_typed<F, UnaryKernel<F>::template Make>(registry.get(F::name));
    if constexpr (F::keeps_input || F::keeps_output) {
      add_typed<functors::Derivative<F>, BinaryKernel<functors::Derivative<F>>::template Make>(
          registry.get(F::grad_name));
    }
  });
  functors::Predicate::each([&]<class F>() { add_typed<F, UnaryKernel<F>::template Make>(registry.get(F::name)); });
  functors::WithNumber::each([&]<class F>() { add_typed<F, ScalarKernel<F>::template Make>(registry.get(F::name)); });
}

}  // namespace sluice::cpu_backend
