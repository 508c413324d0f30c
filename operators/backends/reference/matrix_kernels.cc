// Products of the reference backend.
#include <algorithm>

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/reference/kernels.h"
#include "sluice/operators/backends/reference/plain_loops.h"

namespace sluice::reference {
namespace {

using namespace backends;

template <class T>
struct Matmul {
  static void run(ArrayContext& c) {
    const auto& [trans_a, trans_b] = c.attributes<MatmulAttributes>();
    const Dims &a = c.input(0).shape, &b = c.input(1).shape, &y = c.output().shape;
    gemm<T>(trans_a, trans_b, y[0], y[1], a[trans_a ? 0 : 1], 1, c.input(0).as<T>(), a[1], c.input(1).as<T>(), b[1], 0,
            c.output().as<T>(), y[1]);
  }
};

template <class T>
struct Linear {
  static void run(ArrayContext& c) {
    const Dims& y = c.output().shape;
    linear(y[0], y[1], c.input(0).shape[1], c.input(0).as<T>(), c.input(1).as<T>(),
           c.inputs() == 3 ? c.input(2).as<T>() : nullptr, c.attributes<LinearAttributes>().relu, c.output().as<T>());
  }
};

}  // namespace

void add_matrix_kernels(Registry& registry) {
  add<Matmul>(registry.get("matmul"), kReference, Sums{}, kDense);
  add<Linear>(registry.get("linear"), kReference, Floating{}, kDense);
  add<Linear>(registry.get("linear_relu"), kReference, Floating{}, kDense);
}

}  // namespace sluice::reference
