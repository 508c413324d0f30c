// Comparisons, and the choice between two arrays.
#include "sluice/operators/backends/cuda/elementwise.h"

namespace sluice::cuda {
namespace {

template <class T>
struct Choose {
  __device__ T operator()(bool condition, T a, T b) const { return condition ? a : b; }
};
template <class T>
struct Where {
  static void run(ArrayContext& c) {
    for_elements<T, bool, T, T>(Issue(c), Choose<T>{}, c.output(), c.input(0), c.input(1), c.input(2));
  }
};

}  // namespace

void add_comparison_kernels(const Rows& rows) {
  functors::Comparison::each([&]<class F>() {
    add_typed<F, Binary<F>::template Make>(rows, F::name);
    add_typed<F, WithScalar<F>::template Make>(rows, F::scalar_name);
  });
  rows.add<Where>("where", backends::AllTypes{});
}

}  // namespace sluice::cuda
