// What the files of elementwise kernels share.
#pragma once

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cuda/elements.h"
#include "sluice/operators/backends/cuda/kernels.h"
#include "sluice/operators/functors.h"

namespace sluice::cuda {

/// A number in the type in which kernels compute.
template <class T>
SLUICE_HD compute_of<T> number(T x) {
  return static_cast<compute_of<T>>(x);
}
/// What elements of T are summed in: floating ones in double, so that a sum of any length is rounded once.
template <class T>
using TotalOf = std::conditional_t<is_floating(dtype_of<T>), double, compute_of<T>>;
/// What a functor gives for elements of type T, as it is stored: an element of type T, or what else it is (bool).
template <class T, class Value>
using Stored = std::conditional_t<std::is_same_v<Value, compute_of<T>>, T, Value>;
template <class F, class T>
using UnaryResult = Stored<T, decltype(F{}(compute_of<T>{}))>;
template <class F, class T>
using Result = Stored<T, decltype(F{}(compute_of<T>{}, compute_of<T>{}))>;

template <class F, class T>
struct UnaryOf {
  __device__ UnaryResult<F, T> operator()(T x) const { return static_cast<UnaryResult<F, T>>(F{}(number(x))); }
};
template <class F, class T>
struct BinaryOf {
  __device__ Result<F, T> operator()(T a, T b) const { return static_cast<Result<F, T>>(F{}(number(a), number(b))); }
};
template <class F, class T>
struct WithScalarOf {
  compute_of<T> scalar;
  bool left;
  __device__ Result<F, T> operator()(T x) const {
    return static_cast<Result<F, T>>(left ? F{}(scalar, number(x)) : F{}(number(x), scalar));
  }
};

template <class F>
struct Unary {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      for_elements<UnaryResult<F, T>, T>(Issue(c), UnaryOf<F, T>{}, c.output(), c.input(0));
    }
  };
};
template <class F>
struct Binary {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      for_elements<Result<F, T>, T, T>(Issue(c), BinaryOf<F, T>{}, c.output(), c.input(0), c.input(1));
    }
  };
};
template <class F>
struct WithScalar {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      const auto& attributes = c.attributes<ScalarAttributes>();
      for_elements<Result<F, T>, T>(Issue(c),
                                    WithScalarOf<F, T>{attributes.value.template as<compute_of<T>>(), attributes.left},
                                    c.output(), c.input(0));
    }
  };
};

template <class F, template <class> class Make>
void add_typed(const Rows& rows, const char* row) {
  rows.add<Make>(row, backends::TypesOf<F>{});
}

}  // namespace sluice::cuda
