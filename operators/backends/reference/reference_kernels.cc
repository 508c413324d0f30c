#include "sluice/operators/backends/reference/reference_kernels.h"

namespace sluice::reference {

using cpu_backend::Conv2dShape;
using cpu_backend::PoolShape;
using std::int32_t;
using std::int64_t;

template <class T>
void gemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b,
          int64_t ldb, T beta, T* c, int64_t ldc) {
  using S = Sum<T>;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      S total{};
      for (int64_t p = 0; p < k; ++p) {
        total += static_cast<S>(a[trans_a ? p * lda + i : i * lda + p]) *
                 static_cast<S>(b[trans_b ? j * ldb + p : p * ldb + j]);
      }
      total *= static_cast<S>(alpha);
      if (beta != T{}) total += static_cast<S>(beta) * static_cast<S>(c[i * ldc + j]);
      c[i * ldc + j] = static_cast<T>(total);
    }
  }
}

namespace {

// Calls f(index in x, index in w, index in y) for every product that a convolution sums.
template <class F>
void for_each_product(const Conv2dShape& s, const F& f) {
  for (int64_t n = 0; n < s.batch; ++n)
    for (int64_t o = 0; o < s.out_channels; ++o)
      for (int64_t oy = 0; oy < s.out_height(); ++oy)
        for (int64_t ox = 0; ox < s.out_width(); ++ox)
          for (int64_t c = 0; c < s.in_channels; ++c)
            for (int64_t ky = 0; ky < s.kernel_h; ++ky)
              for (int64_t kx = 0; kx < s.kernel_w; ++kx) {
                const int64_t iy = oy * s.stride_h + ky - s.pad_h, ix = ox * s.stride_w + kx - s.pad_w;
                if (iy < 0 || iy >= s.height || ix < 0 || ix >= s.width) continue;
                f(((n * s.in_channels + c) * s.height + iy) * s.width + ix,
                  ((o * s.in_channels + c) * s.kernel_h + ky) * s.kernel_w + kx,
                  ((n * s.out_channels + o) * s.out_height() + oy) * s.out_width() + ox);
              }
}

template <class T>
class Totals {
 public:
  explicit Totals(int64_t n) : n_(n), sums_(new Sum<T>[static_cast<std::size_t>(n)]()) {}
  ~Totals() { delete[] sums_; }
  Totals(const Totals&) = delete;
  Totals& operator=(const Totals&) = delete;
  Sum<T>& operator[](int64_t i) { return sums_[i]; }
  void round_into(T* out) const {
    for (int64_t i = 0; i < n_; ++i) out[i] = static_cast<T>(sums_[i]);
  }

 private:
  int64_t n_;
  Sum<T>* sums_;
};

}  // namespace

template <class T>
void conv2d_forward(const Conv2dShape& s, const T* x, const T* w, const T* bias, T* y, bool relu) {
  Totals<T> totals(s.y_count());
  const int64_t plane = s.out_height() * s.out_width();
  for_each_product(s, [&](int64_t ix, int64_t iw, int64_t iy) {
    totals[iy] += static_cast<Sum<T>>(x[ix]) * static_cast<Sum<T>>(w[iw]);
  });
  for (int64_t i = 0; i < s.y_count(); ++i) {
    if (bias != nullptr) totals[i] += static_cast<Sum<T>>(bias[i / plane % s.out_channels]);
    if (relu && totals[i] < 0) totals[i] = 0;
  }
  totals.round_into(y);
}

template <class T>
void conv2d_input_grad(const Conv2dShape& s, const T* dy, const T* w, T* dx) {
  Totals<T> totals(s.x_count());
  for_each_product(s, [&](int64_t ix, int64_t iw, int64_t iy) {
    totals[ix] += static_cast<Sum<T>>(dy[iy]) * static_cast<Sum<T>>(w[iw]);
  });
  totals.round_into(dx);
}

template <class T>
void conv2d_weight_grad(const Conv2dShape& s, const T* x, const T* dy, T* dw) {
  Totals<T> totals(s.w_count());
  for_each_product(s, [&](int64_t ix, int64_t iw, int64_t iy) {
    totals[iw] += static_cast<Sum<T>>(x[ix]) * static_cast<Sum<T>>(dy[iy]);
  });
  totals.round_into(dw);
}

