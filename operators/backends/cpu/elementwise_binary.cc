#include "sluice/operators/backends/cpu/elementwise_rows.h"

namespace sluice::cpu_backend {

void add_binary_kernels(Registry& registry) {
  functors::Binary::each([&]<class F>() {
    add_typed<F, BinaryKernel<F>::template Make>(registry.get(F::name));
    add_typed<F, ScalarKernel<F>::template Make>(registry.get(F::scalar_name));
  });
}

}  // namespace sluice::cpu_backend
