// Losses of the CPU backend as kernels.
#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cpu/fused.h"
#include "sluice/operators/backends/cpu/kernels.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;

template <class T>
struct CrossEntropy {
  static void run(ArrayContext& c) {
    const std::int64_t rows = c.input(0).shape[0], classes = c.input(0).shape[1];
    const Scratch losses = c.scratch(static_cast<std::size_t>(rows) * sizeof(T));
    softmax_cross_entropy(rows, classes, c.input(0).as<T>(), c.input(1).as<std::int64_t>(), losses.as<T>(),
                          c.output(1).as<T>());
    double total = 0;
    for (std::int64_t i = 0; i < rows; ++i) total += static_cast<double>(losses.as<T>()[i]);
    *c.output(0).as<T>() = static_cast<T>(total * c.attributes<LossAttributes>().scale);
  }
};
template <class T>
struct CrossEntropyGrad {
  static void run(ArrayContext& c) {
    const std::int64_t rows = c.input(0).shape[0], classes = c.input(0).shape[1];
    const T scale = static_cast<T>(c.attributes<LossAttributes>().scale) * *c.input(2).as<T>();
    softmax_cross_entropy_grad(rows, classes, c.input(0).as<T>(), c.input(1).as<std::int64_t>(),
                               static_cast<const T*>(nullptr), scale, c.output().as<T>());
  }
};

}  // namespace

void add_loss_kernels(Registry& registry) {
  Kernel with_losses = kDense;
  with_losses.scratch = [](const Signature& call) {
    return static_cast<std::size_t>(call.shape(0)[0]) * size_of(call.dtype());
  };
  add<CrossEntropy>(registry.get("cross_entropy"), kCpu, Direct<Floating>{}, with_losses);
  add<CrossEntropyGrad>(registry.get("cross_entropy_grad"), kCpu, Direct<Floating>{}, kDense);
}

}  // namespace sluice::cpu_backend
