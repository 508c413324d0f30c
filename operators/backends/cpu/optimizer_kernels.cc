// Optimiser steps and sums of terms of the CPU backend as kernels.
#include <algorithm>
#include <cstring>

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cpu/elementwise_loops.h"
#include "sluice/operators/backends/cpu/fused.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/optimizer_steps.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;

template <class T>
struct Sgd {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<SgdAttributes>();
    each_step(c, [&a](const TensorView& g, std::span<const TensorView> y) {
      sgd_momentum_step(y[0].as<T>(), y.size() == 2 ? y[1].as<T>() : nullptr, g.as<T>(), g.count(),
                        static_cast<T>(a.lr), static_cast<T>(a.momentum), static_cast<T>(a.weight_decay));
    });
  }
};
template <class T>
struct Adam {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<AdamStep>();
    const AdamSettings<T> settings{static_cast<T>(a.lr),  static_cast<T>(a.beta1),        static_cast<T>(a.beta2),
                                   static_cast<T>(a.eps), static_cast<T>(a.weight_decay), a.decoupled};
    each_step(c, [&](const TensorView& g, std::span<const TensorView> y) {
      const std::int64_t step = y.size() == 4 ? *y[3].as<std::int64_t>() += 1 : a.step;
      adam_step(y[0].as<T>(), y[1].as<T>(), y[2].as<T>(), g.as<T>(), g.count(), step, settings);
    });
  }
};

template <class T>
struct Commit {
  static void run(ArrayContext& c) {
    each_step(c, [](const TensorView& value, std::span<const TensorView> y) {
      parallel_for(value.count(), kElementwiseGrain, [&](std::int64_t begin, std::int64_t end) {
        std::memcpy(y[0].as<T>() + begin, value.as<T>() + begin, static_cast<std::size_t>(end - begin) * sizeof(T));
      });
    });
  }
};

struct PlusTotal {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const T* x, T* y, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) y[i] += x[i];
  }
};
struct PairTotal {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const T* a, const T* b, T* y, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
  }
};

/// y = the terms added in order; with `into`, y += that.
template <bool into>
struct AddTerms {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      T* y = c.output().as<T>();
      constexpr std::int64_t piece = 2048;  // stays in the first-level cache
      parallel_for(c.output().count(), kElementwiseGrain, [&](std::int64_t begin, std::int64_t end) {
        T buffer[piece];
        for (std::int64_t at = begin; at < end; at += piece) {
          const std::int64_t n = std::min(piece, end - at);
          T* out = into ? buffer : y + at;
          if (c.inputs() == 1) {
            std::memcpy(out, c.input(0).as<T>() + at, static_cast<std::size_t>(n) * sizeof(T));
          } else {
            const T* first = c.input(0).as<T>();
            const T* second = c.input(1).as<T>();
            dispatch(PairTotal{}, first + at, second + at, out, n);
          }
          for (int k = 2; k < c.inputs(); ++k) {
            const T* term = c.input(k).as<T>();
            dispatch(PlusTotal{}, term + at, out, n);
          }
          if constexpr (into) dispatch(PlusTotal{}, static_cast<const T*>(buffer), y + at, n);
        }
      });
    }
  };
};

}  // namespace

void add_optimizer_kernels(Registry& registry) {
  add<Sgd>(registry.get("sgd_step"), kCpu, Direct<Floating>{}, kDense);
  add<Sgd>(registry.get("sgd_momentum_step"), kCpu, Direct<Floating>{}, kDense);
  add<Adam>(registry.get("adam_step"), kCpu, Direct<Floating>{}, kDense);
  add<Commit>(registry.get("commit"), kCpu, Committed{}, kDense);
  add<AddTerms<false>::Make>(registry.get("add_n"), kCpu, Direct<Arithmetic>{}, kDense);
  add<AddTerms<true>::Make>(registry.get("accumulate"), kCpu, Direct<Arithmetic>{}, kDense);
}

}  // namespace sluice::cpu_backend
