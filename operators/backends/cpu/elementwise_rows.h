// Elementwise kernels of the CPU backend from a scalar functor: rows of joined axes, with vectorised loops where a row
// is contiguous or constant.
#pragma once

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cpu/elementwise_loops.h"
#include "sluice/operators/backends/cpu/fast_math.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/backends/cpu/strided_loop.h"
#include "sluice/operators/functors.h"

namespace sluice::cpu_backend {

/// F itself, except where this backend has a vectorised form in f32.
template <class F, class T>
struct Fast {
  using type = F;
};
struct FastExp {
  template <class T>
  SLUICE_KERNEL_BODY T operator()(T x) const {
    return fast_exp(x);
  }
};
struct FastSigmoid {
  template <class T>
  SLUICE_KERNEL_BODY T operator()(T x) const {
    const T e = fast_exp(-std::fabs(x));
    return (x < T(0) ? e : T(1)) / (T(1) + e);
  }
};
struct FastLog {
  template <class T>
  SLUICE_KERNEL_BODY T operator()(T x) const {
    return fast_log(x);
  }
};
struct FastTanh {
  template <class T>
  SLUICE_KERNEL_BODY T operator()(T x) const {
    return fast_tanh(x);
  }
};
struct FastErf {
  template <class T>
  SLUICE_KERNEL_BODY T operator()(T x) const {
    return fast_erf(x);
  }
};
struct FastGelu {
  SLUICE_KERNEL_BODY float operator()(float x) const { return functors::times_share(x, fast_normal(x)); }
};
struct FastGeluGrad {
  SLUICE_KERNEL_BODY float operator()(float g, float x) const {
    const float bell = fast_exp(-0.5F * x * x);
    return g * (fast_normal(x) + (bell == 0.0F ? 0.0F : x * 0.398942280F * bell));
  }
};
struct FastGeluTanh {
  SLUICE_KERNEL_BODY float operator()(float x) const {
    return functors::times_share(x, FastSigmoid{}(x * (1.59576912F + 0.0713548163F * x * x)));
  }
};
struct FastGeluTanhGrad {
  SLUICE_KERNEL_BODY float operator()(float g, float x) const {
    const float b = x < -40.0F ? -40.0F : (x > 40.0F ? 40.0F : x), square = b * b;
    const float u = b * (1.59576912F + 0.0713548163F * square), slope = 1.59576912F + 0.214064449F * square;
    const float e = fast_exp(-std::fabs(u)), larger = 1.0F / (1.0F + e), smaller = e * larger;
    const float share = u < 0.0F ? smaller : larger, rest = u < 0.0F ? larger : smaller;
    return g * (share * (1.0F + b * rest * slope));
  }
};
struct FastSilu {
  SLUICE_KERNEL_BODY float operator()(float x) const { return functors::times_share(x, FastSigmoid{}(x)); }
};
struct FastSiluGrad {
  SLUICE_KERNEL_BODY float operator()(float g, float x) const {
    const float e = fast_exp(-std::fabs(x)), larger = 1.0F / (1.0F + e), smaller = e * larger;
    const float share = x < 0.0F ? smaller : larger, rest = x < 0.0F ? larger : smaller;
    // x or e is 0 where the other is infinite: the product's limit.
    const float bend = smaller == 0.0F ? 0.0F : x * (share * rest);
    return g * (share + bend);
  }
};
template <>
struct Fast<functors::Exp, float> {
  using type = FastExp;
};
template <>
struct Fast<functors::Log, float> {
  using type = FastLog;
};
template <>
struct Fast<functors::Tanh, float> {
  using type = FastTanh;
};
template <>
struct Fast<functors::Erf, float> {
  using type = FastErf;
};
template <>
struct Fast<functors::Gelu, float> {
  using type = FastGelu;
};
template <>
struct Fast<functors::Derivative<functors::Gelu>, float> {
  using type = FastGeluGrad;
};
template <>
struct Fast<functors::GeluTanh, float> {
  using type = FastGeluTanh;
};
template <>
struct Fast<functors::Derivative<functors::GeluTanh>, float> {
  using type = FastGeluTanhGrad;
};
template <>
struct Fast<functors::Silu, float> {
  using type = FastSilu;
};
template <>
struct Fast<functors::Derivative<functors::Silu>, float> {
  using type = FastSiluGrad;
};
template <>
struct Fast<functors::Sigmoid, float> {
  using type = FastSigmoid;
};

template <class F>
struct UnaryKernel {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      using Function = typename Fast<F, T>::type;
      using R = decltype(Function{}(T{}));
      const T* x = c.input(0).as<T>();
      R* y = c.output().as<R>();
      for_each_row<2>({&c.output(), &c.input(0)}, kElementwiseGrain, [&](auto at, std::int64_t n, auto step) {
        R* out = y + at[0];
        const T* in = x + at[1];
        if (step[0] == 1 && step[1] == 1) return dispatch(detail::UnaryLoop<Function>{{}}, in, out, n);
        for (std::int64_t i = 0; i < n; ++i) out[i * step[0]] = Function{}(in[i * step[1]]);
      });
    }
  };
};

template <class F, class A, class R>
void binary_row(const A* a, std::int64_t step_a, const A* b, std::int64_t step_b, R* y, std::int64_t step_y,
                std::int64_t n) {
  if (step_y == 1 && step_a == 1 && step_b == 1) return dispatch(detail::BinaryLoop<F>{{}}, a, b, y, n);
  if (step_y == 1 && step_a == 1 && step_b == 0) return dispatch(detail::ScalarRightLoop<F>{{}}, a, *b, y, n);
  if (step_y == 1 && step_a == 0 && step_b == 1) return dispatch(detail::ScalarLeftLoop<F>{{}}, *a, b, y, n);
  for (std::int64_t i = 0; i < n; ++i) y[i * step_y] = F{}(a[i * step_a], b[i * step_b]);
}

template <class F>
struct BinaryKernel {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      using Function = typename Fast<F, T>::type;
      using R = decltype(Function{}(T{}, T{}));
      const T* a = c.input(0).as<T>();
      const T* b = c.input(1).as<T>();
      R* y = c.output().as<R>();
      for_each_row<3>({&c.output(), &c.input(0), &c.input(1)}, kElementwiseGrain,
                      [&](auto at, std::int64_t n, auto step) {
                        binary_row<Function, T, R>(a + at[1], step[1], b + at[2], step[2], y + at[0], step[0], n);
                      });
    }
  };
};

template <class F>
struct ScalarKernel {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      using R = decltype(F{}(T{}, T{}));
      const auto& [value, left] = c.attributes<ScalarAttributes>();
      const T s = value.as<T>();
      const bool on_left = left;
      const T* x = c.input(0).as<T>();
      R* y = c.output().as<R>();
      for_each_row<2>({&c.output(), &c.input(0)}, kElementwiseGrain, [&](auto at, std::int64_t n, auto step) {
        if (on_left) {
          binary_row<F, T, R>(&s, 0, x + at[1], step[1], y + at[0], step[0], n);
        } else {
          binary_row<F, T, R>(x + at[1], step[1], &s, 0, y + at[0], step[0], n);
        }
      });
    }
  };
};

template <class F, template <class> class Make>
void add_typed(const Operator& row) {
  backends::add<Make>(row, backends::kCpu, backends::DirectTypesOf<F>{});
}

}  // namespace sluice::cpu_backend
