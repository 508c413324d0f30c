#include "sluice/operators/backends/reference/plain_loops.h"

#include <algorithm>
#include <vector>

namespace sluice::reference {

using std::int32_t;
using std::int64_t;

template <class T>
void gemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, compute_of<T> alpha, const T* a, int64_t lda,
          const T* b, int64_t ldb, compute_of<T> beta, T* c, int64_t ldc) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      Sum<T> total{};
      for (int64_t p = 0; p < k; ++p) {
        total += term(a[trans_a ? p * lda + i : i * lda + p]) * term(b[trans_b ? j * ldb + p : p * ldb + j]);
      }
      total *= static_cast<Sum<T>>(alpha);
      if (beta != 0) total += static_cast<Sum<T>>(beta) * term(c[i * ldc + j]);
      c[i * ldc + j] = element<T>(total);
    }
  }
}

template <class T>
void linear(int64_t rows, int64_t columns, int64_t in, const T* x, const T* w, const T* bias, bool relu, T* y) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      Sum<T> total{};
      for (int64_t p = 0; p < in; ++p) total += term(x[i * in + p]) * term(w[j * in + p]);
      if (bias != nullptr) total += term(bias[j]);
      y[i * columns + j] = element<T>(relu && total < 0 ? 0 : total);
    }
  }
}

namespace {

// Calls f(index in x, index in w, index in y) for every product that a convolution sums.
template <class F>
void for_each_product(const ConvolutionSizes& s, const F& f) {
  for (int64_t n = 0; n < s.batch; ++n)
    for (int64_t o = 0; o < s.out_channels; ++o)
      for (int64_t oy = 0; oy < s.out_h; ++oy)
        for (int64_t ox = 0; ox < s.out_w; ++ox)
          for (int64_t c = 0; c < s.in_channels; ++c)
            for (int64_t ky = 0; ky < s.kernel_h; ++ky)
              for (int64_t kx = 0; kx < s.kernel_w; ++kx) {
                const int64_t iy = oy * s.stride_h + ky - s.pad_h, ix = ox * s.stride_w + kx - s.pad_w;
                if (iy < 0 || iy >= s.height || ix < 0 || ix >= s.width) continue;
                f(((n * s.in_channels + c) * s.height + iy) * s.width + ix,
                  ((o * s.in_channels + c) * s.kernel_h + ky) * s.kernel_w + kx,
                  ((n * s.out_channels + o) * s.out_h + oy) * s.out_w + ox);
              }
}

template <class T>
class Totals {
 public:
  explicit Totals(int64_t n) : sums_(static_cast<std::size_t>(n)) {}
  Sum<T>& operator[](int64_t i) { return sums_[static_cast<std::size_t>(i)]; }
  void round_into(T* out) const {
    for (const Sum<T>& total : sums_) *out++ = element<T>(total);
  }

 private:
  std::vector<Sum<T>> sums_;
};

}  // namespace

template <class T>
void conv2d(const ConvolutionSizes& s, const T* x, const T* w, const T* bias, T* y, bool relu) {
  const int64_t plane = s.out_h * s.out_w, count = s.batch * s.out_channels * plane;
  Totals<T> totals(count);
  for_each_product(s, [&](int64_t ix, int64_t iw, int64_t iy) { totals[iy] += term(x[ix]) * term(w[iw]); });
  for (int64_t i = 0; i < count; ++i) {
    if (bias != nullptr) totals[i] += term(bias[i / plane % s.out_channels]);
    if (relu && totals[i] < 0) totals[i] = 0;
  }
  totals.round_into(y);
}

template <class T>
void conv2d_input_grad(const ConvolutionSizes& s, const T* dy, const T* w, T* dx) {
  Totals<T> totals(s.batch * s.in_channels * s.height * s.width);
  for_each_product(s, [&](int64_t ix, int64_t iw, int64_t iy) { totals[ix] += term(dy[iy]) * term(w[iw]); });
  totals.round_into(dx);
}

