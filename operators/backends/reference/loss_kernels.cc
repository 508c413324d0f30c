// Losses of the reference backend.
#include <vector>

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/reference/kernels.h"
#include "sluice/operators/backends/reference/plain_loops.h"

namespace sluice::reference {
namespace {

using namespace backends;

template <class T>
struct CrossEntropy {
  static void run(ArrayContext& c) {
    const std::int64_t rows = c.input(0).shape[0], classes = c.input(0).shape[1];
    std::vector<double> losses(static_cast<std::size_t>(rows));
    softmax_cross_entropy(rows, classes, c.input(0).as<T>(), c.input(1).as<std::int64_t>(), losses.data(),
                          c.output(1).as<T>());
    double total = 0;
    for (double loss : losses) total += loss;
    *c.output(0).as<T>() = element<T>(total * c.attributes<LossAttributes>().scale);
  }
};

template <class T>
struct CrossEntropyGrad {
  static void run(ArrayContext& c) {
    using C = compute_of<T>;
    const C scale = static_cast<C>(c.attributes<LossAttributes>().scale) * number(*c.input(2).as<T>());
    softmax_cross_entropy_grad(c.input(0).shape[0], c.input(0).shape[1], c.input(0).as<T>(),
                               c.input(1).as<std::int64_t>(), static_cast<const T*>(nullptr), scale,
                               c.output().as<T>());
  }
};

}  // namespace

void add_loss_kernels(Registry& registry) {
  add<CrossEntropy>(registry.get("cross_entropy"), kReference, Floating{}, kDense);
  add<CrossEntropyGrad>(registry.get("cross_entropy_grad"), kReference, Floating{}, kDense);
}

}  // namespace sluice::reference
