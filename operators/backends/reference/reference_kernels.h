// The oracle of the heavy CPU kernels: plain nested loops, on one thread, in the order of the formula.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "sluice/operators/backends/cpu/conv2d.h"
#include "sluice/operators/backends/cpu/fused.h"
#include "sluice/operators/backends/cpu/pool.h"

/// Same arguments and results as the functions of these names in backends/cpu, without chunks, threads, libraries or
/// instruction sets. f32 sums are kept in double and rounded once, so that differences are the fast kernel's error.
namespace sluice::reference {

/// The type in which sums of T are kept: double for float, T otherwise (integers wrap).
template <class T>
using Sum = std::conditional_t<
    std::is_same_v<T, float>, double,
    typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type>;

/// See cpu_backend::gemm. T: float, double, int32, int64.
template <class T>
void gemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, const T* a,
          std::int64_t lda, const T* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc);

/// See cpu_backend::conv2d_forward and its gradients. T: float, double.
template <class T>
void conv2d_forward(const cpu_backend::Conv2dShape& shape, const T* x, const T* w, const T* bias, T* y, bool relu);
template <class T>
void conv2d_input_grad(const cpu_backend::Conv2dShape& shape, const T* dy, const T* w, T* dx);
template <class T>
void conv2d_weight_grad(const cpu_backend::Conv2dShape& shape, const T* x, const T* dy, T* dw);
template <class T>
void conv2d_bias_grad(const cpu_backend::Conv2dShape& shape, const T* dy, T* db);

/// See cpu_backend::max_pool2d and cpu_backend::max_pool2d_grad. T: float, double.
template <class T>
void max_pool2d(const cpu_backend::PoolShape& shape, const T* x, T* y, std::int32_t* where);
template <class T>
void max_pool2d_grad(const cpu_backend::PoolShape& shape, const T* dy, const std::int32_t* where, T* dx);

/// See cpu/fused.h. T: float, double.
template <class T>
void softmax_cross_entropy(std::int64_t rows, std::int64_t classes, const T* logits, const std::int64_t* labels,
                           T* loss, T* probabilities);
template <class T>
void softmax_cross_entropy_grad(std::int64_t rows, std::int64_t classes, const T* probabilities,
                                const std::int64_t* labels, const T* dloss, T scale, T* dlogits);
template <class T>
void sgd_momentum_step(T* w, T* v, const T* g, std::int64_t n, T lr, T momentum, T weight_decay);
template <class T>
void adam_step(T* w, T* m, T* v, const T* g, std::int64_t n, std::int64_t step,
               const cpu_backend::AdamSettings<T>& settings);
template <class T>
void add_bias(std::int64_t rows, std::int64_t columns, const T* x, const T* bias, bool relu, T* y);

/// Sums of all, and of each column: see cpu/elementwise_loops.h.
template <class T>
T sum(const T* x, std::int64_t n);
template <class T>
void sum_rows(const T* x, std::int64_t rows, std::int64_t columns, T* out);

}  // namespace sluice::reference
