// Optimiser steps, their gate and sums of terms of the reference backend.
#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/reference/kernels.h"
#include "sluice/operators/backends/reference/plain_loops.h"
#include "sluice/operators/optimizer_steps.h"

namespace sluice::reference {
namespace {

using namespace backends;

template <class T>
struct Sgd {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<SgdAttributes>();
    each_step(c, [&a](const TensorView& g, std::span<const TensorView> y) {
      sgd_step(y[0].as<T>(), y.size() == 2 ? y[1].as<T>() : nullptr, g.as<T>(), g.count(), a.lr, a.momentum,
               a.weight_decay);
    });
  }
};

template <class T>
struct Adam {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<AdamStep>();
    each_step(c, [&a](const TensorView& g, std::span<const TensorView> y) {
      const std::int64_t step = y.size() == 4 ? *y[3].as<std::int64_t>() += 1 : a.step;
      adam_step(y[0].as<T>(), y[1].as<T>(), y[2].as<T>(), g.as<T>(), g.count(), step,
                {a.lr, a.beta1, a.beta2, a.eps, a.weight_decay, a.decoupled});
    });
  }
};

template <class T>
struct Commit {
  static void run(ArrayContext& c) {
    each_step(c, [](const TensorView& value, std::span<const TensorView> y) {
      for (std::int64_t i = 0; i < value.count(); ++i) y[0].as<T>()[i] = value.as<T>()[i];
    });
  }
};

/// It runs if all that the gate reads is good: no more is to be known.
void open_gate(ArrayContext& c) { *c.output().as<std::uint8_t>() = 1; }

/// y = the terms added in order; with `into`, y += that.
template <bool into>
struct AddTerms {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      for (std::int64_t i = 0; i < c.output().count(); ++i) {
        auto total = number(c.input(0).as<T>()[i]);
        for (int k = 1; k < c.inputs(); ++k) total = plus(total, number(c.input(k).as<T>()[i]));
        T& y = c.output().as<T>()[i];
        y = T(into ? plus(number(y), total) : total);
      }
    }
    using C = compute_of<T>;
    static C plus(C a, C b) {
      if constexpr (std::is_integral_v<C>) {
        return static_cast<C>(static_cast<Sum<T>>(a) + static_cast<Sum<T>>(b));  // wraps
      } else {
        return a + b;
      }
    }
  };
};

}  // namespace

void add_optimizer_kernels(Registry& registry) {
  add<Sgd>(registry.get("sgd_step"), kReference, Floating{}, kDense);
  add<Sgd>(registry.get("sgd_momentum_step"), kReference, Floating{}, kDense);
  add<Adam>(registry.get("adam_step"), kReference, Floating{}, kDense);
  add<Commit>(registry.get("commit"), kReference, Committed{}, kDense);
  registry.get("gate").add_kernel(kReference, {DType::u8}, {.run = open_gate});
  add<AddTerms<false>::Make>(registry.get("add_n"), kReference, Sums{}, kDense);
  add<AddTerms<true>::Make>(registry.get("accumulate"), kReference, Sums{}, kDense);
}

}  // namespace sluice::reference
