#include "sluice/operators/backends/cpu/fused.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sluice/engine/loops.h"
#include "sluice/operators/backends/cpu/dispatch.h"
#include "sluice/operators/backends/cpu/elementwise_loops.h"
#include "sluice/operators/backends/cpu/fast_math.h"

namespace sluice::cpu_backend {
namespace {

using std::int64_t;

int64_t rows_per_chunk(int64_t columns) { return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, columns)); }

// exp of all (shifted by each row's largest) in one flat pass per row block; short rows would waste vectors otherwise.
struct SoftmaxRows {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const T* x, int64_t rows, int64_t classes, T* p, T* sums) const {
    for (int64_t i = 0; i < rows; ++i) {
      const T* in = x + i * classes;
      T* out = p + i * classes;
      const T largest = detail::row_largest(in, classes, -std::numeric_limits<T>::infinity());
      for (int64_t j = 0; j < classes; ++j) out[j] = in[j] - largest;
    }
    for (int64_t i = 0; i < rows * classes; ++i) p[i] = fast_exp(p[i]);
    for (int64_t i = 0; i < rows; ++i) {
      T* out = p + i * classes;
      const auto sum = detail::row_total<double>(static_cast<const T*>(out), classes);
      const T inverse = static_cast<T>(1 / sum);
      for (int64_t j = 0; j < classes; ++j) out[j] *= inverse;
      sums[i] = static_cast<T>(sum);
    }
  }
};

/// The numbers of one row of a part, but for the label's.
struct PartOfRow {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const T* x, int64_t classes, int64_t count, double* numbers) const {
    constexpr T infinity = std::numeric_limits<T>::infinity();
    T largest = detail::row_largest(x, classes, -infinity);
    if (largest == -infinity) largest = 0;  // no class, or none that is possible: the logarithm of 0
    constexpr int64_t block = 256;
    T terms[block];
    double exponentials = 0;
    for (int64_t begin = 0; begin < classes; begin += block) {
      const T* in = x + begin;
      const int64_t n = classes - begin < block ? classes - begin : block;
      for (int64_t j = 0; j < n; ++j) terms[j] = fast_exp(in[j] - largest);
      exponentials += detail::row_total<double>(static_cast<const T*>(terms), n);
    }
    numbers[0] = static_cast<double>(largest) + std::log(exponentials);
    if (count > 2) numbers[2] = detail::row_total<double>(x, classes);
  }
};

struct PartOfRowGrad {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const T* x, int64_t classes, double total, T g, T g_sum, T* dx) const {
    if (total == -std::numeric_limits<double>::infinity()) total = 0;
    // In two parts: the first is near to the largest logits, and a difference of neighbours is exact.
    const T near = static_cast<T>(total), rest = static_cast<T>(total - static_cast<double>(near));
    for (int64_t j = 0; j < classes; ++j) dx[j] = fast_exp((x[j] - near) - rest) * g + g_sum;
  }
};

struct SgdLoop {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(T* __restrict w, T* __restrict v, const T* __restrict g, int64_t n, T lr,
                                     T momentum, T decay) const {
    if (v == nullptr) {
      for (int64_t i = 0; i < n; ++i) w[i] = w[i] - lr * (g[i] + decay * w[i]);
      return;
    }
    for (int64_t i = 0; i < n; ++i) {
      const T next = momentum * v[i] + (g[i] + decay * w[i]);
      v[i] = next;
      w[i] = w[i] - lr * next;
    }
  }
};

template <class T>
struct AdamFactors {
  T keep, decay, beta1, rest1, beta2, rest2, rate, root, eps;
};

struct AdamLoop {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(T* __restrict w, T* __restrict m, T* __restrict v, const T* __restrict g,
                                     int64_t n, AdamFactors<T> f) const {
    for (int64_t i = 0; i < n; ++i) {
      const T d = g[i] + f.decay * w[i];
      const T first = f.beta1 * m[i] + f.rest1 * d;
      const T second = f.beta2 * v[i] + f.rest2 * (d * d);
      m[i] = first;
      v[i] = second;
      w[i] = f.keep * w[i] - f.rate * first / (std::sqrt(second) * f.root + f.eps);
    }
  }
};

struct BiasRows {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const T* x, const T* bias, bool relu, int64_t rows, int64_t columns, T* y) const {
    for (int64_t i = 0; i < rows; ++i) {
      const T* in = x + i * columns;
      T* out = y + i * columns;
      if (relu) {
        for (int64_t j = 0; j < columns; ++j) {
          const T value = in[j] + bias[j];
          out[j] = value < T{} ? T{} : value;
        }
      } else {
        for (int64_t j = 0; j < columns; ++j) out[j] = in[j] + bias[j];
      }
    }
  }
};

}  // namespace

