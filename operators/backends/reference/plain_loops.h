// Products, convolutions, losses and optimiser steps as plain nested loops over contiguous memory.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "sluice/ndarray/dtype.h"

/// The reference backend's own functions: one thread, in the order of the formula, without chunks, libraries or
/// instruction sets. Kernels of the reference call them, and tests of other backends' functions. They use nothing of
/// another backend. Elements (T: f32 f64 f16 bf16, and where integers are named i32 i64) are read into compute_of<T>;
/// sums of f32, f16 and bf16 are kept in double; a result is rounded once, as it is written, so that differences are
/// the other side's error.
namespace sluice::reference {

/// The type in which sums of T are kept: double for floating types; integers wrap.
template <class T>
struct SumOf {
  using type = double;
};
template <class T>
requires std::is_integral_v<T>
struct SumOf<T> {
  using type = std::make_unsigned_t<T>;
};
template <class T>
using Sum = typename SumOf<T>::type;

/// An element as a number to compute with, or to add to a sum.
template <class T>
compute_of<T> number(T x) {
  return static_cast<compute_of<T>>(x);
}
template <class T>
Sum<T> term(T x) {
  return static_cast<Sum<T>>(number(x));
}
/// A sum, or any number, as an element. A double goes to f16 and bf16 by way of f32.
template <class T, class N>
T element(N x) {
  return static_cast<T>(static_cast<compute_of<T>>(x));
}

/// x as an element of another type, as a static_cast would, from f16 and bf16 by way of float.
template <class To, class From>
To converted(From x) {
  if constexpr (std::is_same_v<To, bool> && sizeof(From) == 2) {
    return static_cast<float>(x) != 0;
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != From(0);
  } else if constexpr (sizeof(From) == 2) {
    return static_cast<To>(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

/// C = alpha op(A) op(B) + beta C, row-major; op(A) is m x k, op(B) is k x n. A is stored m x k (k x m with trans_a)
/// with lda elements between its rows; B and C likewise. With beta 0 C is not read. All floating types, i32, i64.
template <class T>
void gemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, compute_of<T> alpha, const T* a,
          std::int64_t lda, const T* b, std::int64_t ldb, compute_of<T> beta, T* c, std::int64_t ldc);

/// y = x transpose(w) + bias, and with relu negative results become 0: x is (rows, in), w (columns, in). bias may be
/// null.
template <class T>
void linear(std::int64_t rows, std::int64_t columns, std::int64_t in, const T* x, const T* w, const T* bias, bool relu,
            T* y);

/// The sizes of a convolution: x (batch, in_channels, height, width), w (out_channels, in_channels, kernel_h,
/// kernel_w), y (batch, out_channels, out_h, out_w).
struct ConvolutionSizes {
  std::int64_t batch, in_channels, height, width, out_channels, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w,
      out_h, out_w;
};
/// y = conv(x, w) + bias, and with relu negative results become 0; bias may be null. Then the gradients of x and of w.
template <class T>
void conv2d(const ConvolutionSizes& sizes, const T* x, const T* w, const T* bias, T* y, bool relu);
template <class T>
void conv2d_input_grad(const ConvolutionSizes& sizes, const T* dy, const T* w, T* dx);
template <class T>
void conv2d_weight_grad(const ConvolutionSizes& sizes, const T* x, const T* dy, T* dw);
/// db[o] = the sum of dy over all but its channel; dy is (batch, channels, plane).
template <class T>
void conv2d_bias_grad(std::int64_t batch, std::int64_t channels, std::int64_t plane, const T* dy, T* db);

/// The sizes of a pooling of `planes` images.
struct PoolingSizes {
  std::int64_t planes, height, width, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, out_h, out_w;
};
/// y = the largest element of each window, the first of equal ones; NaN counts as largest. `place` gets its place in
/// the plane.
template <class T>
void max_pool2d(const PoolingSizes& sizes, const T* x, T* y, std::int32_t* place);
template <class T>
void max_pool2d_grad(const PoolingSizes& sizes, const T* dy, const std::int32_t* place, T* dx);

/// For each row of logits (rows, classes): probabilities = softmax(row), loss = -log(probability of its label), NaN
/// for a label outside of [0, classes). `loss` has a double for each row.
template <class T>
void softmax_cross_entropy(std::int64_t rows, std::int64_t classes, const T* logits, const std::int64_t* labels,
                           double* loss, T* probabilities);
/// dlogits[row] = (probabilities[row] - onehot(label[row])) * scale * dloss[row]; dloss null counts as 1.
template <class T>
void softmax_cross_entropy_grad(std::int64_t rows, std::int64_t classes, const T* probabilities,
                                const std::int64_t* labels, const T* dloss, compute_of<T> scale, T* dlogits);

/// d = g + weight_decay w; v = momentum v + d; w = w - lr v. v null means no momentum.
template <class T>
void sgd_step(T* w, T* v, const T* g, std::int64_t n, double lr, double momentum, double weight_decay);

struct AdamSettings {
  double lr, beta1, beta2, eps, weight_decay;
  bool decoupled;
};
/// Adam's step number `step` (from 1), and with `decoupled` AdamW's.
template <class T>
void adam_step(T* w, T* m, T* v, const T* g, std::int64_t n, std::int64_t step, const AdamSettings& settings);

}  // namespace sluice::reference
