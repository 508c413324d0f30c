// Products of the reference backend.
#include <algorithm>

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/reference/kernels.h"
#include "sluice/operators/backends/reference/plain_loops.h"
#include "sluice/operators/batches.h"

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
struct BatchMatmul {
  static void run(ArrayContext& c) {
    const auto& [trans_a, trans_b] = c.attributes<MatmulAttributes>();
    const TensorView &a = c.input(0), &b = c.input(1), &y = c.output();
    const Dims axes = batch_axes(y.shape), of_a = batch_strides(a.shape, a.strides, y.shape),
               of_b = batch_strides(b.shape, b.strides, y.shape);
    const int i = a.shape.rank() - 2, j = b.shape.rank() - 2, out = y.shape.rank() - 2;
    for (std::int64_t at = 0; at < axes.count(); ++at) {
      gemm<T>(trans_a, trans_b, y.shape[out], y.shape[out + 1], a.shape[trans_a ? i : i + 1], 1,
              a.as<T>() + batch_offset(at, axes, of_a), a.shape[i + 1], b.as<T>() + batch_offset(at, axes, of_b),
              b.shape[j + 1], 0, y.as<T>() + at * y.shape[out] * y.shape[out + 1], y.shape[out + 1]);
    }
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
  add<BatchMatmul>(registry.get("batch_matmul"), kReference, Sums{}, kDense);
  add<Linear>(registry.get("linear"), kReference, Floating{}, kDense);
  add<Linear>(registry.get("linear_relu"), kReference, Floating{}, kDense);
}

}  // namespace sluice::reference