template <class T>
void conv2d_bias_grad(const Conv2dShape& s, const T* dy, T* db) {
  Totals<T> totals(s.out_channels);
  const int64_t plane = s.out_height() * s.out_width();
  for (int64_t i = 0; i < s.y_count(); ++i) totals[i / plane % s.out_channels] += static_cast<Sum<T>>(dy[i]);
  totals.round_into(db);
}

template <class T>
void max_pool2d(const PoolShape& s, const T* x, T* y, int32_t* where) {
  for (int64_t p = 0; p < s.planes; ++p)
    for (int64_t i = 0; i < s.out_height(); ++i)
      for (int64_t j = 0; j < s.out_width(); ++j) {
        int64_t best = -1;
        const T* plane = x + p * s.height * s.width;
        for (int64_t ky = 0; ky < s.kernel_h; ++ky)
          for (int64_t kx = 0; kx < s.kernel_w; ++kx) {
            const int64_t iy = i * s.stride_h + ky - s.pad_h, ix = j * s.stride_w + kx - s.pad_w;
            if (iy < 0 || iy >= s.height || ix < 0 || ix >= s.width) continue;
            const int64_t here = iy * s.width + ix;
            if (best < 0 || (!std::isnan(plane[best]) && (std::isnan(plane[here]) || plane[here] > plane[best]))) {
              best = here;
            }
          }
        const int64_t out = (p * s.out_height() + i) * s.out_width() + j;
        y[out] = plane[best];
        if (where != nullptr) where[out] = static_cast<int32_t>(best);
      }
}

template <class T>
void max_pool2d_grad(const PoolShape& s, const T* dy, const int32_t* where, T* dx) {
  const int64_t in = s.height * s.width, out = s.out_height() * s.out_width();
  for (int64_t i = 0; i < s.planes * in; ++i) dx[i] = 0;
  for (int64_t i = 0; i < s.planes * out; ++i) dx[i / out * in + where[i]] += dy[i];
}

template <class T>
void softmax_cross_entropy(int64_t rows, int64_t classes, const T* logits, const int64_t* labels, T* loss,
                           T* probabilities) {
  using S = Sum<T>;
  for (int64_t i = 0; i < rows; ++i) {
    const T* row = logits + i * classes;
    S largest = static_cast<S>(row[0]), total{};
    for (int64_t j = 0; j < classes; ++j) largest = static_cast<S>(row[j]) > largest ? static_cast<S>(row[j]) : largest;
    for (int64_t j = 0; j < classes; ++j) total += std::exp(static_cast<S>(row[j]) - largest);
    const bool fits = labels[i] >= 0 && labels[i] < classes;
    loss[i] = fits ? static_cast<T>(std::log(total) + (largest - static_cast<S>(row[labels[i]])))
                   : std::numeric_limits<T>::quiet_NaN();
    for (int64_t j = 0; j < classes; ++j) {
      probabilities[i * classes + j] = static_cast<T>(std::exp(static_cast<S>(row[j]) - largest) / total);
    }
  }
}

template <class T>
void softmax_cross_entropy_grad(int64_t rows, int64_t classes, const T* probabilities, const int64_t* labels,
                                const T* dloss, T scale, T* dlogits) {
  for (int64_t i = 0; i < rows; ++i) {
    const bool fits = labels[i] >= 0 && labels[i] < classes;
    for (int64_t j = 0; j < classes; ++j) {
      const T onehot = j == labels[i] ? T{1} : T{};
      const T factor = dloss == nullptr ? scale : scale * dloss[i];
      dlogits[i * classes + j] =
          fits ? (probabilities[i * classes + j] - onehot) * factor : std::numeric_limits<T>::quiet_NaN();
    }
  }
}

template <class T>
void sgd_momentum_step(T* w, T* v, const T* g, int64_t n, T lr, T momentum, T weight_decay) {
  for (int64_t i = 0; i < n; ++i) {
    T step = g[i] + weight_decay * w[i];
    if (v != nullptr) step = v[i] = momentum * v[i] + step;
    w[i] -= lr * step;
  }
}

