// Elementwise kernels of the CPU backend from a scalar functor: rows of joined axes, with vectorised loops where a row
// is contiguous or constant.
#pragma once

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cpu/elementwise_halves.h"
#include "sluice/operators/backends/cpu/elementwise_loops.h"
#include "sluice/operators/backends/cpu/fast_functors.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/backends/cpu/strided_loop.h"
#include "sluice/operators/functors.h"

namespace sluice::cpu_backend {

template <class F>
struct UnaryKernel {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      if constexpr (kIsHalf<T>) {
        half_unary<typename Fast<F, float>::type, T>(c);
      } else {
        plain(c);
      }
    }
    static void plain(ArrayContext& c) {
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
      if constexpr (kIsHalf<T>) {
        half_binary<typename Fast<F, float>::type, T>(c);
      } else {
        plain(c);
      }
    }
    static void plain(ArrayContext& c) {
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
      if constexpr (kIsHalf<T>) {
        half_with_number<F, T>(c);
      } else {
        plain(c);
      }
    }
    static void plain(ArrayContext& c) {
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
  if constexpr (F::takes != functors::DTypes::bits)
    backends::add<Make>(row, backends::kCpu, backends::Types<Float16, BFloat16>{});
}

}  // namespace sluice::cpu_backend
