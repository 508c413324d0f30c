// Fills and random numbers of the CPU backend.
#include <algorithm>
#include <stdexcept>

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cpu/convert.h"
#include "sluice/operators/backends/cpu/draws.h"
#include "sluice/operators/backends/cpu/elementwise_halves.h"
#include "sluice/operators/backends/cpu/elementwise_loops.h"
#include "sluice/operators/backends/cpu/first_bad.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/backends/cpu/strided_loop.h"
#include "sluice/operators/counting.h"
#include "sluice/operators/uniform_range.h"
#include "sluice/resources/philox.h"
#include "sluice/resources/value_errors.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;

void fill(ArrayContext& c) {
  const auto& a = c.attributes<FillAttributes>();
  const TensorView& view = c.output();
  with_type(view.dtype, [&]<class T>() {
    T* y = view.as<T>();
    const bool whole = a.value.is_integer && a.step.is_integer;
    if (a.step.as<double>() == 0) {
      const T value = whole ? convert<T>(a.value.integer) : convert<T>(a.value.as<double>());
      for_each_row<1>({&view}, kElementwiseGrain, [&](auto at, std::int64_t n, auto step) {
        T* out = y + at[0];
        if (step[0] == 1) {
          std::fill(out, out + n, value);
        } else {
          for (std::int64_t i = 0; i < n; ++i) out[i * step[0]] = value;
        }
      });
      return;
    }
    parallel_for(view.count(), kElementwiseGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        y[i] = whole ? convert<T>(counted(a.value.integer, i, a.step.integer))
                     : convert<T>(a.value.as<double>() + static_cast<double>(i) * a.step.as<double>());
      }
    });
  });
}

template <bool is_normal>
struct Random {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      const auto& a = c.attributes<RandomAttributes>();
      const RandomKey key{a.seed, a.stream, a.draw};
      const UniformRange<T> range(a);
      const T mean = static_cast<T>(a.a), deviation = static_cast<T>(a.b);
      const DrawWindow window(a);
      T* y = c.output().as<T>();
      constexpr int each = sizeof(T) == sizeof(float) ? 4 : 2;  // of a block
      parallel_for(c.output().count(), kElementwiseGrain / 8, [&](std::int64_t begin, std::int64_t end) {
        if constexpr (is_normal) {
          draw(key, Normal01{}, window, each, begin, end, y + begin);
          for (std::int64_t i = begin; i < end; ++i) y[i] = mean + deviation * y[i];
        } else {
          draw(key, Uniform01{}, window, each, begin, end, y + begin);
          dispatch(InRange{}, &range, y + begin, end - begin);
        }
      });
    }
  };
  struct InRange {
    template <class T>
    SLUICE_KERNEL_BODY void operator()(const UniformRange<T>* range, T* y, std::int64_t n) const {
      const UniformRange<T> in = *range;
      for (std::int64_t i = 0; i < n; ++i) y[i] = in(y[i]);
    }
  };
};

struct DropoutLoop {
  template <class C>
  SLUICE_KERNEL_BODY void operator()(const DropoutChoice<C>* choice, const std::uint32_t* words, const C* x, C* y,
                                     std::int64_t n) const {
    const DropoutChoice<C> of = *choice;
    for (std::int64_t i = 0; i < n; ++i) y[i] = of(words[i], x[i]);
  }
};

/// One pass over x: the words of a stretch stay in the first-level cache.
template <class T>
struct Dropout {
  static void run(ArrayContext& c) {
    using C = compute_of<T>;
    const auto& a = c.attributes<DropoutAttributes>();
    const RandomKey key{a.seed, a.stream, a.draw};
    const DropoutChoice<C> choice(a.p);
    const DrawWindow window(a);
    const T* x = c.input(0).as<T>();
    T* y = c.output().as<T>();
    parallel_for(c.output().count(), kElementwiseGrain / 8, [&](std::int64_t begin, std::int64_t end) {
      std::uint32_t words[kStretch];
      for (std::int64_t n; begin < end; begin += n) {
        n = std::min(kStretch, end - begin);
        draw(key, Words{}, window, 4, begin, begin + n, static_cast<std::uint32_t*>(words));
        const std::uint32_t* const drawn = words;
        if constexpr (kIsHalf<T>) {
          float in[kStretch], out[kStretch];
          dispatch(Widen{}, x + begin, static_cast<float*>(in), n);
          dispatch(DropoutLoop{}, &choice, drawn, static_cast<const float*>(in), static_cast<float*>(out), n);
          dispatch(Narrow{}, static_cast<const float*>(out), y + begin, n);
        } else {
          dispatch(DropoutLoop{}, &choice, drawn, x + begin, y + begin, n);
        }
      }
    });
  }
};

template <class T>
struct RandomIntegers {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<RandomIntegerAttributes>();
    const RandomKey key{a.seed, a.stream, a.draw};
    T* y = c.output().as<T>();
    parallel_for(c.output().count(), kElementwiseGrain / 8, [&](std::int64_t begin, std::int64_t end) {
      draw(key, UniformIntegers{a.low, a.high}, DrawWindow(RandomAttributes()), 2, begin, end, y + begin);
    });
  }
};

void bernoulli(ArrayContext& c) {
  const auto *draws = c.input(0).as<double>(), *p = c.input(1).as<double>();
  auto* y = c.output().as<bool>();
  const std::int64_t n = c.output().count();
  const std::int64_t bad = first_bad(n, [=](std::int64_t i) {
    y[i] = draws[i] < p[i];
    return !(p[i] >= 0 && p[i] <= 1);
  });
  if (bad < n) throw std::out_of_range(probability_outside(p[bad], bad));
}

}  // namespace

void add_creation_kernels(Registry& registry) {
  add(registry.get("fill"), kCpu, fill);  // ranges are made as new arrays only, so they are dense
  add<Random<false>::Make>(registry.get("uniform"), kCpu, Direct<Floating>{}, kDense);
  add<Random<true>::Make>(registry.get("normal"), kCpu, Direct<Floating>{}, kDense);
  add<Dropout>(registry.get("dropout"), kCpu, Floating{}, kDense);
  add<RandomIntegers>(registry.get("randint"), kCpu, Types<std::int8_t, std::uint8_t, std::int32_t, std::int64_t>{},
                      kDense);
  Kernel of_draws = kDense;
  of_draws.run = bernoulli;
  registry.get("bernoulli").add_kernel(kCpu, {DType::f64}, of_draws);
}

}  // namespace sluice::cpu_backend
