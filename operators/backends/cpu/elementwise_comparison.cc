#include "sluice/operators/backends/cpu/elementwise_rows.h"

namespace sluice::cpu_backend {
namespace {

/// y[i] = condition[i] ? a[i] : b[i]; a or b may be one number for all.
template <bool one_a, bool one_b>
struct Select {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const std::uint8_t* condition, const T* a, const T* b, T* y,
                                     std::int64_t n) const {
    const T first_a = *a, first_b = *b;
    for (std::int64_t i = 0; i < n; ++i) {
      const T of_a = one_a ? first_a : a[i], of_b = one_b ? first_b : b[i];
      y[i] = condition[i] != 0 ? of_a : of_b;
    }
  }
};

template <class T>
struct Where {
  static void run(ArrayContext& c) {
    const auto* condition = c.input(0).as<std::uint8_t>();
    const T* a = c.input(1).as<T>();
    const T* b = c.input(2).as<T>();
    T* y = c.output().as<T>();
    for_each_row<4>(
        {&c.output(), &c.input(0), &c.input(1), &c.input(2)}, kElementwiseGrain,
        [&](auto at, std::int64_t n, auto step) {
          if (n == 0) return;
          const std::uint8_t* chosen = condition + at[1];
          const T *of_a = a + at[2], *of_b = b + at[3];
          T* out = y + at[0];
          if (step[0] == 1 && step[1] == 1 && step[2] <= 1 && step[3] <= 1 && step[2] >= 0 && step[3] >= 0) {
            if (step[2] == 1 && step[3] == 1) return dispatch(Select<false, false>{}, chosen, of_a, of_b, out, n);
            if (step[2] == 1) return dispatch(Select<false, true>{}, chosen, of_a, of_b, out, n);
            if (step[3] == 1) return dispatch(Select<true, false>{}, chosen, of_a, of_b, out, n);
            return dispatch(Select<true, true>{}, chosen, of_a, of_b, out, n);
          }
          for (std::int64_t i = 0; i < n; ++i) {
            out[i * step[0]] = chosen[i * step[1]] != 0 ? of_a[i * step[2]] : of_b[i * step[3]];
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
