// Elementwise kernels of the CPU backend for f16 and bf16, from those loops that f32 has.
#pragma once

#include <algorithm>
#include <type_traits>

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cpu/convert.h"
#include "sluice/operators/backends/cpu/elementwise_loops.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/backends/cpu/strided_loop.h"

namespace sluice::cpu_backend {

/// f16 and bf16 are computed in f32: stretches of a row are widened, go through the loop for f32, and are rounded once.
template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
inline constexpr std::int64_t kStretch = 1024;

template <class T>
void widen_stretch(const T* x, std::int64_t step, float* to, std::int64_t n) {
  if (step == 1) return dispatch(Widen{}, x, to, n);
  if (step == 0) return void(std::fill(to, to + n, static_cast<float>(*x)));
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(x[i * step]);
}
/// Results that are not numbers (bool) are copied.
template <class R, class T>
void store_stretch(const R* from, T* y, std::int64_t step, std::int64_t n) {
  if constexpr (std::is_same_v<R, float>) {
    if (step == 1) return dispatch(Narrow{}, from, y, n);
  }
  for (std::int64_t i = 0; i < n; ++i) y[i * step] = T(from[i]);
}
/// What a functor's results of f32 numbers are stored as, beside operands of type T.
template <class T, class R>
using StoredHalf = std::conditional_t<std::is_same_v<R, float>, T, R>;

template <class F, class T>
void half_unary(ArrayContext& c) {
  using R = decltype(F{}(0.0F));
  const T* x = c.input(0).as<T>();
  auto* y = c.output().as<StoredHalf<T, R>>();
  for_each_row<2>({&c.output(), &c.input(0)}, kElementwiseGrain, [&](auto at, std::int64_t length, auto step) {
    float in[kStretch];
    R out[kStretch];
    for (std::int64_t i = 0; i < length; i += kStretch) {
      const std::int64_t n = std::min(kStretch, length - i);
      widen_stretch(x + at[1] + i * step[1], step[1], in, n);
      dispatch(detail::UnaryLoop<F>{{}}, static_cast<const float*>(in), static_cast<R*>(out), n);
      store_stretch(static_cast<const R*>(out), y + at[0] + i * step[0], step[0], n);
    }
  });
}

template <class F, class T>
void half_binary(ArrayContext& c) {
  using R = decltype(F{}(0.0F, 0.0F));
  const T *a = c.input(0).as<T>(), *b = c.input(1).as<T>();
  auto* y = c.output().as<StoredHalf<T, R>>();
  for_each_row<3>({&c.output(), &c.input(0), &c.input(1)}, kElementwiseGrain,
                  [&](auto at, std::int64_t length, auto step) {
                    float left[kStretch], right[kStretch];
                    R out[kStretch];
                    for (std::int64_t i = 0; i < length; i += kStretch) {
                      const std::int64_t n = std::min(kStretch, length - i);
                      widen_stretch(a + at[1] + i * step[1], step[1], left, n);
                      widen_stretch(b + at[2] + i * step[2], step[2], right, n);
                      dispatch(detail::BinaryLoop<F>{{}}, static_cast<const float*>(left),
                               static_cast<const float*>(right), static_cast<R*>(out), n);
                      store_stretch(static_cast<const R*>(out), y + at[0] + i * step[0], step[0], n);
                    }
                  });
}

template <class F, class T>
void half_with_number(ArrayContext& c) {
  using R = decltype(F{}(0.0F, 0.0F));
  const auto& [value, left] = c.attributes<ScalarAttributes>();
  const float s = value.as<float>();
  const bool on_left = left;
  const T* x = c.input(0).as<T>();
  auto* y = c.output().as<StoredHalf<T, R>>();
  for_each_row<2>({&c.output(), &c.input(0)}, kElementwiseGrain, [&](auto at, std::int64_t length, auto step) {
    float in[kStretch];
    R out[kStretch];
    for (std::int64_t i = 0; i < length; i += kStretch) {
      const std::int64_t n = std::min(kStretch, length - i);
      widen_stretch(x + at[1] + i * step[1], step[1], in, n);
      if (on_left) {
        dispatch(detail::ScalarLeftLoop<F>{{}}, s, static_cast<const float*>(in), static_cast<R*>(out), n);
      } else {
        dispatch(detail::ScalarRightLoop<F>{{}}, static_cast<const float*>(in), s, static_cast<R*>(out), n);
      }
      store_stretch(static_cast<const R*>(out), y + at[0] + i * step[0], step[0], n);
    }
  });
}

}  // namespace sluice::cpu_backend
