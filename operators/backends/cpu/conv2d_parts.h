// What the convolution kernels share: chunks of the batch, borrowed memory, and each kernel's entry.
#pragma once

#include <algorithm>
#include <cstring>

#include "sluice/engine/loops.h"
#include "sluice/operators/backends/cpu/conv2d.h"
#include "sluice/operators/backends/cpu/dispatch.h"
#include "sluice/operators/backends/cpu/elementwise_loops.h"

namespace sluice::cpu_backend::conv {

/// Working memory for the length of a scope.
class Borrowed {
 public:
  Borrowed(const Workspace& workspace, std::size_t bytes)
      : workspace_(workspace), bytes_(bytes), memory_(bytes == 0 ? nullptr : workspace.acquire(bytes)) {}
  ~Borrowed() {
    if (memory_ != nullptr) workspace_.release(memory_, bytes_);
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  char* bytes_at(std::size_t offset) const { return static_cast<char*>(memory_) + offset; }

 private:
  const Workspace& workspace_;
  std::size_t bytes_;
  void* memory_;
};

/// Images of one chunk: as many as make `least_work` multiply-adds, in at most 16 chunks of nearly equal size.
inline std::int64_t images_per_chunk(const Conv2dShape& shape, std::int64_t least_work) {
  const std::int64_t total = shape.work() * shape.batch;
  const std::int64_t chunks =
      std::clamp<std::int64_t>(total / least_work, 1, std::clamp<std::int64_t>(shape.batch, 1, 16));
  return std::max<std::int64_t>(1, (shape.batch + chunks - 1) / chunks);
}

/// Products that a gradient of a weight adds in f32, about; such sums are added in double.
constexpr std::int64_t kMostPlaces = 2048;

struct AddToTotals {
  template <class T, class A>
  SLUICE_KERNEL_BODY void operator()(const T* x, A* __restrict totals, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) totals[i] += static_cast<A>(x[i]);
  }
};

struct SumOfParts {
  template <class A, class T>
  SLUICE_KERNEL_BODY void operator()(const A* parts, std::int64_t step, std::int64_t n, T* dw,
                                     std::int64_t count) const {
    constexpr std::int64_t block = 256;
    TotalOf<A> totals[block];
    for (std::int64_t first = 0; first < count; first += block) {
      const std::int64_t size = first + block < count ? block : count - first;
      const A* x = parts + first;
      for (std::int64_t i = 0; i < size; ++i) totals[i] = static_cast<TotalOf<A>>(x[i]);
      for (std::int64_t p = 1; p < n; ++p) {
        x += step;
        for (std::int64_t i = 0; i < size; ++i) totals[i] += static_cast<TotalOf<A>>(x[i]);
      }
      for (std::int64_t i = 0; i < size; ++i) dw[first + i] = static_cast<T>(totals[i]);
    }
  }
};

/// dw = the sum over n parts, each of `count` elements and `step` behind the one before, in order. It may be the first.
template <class T, class A>
void sum_parts(const A* parts, std::int64_t step, std::int64_t n, T* dw, std::int64_t count) {
  parallel_for(count, 16384, [=](std::int64_t begin, std::int64_t end) {
    dispatch(SumOfParts{}, parts + begin, step, n, dw + begin, end - begin);
  });
}

/// Runs body(first image, images, totals of dw) for each chunk, which adds to totals of its own, and adds those in
/// order.
template <class T, class Body>
void sum_over_chunks(const Conv2dShape& shape, std::int64_t images, T* dw, const Workspace& workspace,
                     const Body& body) {
  using A = TotalOf<T>;
  const std::int64_t count = shape.w_count();
  if (shape.batch <= 0) return void(std::fill(dw, dw + count, T{}));
  const std::int64_t chunks = (shape.batch + images - 1) / images;
  const Borrowed totals(workspace, static_cast<std::size_t>(chunks * count) * sizeof(A));
  parallel_for(chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) {
      const std::int64_t first = c * images;
      A* const own = totals.as<A>() + c * count;
      std::fill(own, own + count, A{});
      body(first, std::min(images, shape.batch - first), own);
    }
  });
  sum_parts(static_cast<const A*>(totals.as<A>()), count, chunks, dw, count);
}

/// Direct kernels for few input channels (f32): the input's rows stay in the first-level cache.
bool few_channels_fits(const Conv2dShape& shape);
void few_channels_forward(const Conv2dShape& shape, const float* x, const float* w, const float* bias, float* y,
                          bool relu, const Workspace& workspace);
void few_channels_weight_grad(const Conv2dShape& shape, const float* x, const float* dy, float* dw,
                              const Workspace& workspace);

/// oneDNN (f32). False where it has no such kernel for this shape on this CPU.
enum class Algorithm { direct, winograd };
bool onednn_has(Conv2dPass pass, const Conv2dShape& shape, Algorithm algorithm);
void onednn_forward(const Conv2dShape& shape, Algorithm algorithm, const float* x, const float* w, const float* bias,
                    float* y, bool relu, const Workspace& workspace);
void onednn_input_grad(const Conv2dShape& shape, Algorithm algorithm, const float* dy, const float* w, float* dx,
                       const Workspace& workspace);
void onednn_weight_grad(const Conv2dShape& shape, Algorithm algorithm, const float* x, const float* dy, float* dw,
                        const Workspace& workspace);

/// Unfolding and matrix products (f32, f64): for every shape.
template <class T>
void unfold_forward(const Conv2dShape& shape, const T* x, const T* w, const T* bias, T* y, bool relu,
                    const Workspace& workspace);
template <class T>
void unfold_input_grad(const Conv2dShape& shape, const T* dy, const T* w, T* dx, const Workspace& workspace);
template <class T>
void unfold_weight_grad(const Conv2dShape& shape, const T* x, const T* dy, T* dw, const Workspace& workspace);

}  // namespace sluice::cpu_backend::conv