template <class T>
void conv2d_weight_grad(const ConvolutionSizes& s, const T* x, const T* dy, T* dw) {
  Totals<T> totals(s.out_channels * s.in_channels * s.kernel_h * s.kernel_w);
  for_each_product(s, [&](int64_t ix, int64_t iw, int64_t iy) { totals[iw] += term(x[ix]) * term(dy[iy]); });
  totals.round_into(dw);
}

template <class T>
void conv2d_bias_grad(int64_t batch, int64_t channels, int64_t plane, const T* dy, T* db) {
  Totals<T> totals(channels);
  for (int64_t i = 0; i < batch * channels * plane; ++i) totals[i / plane % channels] += term(dy[i]);
  totals.round_into(db);
}

template <class T>
void max_pool2d(const PoolingSizes& s, const T* x, T* y, int32_t* place) {
  for (int64_t p = 0; p < s.planes; ++p)
    for (int64_t i = 0; i < s.out_h; ++i)
      for (int64_t j = 0; j < s.out_w; ++j) {
        int64_t best = -1;
        const T* plane = x + p * s.height * s.width;
        for (int64_t ky = 0; ky < s.kernel_h; ++ky)
          for (int64_t kx = 0; kx < s.kernel_w; ++kx) {
            const int64_t iy = i * s.stride_h + ky - s.pad_h, ix = j * s.stride_w + kx - s.pad_w;
            if (iy < 0 || iy >= s.height || ix < 0 || ix >= s.width) continue;
            const int64_t here = iy * s.width + ix;
            if (best < 0 || (!std::isnan(number(plane[best])) &&
                             (std::isnan(number(plane[here])) || number(plane[here]) > number(plane[best])))) {
              best = here;
            }
          }
        const int64_t out = (p * s.out_h + i) * s.out_w + j;
        y[out] = plane[best];
        place[out] = static_cast<int32_t>(best);
      }
}

template <class T>
void max_pool2d_grad(const PoolingSizes& s, const T* dy, const int32_t* place, T* dx) {
  const int64_t in = s.height * s.width, out = s.out_h * s.out_w;
  Totals<T> totals(s.planes * in);
  for (int64_t i = 0; i < s.planes * out; ++i) totals[i / out * in + place[i]] += term(dy[i]);
  totals.round_into(dx);
}

template <class T>
void softmax_cross_entropy(int64_t rows, int64_t classes, const T* logits, const int64_t* labels, double* loss,
                           T* probabilities) {
  for (int64_t i = 0; i < rows; ++i) {
    const T* row = logits + i * classes;
    double largest = term(row[0]), total = 0;
    for (int64_t j = 1; j < classes; ++j) largest = std::max(largest, term(row[j]));
    for (int64_t j = 0; j < classes; ++j) total += std::exp(term(row[j]) - largest);
    const bool fits = labels[i] >= 0 && labels[i] < classes;
    loss[i] = fits ? std::log(total) + (largest - term(row[labels[i]])) : std::numeric_limits<double>::quiet_NaN();
    for (int64_t j = 0; j < classes; ++j) {
      probabilities[i * classes + j] = element<T>(std::exp(term(row[j]) - largest) / total);
    }
  }
}

template <class T>
void softmax_cross_entropy_grad(int64_t rows, int64_t classes, const T* probabilities, const int64_t* labels,
                                const T* dloss, compute_of<T> scale, T* dlogits) {
  using C = compute_of<T>;
  for (int64_t i = 0; i < rows; ++i) {
    const bool fits = labels[i] >= 0 && labels[i] < classes;
    const C factor = !fits ? std::numeric_limits<C>::quiet_NaN() : dloss ? scale * number(dloss[i]) : scale;
    for (int64_t j = 0; j < classes; ++j) {
      const C onehot = j == labels[i] ? 1 : 0;
      dlogits[i * classes + j] = element<T>((number(probabilities[i * classes + j]) - onehot) * factor);
    }
  }
}

