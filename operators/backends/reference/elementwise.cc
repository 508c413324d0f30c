// Elementwise operators as plain loops over indices, on one thread: the oracle for other backends.
#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/register.h"
#include "sluice/operators/backends/strided_loop.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/functors.h"

namespace sluice {
namespace {

using namespace backends;

template <class F>
struct Unary {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      const T* x = c.input(0).as<T>();
      T* y = c.output().as<T>();
      for_each_element<2>({&c.output(), &c.input(0)}, [&](auto at) { y[at[0]] = F{}(x[at[1]]); });
    }
  };
};

template <class F>
struct Binary {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      using R = decltype(F{}(T{}, T{}));
      const T* a = c.input(0).as<T>();
      const T* b = c.input(1).as<T>();
      R* y = c.output().as<R>();
      for_each_element<3>({&c.output(), &c.input(0), &c.input(1)},
                          [&](auto at) { y[at[0]] = F{}(a[at[1]], b[at[2]]); });
    }
  };
};

template <class F>
struct WithScalar {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      using R = decltype(F{}(T{}, T{}));
      const auto& [value, left] = c.attributes<ScalarAttributes>();
      const T s = value.as<T>();
      const T* x = c.input(0).as<T>();
      R* y = c.output().as<R>();
      for_each_element<2>({&c.output(), &c.input(0)},
                          [&](auto at) { y[at[0]] = left ? F{}(s, x[at[1]]) : F{}(x[at[1]], s); });
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

template <class F, template <class> class Make>
void add_typed(const Operator& row) {
  if constexpr (F::integers) {
    add<Make>(row, Arithmetic{}, kReference);
  } else {
    add<Make>(row, Floating{}, kReference);
  }
}

}  // namespace

void builtin::add_reference_elementwise(Registry& registry) {
  functors::Unary::each([&]<class F>() {
    add_typed<F, Unary<F>::template Make>(registry.get(F::name));
    add<Binary<functors::Derivative<F>>::template Make>(registry.get(F::grad_name), Floating{}, kReference);
  });
  const auto binary = [&]<class F>() {
    add_typed<F, Binary<F>::template Make>(registry.get(F::name));
    add_typed<F, WithScalar<F>::template Make>(registry.get(F::scalar_name));
  };
  functors::Binary::each(binary);
  functors::Comparison::each(binary);
  add<Where>(registry.get("where"), Types<float, double, std::int8_t, std::uint8_t, std::int32_t, std::int64_t, bool>{},
             kReference);
}

}  // namespace sluice
