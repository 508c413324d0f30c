// Kernels that do in one pass what separate operators would do in several: loss, optimiser steps, bias with activation.
#pragma once

#include <cstdint>

namespace sluice::cpu_backend {

// All: f32 and f64; contiguous; split over parallel_for into chunks that depend on sizes alone (the same bits on any
// number of threads); any thread may call; blocking.

/// For each row of logits (rows, classes): probabilities = softmax(row), loss[row] = -log(probability of label[row]).
/// The row's largest logit is subtracted first, so no finite input overflows. A label outside of [0, classes) gives the
/// row a loss of NaN and reads no memory outside. probabilities may be logits' memory. A NaN in a row makes the row
/// NaN.
template <class T>
void softmax_cross_entropy(std::int64_t rows, std::int64_t classes, const T* logits, const std::int64_t* labels,
                           T* loss, T* probabilities);

/// dlogits[row] = (probabilities[row] - onehot(label[row])) * scale * dloss[row], dloss null counting as 1 for each row
/// (a mean over rows: scale = 1 / rows). dlogits may be probabilities' memory. A label outside gives a row of NaN.
template <class T>
void softmax_cross_entropy_grad(std::int64_t rows, std::int64_t classes, const T* probabilities,
                                const std::int64_t* labels, const T* dloss, T scale, T* dlogits);

/// A part of the classes of some rows.
template <class T>
struct PartOfRows {
  const T* x;                  ///< the part's logits of row 0; further rows are `step` elements apart
  const std::int64_t* labels;  ///< among all classes
  std::int64_t rows, step;
  std::int64_t first, classes;  ///< of the part
};
/// `count` numbers a row: the logarithm of the sum of exp (minus infinity of no classes), the label's logit (0 if it is
/// in another part), and, of three, the sum of the logits.
template <class T>
void parts_of_rows(const PartOfRows<T>& part, std::int64_t count, double* numbers);
/// exp(x - numbers[0]) g[0] + onehot(label) g[1] + g[2], for the numbers and gradients of each row.
template <class T>
void parts_of_rows_grad(const PartOfRows<T>& part, std::int64_t count, const double* numbers, const double* g, T* dx);

/// One SGD step: d = g + weight_decay * w; v = momentum * v + d; w = w - lr * v. v null means no momentum (w -= lr *
/// d).
template <class T>
void sgd_momentum_step(T* w, T* v, const T* g, std::int64_t n, T lr, T momentum, T weight_decay);

/// One Adam step, number step (from 1): m = beta1 m + (1 - beta1) d; v = beta2 v + (1 - beta2) d d;
/// w = w - lr * (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps), where d = g + weight_decay * w, or with
/// decoupled (AdamW) d = g and w is first multiplied by 1 - lr * weight_decay.
template <class T>
struct AdamSettings {
  T lr, beta1, beta2, eps, weight_decay;
  bool decoupled;
};
template <class T>
void adam_step(T* w, T* m, T* v, const T* g, std::int64_t n, std::int64_t step, const AdamSettings<T>& settings);

/// y[i, j] = x[i, j] + bias[j], and then, with relu, negative values become 0 (NaN stays). y may be x's memory.
template <class T>
void add_bias(std::int64_t rows, std::int64_t columns, const T* x, const T* bias, bool relu, T* y);

}  // namespace sluice::cpu_backend