template <class T>
void softmax_cross_entropy(int64_t rows, int64_t classes, const T* logits, const int64_t* labels, T* loss,
                           T* probabilities) {
  if (classes <= 0) return;
  parallel_for(rows, rows_per_chunk(classes), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* row = logits + i * classes;
      const int64_t label = labels[i];
      const bool fits = label >= 0 && label < classes;
      const T largest = *std::max_element(row, row + classes);
      loss[i] = fits ? largest - row[label] : std::numeric_limits<T>::quiet_NaN();
    }
    constexpr int64_t block = 64;
    T sums[block];
    for (int64_t i = begin; i < end; i += block) {
      const int64_t count = std::min(block, end - i);
      dispatch(SoftmaxRows{}, logits + i * classes, count, classes, probabilities + i * classes, &sums[0]);
      for (int64_t r = 0; r < count; ++r) loss[i + r] += std::log(sums[r]);
    }
  });
}

template <class T>
void softmax_cross_entropy_grad(int64_t rows, int64_t classes, const T* probabilities, const int64_t* labels,
                                const T* dloss, T scale, T* dlogits) {
  parallel_for(rows, rows_per_chunk(classes), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const bool fits = labels[i] >= 0 && labels[i] < classes;
      const T factor = fits ? (dloss == nullptr ? scale : scale * dloss[i]) : std::numeric_limits<T>::quiet_NaN();
      const T* in = probabilities + i * classes;
      T* out = dlogits + i * classes;
      const T right = fits ? in[labels[i]] : T{};
      for (int64_t j = 0; j < classes; ++j) out[j] = in[j] * factor;
      if (fits) out[labels[i]] = (right - T{1}) * factor;
    }
  });
}

template <class T>
void parts_of_rows(const PartOfRows<T>& part, int64_t count, double* numbers) {
  parallel_for(part.rows, rows_per_chunk(part.classes), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* row = part.x + i * part.step;
      const int64_t label = part.labels[i] - part.first;
      dispatch(PartOfRow{}, row, part.classes, count, numbers + i * count);
      numbers[i * count + 1] = label >= 0 && label < part.classes ? static_cast<double>(row[label]) : 0;
    }
  });
}

template <class T>
void parts_of_rows_grad(const PartOfRows<T>& part, int64_t count, const double* numbers, const double* g, T* dx) {
  parallel_for(part.rows, rows_per_chunk(part.classes), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const double* const of_row = g + i * count;
      T* out = dx + i * part.step;
      const int64_t label = part.labels[i] - part.first;
      dispatch(PartOfRowGrad{}, part.x + i * part.step, part.classes, numbers[i * count], static_cast<T>(of_row[0]),
               static_cast<T>(count > 2 ? of_row[2] : 0), out);
      if (label >= 0 && label < part.classes) out[label] += static_cast<T>(of_row[1]);
    }
  });
}

template <class T>
void sgd_momentum_step(T* w, T* v, const T* g, int64_t n, T lr, T momentum, T weight_decay) {
  parallel_for(n, kElementwiseGrain, [=](int64_t begin, int64_t end) {
    dispatch(SgdLoop{}, w + begin, v == nullptr ? v : v + begin, g + begin, end - begin, lr, momentum, weight_decay);
  });
}

template <class T>
void adam_step(T* w, T* m, T* v, const T* g, int64_t n, int64_t step, const AdamSettings<T>& s) {
  // In double whatever T is: 1 - beta2^step loses most of its digits in f32.
  const double correction1 = 1 - std::pow(static_cast<double>(s.beta1), static_cast<double>(step));
  const double correction2 = 1 - std::pow(static_cast<double>(s.beta2), static_cast<double>(step));
  const AdamFactors<T> factors{s.decoupled ? T{1} - s.lr * s.weight_decay : T{1},
                               s.decoupled ? T{} : s.weight_decay,
                               s.beta1,
                               T{1} - s.beta1,
                               s.beta2,
                               T{1} - s.beta2,
                               static_cast<T>(static_cast<double>(s.lr) / correction1),
                               static_cast<T>(1 / std::sqrt(correction2)),
                               s.eps};
  parallel_for(n, kElementwiseGrain, [=](int64_t begin, int64_t end) {
    dispatch(AdamLoop{}, w + begin, m + begin, v + begin, g + begin, end - begin, factors);
  });
}

template <class T>
void add_bias(int64_t rows, int64_t columns, const T* x, const T* bias, bool relu, T* y) {
  parallel_for(rows, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, columns)),
               [=](int64_t begin, int64_t end) {
                 dispatch(BiasRows{}, x + begin * columns, bias, relu, end - begin, columns, y + begin * columns);
               });
}

#define SLUICE_INSTANTIATE(T)                                                                            \
  template void softmax_cross_entropy(int64_t, int64_t, const T*, const int64_t*, T*, T*);               \
  template void softmax_cross_entropy_grad(int64_t, int64_t, const T*, const int64_t*, const T*, T, T*); \
  template void parts_of_rows(const PartOfRows<T>&, int64_t, double*);                                   \
  template void parts_of_rows_grad(const PartOfRows<T>&, int64_t, const double*, const double*, T*);     \
  template void sgd_momentum_step(T*, T*, const T*, int64_t, T, T, T);                                   \
  template void adam_step(T*, T*, T*, const T*, int64_t, int64_t, const AdamSettings<T>&);               \
  template void add_bias(int64_t, int64_t, const T*, const T*, bool, T*)
SLUICE_INSTANTIATE(float);
SLUICE_INSTANTIATE(double);
#undef SLUICE_INSTANTIATE

}  // namespace sluice::cpu_backend
