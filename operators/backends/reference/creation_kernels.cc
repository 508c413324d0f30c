// Fills and random numbers of the reference backend.
#include <stdexcept>

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/reference/each_element.h"
#include "sluice/operators/backends/reference/kernels.h"
#include "sluice/operators/backends/reference/plain_loops.h"
#include "sluice/operators/counting.h"
#include "sluice/operators/uniform_range.h"
#include "sluice/resources/philox.h"
#include "sluice/resources/value_errors.h"

namespace sluice::reference {
namespace {

using namespace backends;

void fill(ArrayContext& c) {
  const auto& a = c.attributes<FillAttributes>();
  with_type(c.output().dtype, [&]<class T>() {
    T* y = c.output().as<T>();
    for_each_element(c.output(), [&](std::int64_t i, std::int64_t at) {
      const bool whole = a.value.is_integer && a.step.is_integer;
      y[at] = whole ? converted<T>(counted(a.value.integer, i, a.step.integer))
                    : converted<T>(a.value.as<double>() + static_cast<double>(i) * a.step.as<double>());
    });
  });
}

template <bool is_normal>
struct Random {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      using C = compute_of<T>;
      const auto& a = c.attributes<RandomAttributes>();
      const ElementKey key(RandomKey{a.seed, a.stream, a.draw});
      const C mean = static_cast<C>(a.a), deviation = static_cast<C>(a.b);
      const UniformRange<C> range(a);
      const DrawWindow window(a);
      T* y = c.output().as<T>();
      for_each_element(c.output(), [&](std::int64_t i, std::int64_t at) {
        const std::uint64_t e = window(i);
        C u;
        if constexpr (std::is_same_v<C, float>) {
          u = is_normal ? normal_f32(key, e) : uniform01_f32(key, e);
        } else {
          u = is_normal ? normal_f64(key, e) : uniform01_f64(key, e);
        }
        y[at] = T(is_normal ? mean + deviation * u : range(u));
      });
    }
  };
};

template <class T>
struct Dropout {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<DropoutAttributes>();
    const ElementKey key(RandomKey{a.seed, a.stream, a.draw});
    const DropoutChoice<compute_of<T>> choice(a.p);
    const DrawWindow window(a);
    const T* x = c.input(0).as<T>();
    T* y = c.output().as<T>();
    std::int64_t i = 0;
    for_each_element<2>({&c.output(), &c.input(0)},
                        [&](auto at) { y[at[0]] = T(choice(key.word32(window(i++)), number(x[at[1]]))); });
  }
};

template <class T>
struct RandomIntegers {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<RandomIntegerAttributes>();
    const ElementKey key(RandomKey{a.seed, a.stream, a.draw});
    T* y = c.output().as<T>();
    for_each_element(c.output(), [&](std::int64_t i, std::int64_t at) {
      y[at] = static_cast<T>(uniform_int(key, static_cast<std::uint64_t>(i), a.low, a.high));
    });
  }
};

void bernoulli(ArrayContext& c) {
  const auto* p = c.input(1).as<double>();
  for (std::int64_t i = 0; i < c.output().count(); ++i) {
    if (!(p[i] >= 0 && p[i] <= 1)) throw std::out_of_range(probability_outside(p[i], i));
    c.output().as<bool>()[i] = c.input(0).as<double>()[i] < p[i];
  }
}

}  // namespace

void add_creation_kernels(Registry& registry) {
  add(registry.get("fill"), kReference, fill);
  add<Random<false>::Make>(registry.get("uniform"), kReference, Floating{});
  add<Random<true>::Make>(registry.get("normal"), kReference, Floating{});
  add<Dropout>(registry.get("dropout"), kReference, Floating{});
  add<RandomIntegers>(registry.get("randint"), kReference,
                      Types<std::int8_t, std::uint8_t, std::int32_t, std::int64_t>{});
  Kernel of_draws = kDense;
  of_draws.run = bernoulli;
  registry.get("bernoulli").add_kernel(kReference, {DType::f64}, of_draws);
}

}  // namespace sluice::reference
