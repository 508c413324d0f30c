#include "sluice/operators/backends/cpu/elementwise_rows.h"

namespace sluice::cpu_backend {
namespace {

template <class T>
struct Where {
  static void run(ArrayContext& c) {
    const bool* condition = c.input(0).as<bool>();
    const T* a = c.input(1).as<T>();
    const T* b = c.input(2).as<T>();
    T* y = c.output().as<T>();
    for_each_row<4>({&c.output(), &c.input(0), &c.input(1), &c.input(2)}, kElementwiseGrain,
                    [&](auto at, std::int64_t n, auto step) {
                      for (std::int64_t i = 0; i < n; ++i) {
                        y[at[0] + i * step[0]] =
                            condition[at[1] + i * step[1]] ? a[at[2] + i * step[2]] : b[at[3] + i * step[3]];
                      }
                    });
  }
};

}  // namespace

void add_comparison_kernels(Registry& registry) {
  functors::Comparison::each([&]<class F>() {
    add_typed<F, BinaryKernel<F>::template Make>(registry.get(F::name));
    add_typed<F, ScalarKernel<F>::template Make>(registry.get(F::scalar_name));
  });
  backends::add<Where>(registry.get("where"), kCpu, backends::AllTypes{});
}

}  // namespace sluice::cpu_backend