template <class T>
void sgd_step(T* w, T* v, const T* g, int64_t n, double lr, double momentum, double weight_decay) {
  using C = compute_of<T>;
  const C rate = static_cast<C>(lr), keep = static_cast<C>(momentum), decay = static_cast<C>(weight_decay);
  for (int64_t i = 0; i < n; ++i) {
    C step = number(g[i]) + decay * number(w[i]);
    if (v != nullptr) {
      step = keep * number(v[i]) + step;
      v[i] = element<T>(step);
    }
    w[i] = element<T>(number(w[i]) - rate * step);
  }
}

template <class T>
void adam_step(T* w, T* m, T* v, const T* g, int64_t n, int64_t step, const AdamSettings& s) {
  using C = compute_of<T>;
  const C rate = static_cast<C>(s.lr), beta1 = static_cast<C>(s.beta1), beta2 = static_cast<C>(s.beta2),
          decay = static_cast<C>(s.weight_decay);
  const double correction1 = 1 - std::pow(static_cast<double>(beta1), static_cast<double>(step));
  const double correction2 = 1 - std::pow(static_cast<double>(beta2), static_cast<double>(step));
  for (int64_t i = 0; i < n; ++i) {
    const C old = s.decoupled ? number(w[i]) * (1 - rate * decay) : number(w[i]);
    const C d = s.decoupled ? number(g[i]) : number(g[i]) + decay * old;
    const C first = beta1 * number(m[i]) + (1 - beta1) * d;
    const C second = beta2 * number(v[i]) + (1 - beta2) * (d * d);
    m[i] = element<T>(first);
    v[i] = element<T>(second);
    const double corrected = static_cast<double>(first) / correction1;
    const double root = std::sqrt(static_cast<double>(second) / correction2);
    w[i] = element<T>(old - static_cast<double>(rate) * corrected / (root + s.eps));
  }
}

#define SLUICE_INSTANTIATE_ANY(T)                                                                                \
  template void gemm(bool, bool, int64_t, int64_t, int64_t, compute_of<T>, const T*, int64_t, const T*, int64_t, \
                     compute_of<T>, T*, int64_t)
#define SLUICE_INSTANTIATE_FLOATING(T)                                                                               \
  SLUICE_INSTANTIATE_ANY(T);                                                                                         \
  template void linear(int64_t, int64_t, int64_t, const T*, const T*, const T*, bool, T*);                           \
  template void conv2d(const ConvolutionSizes&, const T*, const T*, const T*, T*, bool);                             \
  template void conv2d_input_grad(const ConvolutionSizes&, const T*, const T*, T*);                                  \
  template void conv2d_weight_grad(const ConvolutionSizes&, const T*, const T*, T*);                                 \
  template void conv2d_bias_grad(int64_t, int64_t, int64_t, const T*, T*);                                           \
  template void max_pool2d(const PoolingSizes&, const T*, T*, int32_t*);                                             \
  template void max_pool2d_grad(const PoolingSizes&, const T*, const int32_t*, T*);                                  \
  template void softmax_cross_entropy(int64_t, int64_t, const T*, const int64_t*, double*, T*);                      \
  template void softmax_cross_entropy_grad(int64_t, int64_t, const T*, const int64_t*, const T*, compute_of<T>, T*); \
  template void sgd_step(T*, T*, const T*, int64_t, double, double, double);                                         \
  template void adam_step(T*, T*, T*, const T*, int64_t, int64_t, const AdamSettings&)
SLUICE_INSTANTIATE_FLOATING(float);
SLUICE_INSTANTIATE_FLOATING(double);
SLUICE_INSTANTIATE_FLOATING(Float16);
SLUICE_INSTANTIATE_FLOATING(BFloat16);
SLUICE_INSTANTIATE_ANY(int32_t);
SLUICE_INSTANTIATE_ANY(int64_t);
#undef SLUICE_INSTANTIATE_FLOATING
#undef SLUICE_INSTANTIATE_ANY

}  // namespace sluice::reference
