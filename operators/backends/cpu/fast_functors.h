// Functors of elementwise operators in forms that vectorise in f32 (fast_math.h).
#pragma once

#include "sluice/operators/backends/cpu/fast_math.h"
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

}  // namespace sluice::cpu_backend
