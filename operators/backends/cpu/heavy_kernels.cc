// Products, convolutions, losses and optimiser steps of the CPU backend.
#include "sluice/operators/backends/heavy_kernels.h"

#include "sluice/operators/backends/cpu/gemm.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/builtin.h"

namespace sluice {
namespace cpu_backend {
namespace {

struct CpuBackend {
  template <class T>
  static void gemm(bool ta, bool tb, std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda,
                   const T* b, std::int64_t ldb, T* c) {
    cpu_backend::gemm(ta, tb, m, n, k, T(1), a, lda, b, ldb, T(0), c, std::max<std::int64_t>(1, n));
  }
  template <class T>
  static void add_bias(std::int64_t rows, std::int64_t columns, const T* x, const T* bias, bool relu, T* y) {
    cpu_backend::add_bias(rows, columns, x, bias, relu, y);
  }
  template <class F>
  static void with_workspace(ArrayContext& c, F f) {
    MemoryPool& pool = memory_pool(c.device());
    auto acquire = [&pool](std::size_t bytes) { return pool.allocate(bytes); };
    auto release = [&pool](void* memory, std::size_t bytes) { pool.deallocate(memory, bytes); };
    f(Workspace{acquire, release});
  }
  template <class T>
  static void conv2d_forward(ArrayContext& c, const Conv2dShape& s, const T* x, const T* w, const T* bias, T* y,
                             bool relu) {
    with_workspace(c, [&](const Workspace& space) {
      cpu_backend::conv2d_forward(s, x, w, bias, y, {.relu = relu, .exact = false}, space);
    });
  }
  template <class T>
  static void conv2d_input_grad(ArrayContext& c, const Conv2dShape& s, const T* g, const T* w, T* dx) {
    with_workspace(c, [&](const Workspace& space) { cpu_backend::conv2d_input_grad(s, g, w, dx, {}, space); });
  }
  template <class T>
  static void conv2d_weight_grad(ArrayContext& c, const Conv2dShape& s, const T* x, const T* g, T* dw) {
    with_workspace(c, [&](const Workspace& space) { cpu_backend::conv2d_weight_grad(s, x, g, dw, {}, space); });
  }
  template <class T>
  static void conv2d_bias_grad(const Conv2dShape& s, const T* g, T* db) {
    cpu_backend::conv2d_bias_grad(s, g, db);
  }
  template <class T>
  static void max_pool2d(const PoolShape& s, const T* x, T* y, std::int32_t* at) {
    cpu_backend::max_pool2d(s, x, y, at);
  }
  template <class T>
  static void max_pool2d_grad(const PoolShape& s, const T* g, const std::int32_t* at, T* dx) {
    cpu_backend::max_pool2d_grad(s, g, at, dx);
  }
  template <class T>
  static void softmax_cross_entropy(std::int64_t rows, std::int64_t classes, const T* logits,
                                    const std::int64_t* labels, T* loss, T* p) {
    cpu_backend::softmax_cross_entropy(rows, classes, logits, labels, loss, p);
  }
  template <class T>
  static void softmax_cross_entropy_grad(std::int64_t rows, std::int64_t classes, const T* p,
                                         const std::int64_t* labels, T scale, T* out) {
    cpu_backend::softmax_cross_entropy_grad(rows, classes, p, labels, static_cast<const T*>(nullptr), scale, out);
  }
  template <class T>
  static void sgd_momentum_step(T* w, T* v, const T* g, std::int64_t n, T lr, T momentum, T decay) {
    cpu_backend::sgd_momentum_step(w, v, g, n, lr, momentum, decay);
  }
  template <class T>
  static void adam_step(T* w, T* m, T* v, const T* g, std::int64_t n, std::int64_t step,
                        const AdamSettings<T>& settings) {
    cpu_backend::adam_step(w, m, v, g, n, step, settings);
  }
};

}  // namespace

void add_heavy_kernels(Registry& registry) { backends::Heavy<CpuBackend>::add_to(registry, backends::kCpu); }

}  // namespace cpu_backend

void builtin::add_cpu_kernels(Registry& registry) {
  cpu_backend::add_movement_kernels(registry);
  cpu_backend::add_reduction_kernels(registry);
  cpu_backend::add_heavy_kernels(registry);
}

}  // namespace sluice