template <class T>
void adam_step(T* w, T* m, T* v, const T* g, int64_t n, int64_t step, const cpu_backend::AdamSettings<T>& s) {
  using S = Sum<T>;
  const S correction1 = 1 - std::pow(static_cast<S>(s.beta1), static_cast<S>(step));
  const S correction2 = 1 - std::pow(static_cast<S>(s.beta2), static_cast<S>(step));
  for (int64_t i = 0; i < n; ++i) {
    if (s.decoupled) w[i] *= T{1} - s.lr * s.weight_decay;
    const T d = s.decoupled ? g[i] : g[i] + s.weight_decay * w[i];
    m[i] = s.beta1 * m[i] + (T{1} - s.beta1) * d;
    v[i] = s.beta2 * v[i] + (T{1} - s.beta2) * (d * d);
    const S first = static_cast<S>(m[i]) / correction1, second = static_cast<S>(v[i]) / correction2;
    w[i] = static_cast<T>(static_cast<S>(w[i]) -
                          static_cast<S>(s.lr) * first / (std::sqrt(second) + static_cast<S>(s.eps)));
  }
}

template <class T>
void add_bias(int64_t rows, int64_t columns, const T* x, const T* bias, bool relu, T* y) {
  for (int64_t i = 0; i < rows * columns; ++i) {
    const T value = x[i] + bias[i % columns];
    y[i] = relu && value < T{} ? T{} : value;
  }
}

template <class T>
T sum(const T* x, int64_t n) {
  Sum<T> total{};
  for (int64_t i = 0; i < n; ++i) total += static_cast<Sum<T>>(x[i]);
  return static_cast<T>(total);
}

template <class T>
void sum_rows(const T* x, int64_t rows, int64_t columns, T* out) {
  Totals<T> totals(columns);
  for (int64_t i = 0; i < rows * columns; ++i) totals[i % columns] += static_cast<Sum<T>>(x[i]);
  totals.round_into(out);
}

#define SLUICE_INSTANTIATE_ANY(T)                                                                                     \
  template void gemm(bool, bool, int64_t, int64_t, int64_t, T, const T*, int64_t, const T*, int64_t, T, T*, int64_t); \
  template T sum(const T*, int64_t);                                                                                  \
  template void sum_rows(const T*, int64_t, int64_t, T*)
#define SLUICE_INSTANTIATE_FLOATING(T)                                                                   \
  SLUICE_INSTANTIATE_ANY(T);                                                                             \
  template void conv2d_forward(const Conv2dShape&, const T*, const T*, const T*, T*, bool);              \
  template void conv2d_input_grad(const Conv2dShape&, const T*, const T*, T*);                           \
  template void conv2d_weight_grad(const Conv2dShape&, const T*, const T*, T*);                          \
  template void conv2d_bias_grad(const Conv2dShape&, const T*, T*);                                      \
  template void max_pool2d(const PoolShape&, const T*, T*, int32_t*);                                    \
  template void max_pool2d_grad(const PoolShape&, const T*, const int32_t*, T*);                         \
  template void softmax_cross_entropy(int64_t, int64_t, const T*, const int64_t*, T*, T*);               \
  template void softmax_cross_entropy_grad(int64_t, int64_t, const T*, const int64_t*, const T*, T, T*); \
  template void sgd_momentum_step(T*, T*, const T*, int64_t, T, T, T);                                   \
  template void adam_step(T*, T*, T*, const T*, int64_t, int64_t, const cpu_backend::AdamSettings<T>&);  \
  template void add_bias(int64_t, int64_t, const T*, const T*, bool, T*)
SLUICE_INSTANTIATE_FLOATING(float);
SLUICE_INSTANTIATE_FLOATING(double);
SLUICE_INSTANTIATE_ANY(int32_t);
SLUICE_INSTANTIATE_ANY(int64_t);
#undef SLUICE_INSTANTIATE_FLOATING
#undef SLUICE_INSTANTIATE_ANY

}  // namespace sluice::reference
