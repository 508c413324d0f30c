// Elementwise operators of the reference backend.
#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/reference/each_element.h"
#include "sluice/operators/backends/reference/kernels.h"
#include "sluice/operators/backends/reference/plain_loops.h"
#include "sluice/operators/functors.h"

namespace sluice::reference {
namespace {

using namespace backends;

/// What a functor gives for elements of type T, as it is stored: an element of type T, or what else it is (bool).
template <class T, class Value>
using Stored = std::conditional_t<std::is_same_v<Value, compute_of<T>>, T, Value>;

template <class F>
struct Unary {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      using R = Stored<T, decltype(F{}(compute_of<T>{}))>;
      const T* x = c.input(0).as<T>();
      R* y = c.output().as<R>();
      for_each_element<2>({&c.output(), &c.input(0)}, [&](auto at) { y[at[0]] = R(F{}(number(x[at[1]]))); });
    }
  };
};

template <class F>
struct Binary {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      using R = Stored<T, decltype(F{}(compute_of<T>{}, compute_of<T>{}))>;
      const T* a = c.input(0).as<T>();
      const T* b = c.input(1).as<T>();
      R* y = c.output().as<R>();
      for_each_element<3>({&c.output(), &c.input(0), &c.input(1)},
                          [&](auto at) { y[at[0]] = R(F{}(number(a[at[1]]), number(b[at[2]]))); });
    }
  };
};

template <class F>
struct WithScalar {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      using R = Stored<T, decltype(F{}(compute_of<T>{}, compute_of<T>{}))>;
      const auto& [value, left] = c.attributes<ScalarAttributes>();
      const auto s = value.as<compute_of<T>>();
      const T* x = c.input(0).as<T>();
      R* y = c.output().as<R>();
      for_each_element<2>({&c.output(), &c.input(0)},
                          [&](auto at) { y[at[0]] = R(left ? F{}(s, number(x[at[1]])) : F{}(number(x[at[1]]), s)); });
    }
  };
};

template <class T>
struct Where {
  static void run(ArrayContext& c) {
    const bool* condition = c.input(0).as<bool>();
    const T* a = c.input(1).as<T>();
    const T* b = c.input(2).as<T>();
    T* y = c.output().as<T>();
    for_each_element<4>({&c.output(), &c.input(0), &c.input(1), &c.input(2)},
                        [&](auto at) { y[at[0]] = condition[at[1]] ? a[at[2]] : b[at[3]]; });
  }
};

}  // namespace

void add_elementwise_kernels(Registry& registry) {
  const auto unary = [&]<class F>() { add<Unary<F>::template Make>(registry.get(F::name), kReference, TypesOf<F>{}); };
  functors::Unary::each([&]<class F>() {
    unary.template operator()<F>();
    if constexpr (F::keeps_input || F::keeps_output) {
      add<Binary<functors::Derivative<F>>::template Make>(registry.get(F::grad_name), kReference, Floating{});
    }
  });
  functors::Predicate::each(unary);
  functors::WithNumber::each(
      [&]<class F>() { add<WithScalar<F>::template Make>(registry.get(F::name), kReference, TypesOf<F>{}); });
  const auto binary = [&]<class F>() {
    add<Binary<F>::template Make>(registry.get(F::name), kReference, TypesOf<F>{});
    add<WithScalar<F>::template Make>(registry.get(F::scalar_name), kReference, TypesOf<F>{});
  };
  functors::Binary::each(binary);
  functors::Comparison::each(binary);
  add<Where>(registry.get("where"), kReference, AllTypes{});
}

}  // namespace sluice::reference
