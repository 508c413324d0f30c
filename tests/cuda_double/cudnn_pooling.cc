// cuDNN: pooling by plain loops.
#include <algorithm>
#include <cmath>

#include "cudnn_double.h"

namespace cuda_double {
namespace {

using Pooling = cudnnPoolingStruct;

bool is_max(const Pooling& p) { return p.mode == CUDNN_POOLING_MAX || p.mode == CUDNN_POOLING_MAX_DETERMINISTIC; }

void check(CudnnWork& work, const Pooling* p, const Tensor* x, const Tensor* y) {
  if (!p || !x || !y) throw RefusedByCudnn{CUDNN_STATUS_BAD_PARAM_NULL_POINTER};
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t out = (x->sizes[i + 2] + 2 * p->pads[i] - p->window[i]) / p->strides[i] + 1;
    if (p->pads[i] >= p->window[i]) work.refuse(CUDNN_STATUS_BAD_PARAM, "padding that is not smaller than its window");
    if (y->sizes[i + 2] == out && y->sizes[i] == x->sizes[i]) continue;
    work.refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                "sizes that do not fit: x " + in_words(*x) + ", y " + in_words(*y));
  }
  if (x->type != y->type) throw RefusedByCudnn{CUDNN_STATUS_NOT_SUPPORTED};
}

struct Window {
  std::int64_t top, bottom, left, right;  ///< inside of x
  double count;                           ///< that an average divides by
};
Window window_of(const Pooling& p, const Tensor& x, std::int64_t row, std::int64_t column) {
  const std::int64_t top = row * p.strides[0] - p.pads[0], left = column * p.strides[1] - p.pads[1];
  Window w{std::max<std::int64_t>(top, 0), std::min(top + p.window[0], x.sizes[2]), std::max<std::int64_t>(left, 0),
           std::min(left + p.window[1], x.sizes[3]), 0};
  w.count = p.mode == CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING
                ? static_cast<double>(p.window[0]) * p.window[1]
                : static_cast<double>((w.bottom - w.top) * (w.right - w.left));
  return w;
}

/// Calls f(n, c, row, column, window) for each element of y.
template <class F>
void each_window(const Pooling& p, const Tensor& x, const Tensor& y, F f) {
  for (std::int64_t n = 0; n < y.sizes[0]; ++n) {
    for (std::int64_t c = 0; c < y.sizes[1]; ++c) {
      for (std::int64_t row = 0; row < y.sizes[2]; ++row) {
        for (std::int64_t column = 0; column < y.sizes[3]; ++column) {
          f(n, c, row, column, window_of(p, x, row, column));
        }
      }
    }
  }
}

/// Where the largest value is, the first among equals; a NaN is the largest where it is to be seen.
std::pair<std::int64_t, std::int64_t> largest(const Pooling& p, const Elements& x, std::int64_t n, std::int64_t c,
                                              const Window& w) {
  std::pair<std::int64_t, std::int64_t> best{w.top, w.left};
  double most = -HUGE_VAL;
  for (std::int64_t i = w.top; i < w.bottom; ++i) {
    for (std::int64_t j = w.left; j < w.right; ++j) {
      const double value = x(n, c, i, j);
      if (std::isnan(value)) {
        if (p.nans == CUDNN_PROPAGATE_NAN) return {i, j};
      } else if (value > most) {
        most = value;
        best = {i, j};
      }
    }
  }
  return best;
}

}  // namespace
}  // namespace cuda_double

using namespace cuda_double;

cudnnStatus_t cudnnPoolingForward(cudnnHandle_t handle, const cudnnPoolingDescriptor_t pooling, const void* alpha,
                                  const cudnnTensorDescriptor_t x_desc, const void* x, const void* beta,
                                  const cudnnTensorDescriptor_t y_desc, void* y) {
  return cudnn_call([&](World& world, ThreadState& thread) {
    CudnnWork work(world, thread, handle, "cudnnPoolingForward");
    check(work, pooling, x_desc, y_desc);
    const Pooling p = *pooling;
    const Elements from{*x_desc, work.reads(*x_desc, x)};
    const Results to{*y_desc, work.writes(*y_desc, y), factor(alpha, *x_desc), factor(beta, *x_desc)};
    work.issue([=] {
      each_window(p, from.tensor, to.tensor, [&](auto n, auto c, auto row, auto column, const Window& w) {
        if (is_max(p)) {
          const auto [i, j] = largest(p, from, n, c, w);
          return to.put(n, c, row, column, from(n, c, i, j));
        }
        double sum = 0;
        for (std::int64_t i = w.top; i < w.bottom; ++i) {
          for (std::int64_t j = w.left; j < w.right; ++j) sum += from(n, c, i, j);
        }
        to.put(n, c, row, column, sum / w.count);
      });
    });
  });
}

cudnnStatus_t cudnnPoolingBackward(cudnnHandle_t handle, const cudnnPoolingDescriptor_t pooling, const void* alpha,
                                   const cudnnTensorDescriptor_t y_desc, const void* y,
                                   const cudnnTensorDescriptor_t dy_desc, const void* dy,
                                   const cudnnTensorDescriptor_t x_desc, const void* x, const void* beta,
                                   const cudnnTensorDescriptor_t dx_desc, void* dx) {
  return cudnn_call([&](World& world, ThreadState& thread) {
    CudnnWork work(world, thread, handle, "cudnnPoolingBackward");
    check(work, pooling, x_desc, y_desc);
    if (!dy_desc || !dx_desc || dy_desc->sizes != y_desc->sizes || dx_desc->sizes != x_desc->sizes) {
      throw RefusedByCudnn{CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH};
    }
    const Pooling p = *pooling;
    (void)work.reads(*y_desc, y);
    const Elements from{*x_desc, work.reads(*x_desc, x)}, grown{*dy_desc, work.reads(*dy_desc, dy)};
    const Results to{*dx_desc, work.writes(*dx_desc, dx), factor(alpha, *x_desc), factor(beta, *x_desc)};
    work.issue([=] {
      const auto& size = to.tensor.sizes;
      std::vector<double> sums(static_cast<std::size_t>(size[0] * size[1] * size[2] * size[3]));
      const auto at = [&](auto n, auto c, auto i, auto j) -> double& {
        return sums[static_cast<std::size_t>(((n * size[1] + c) * size[2] + i) * size[3] + j)];
      };
      each_window(p, from.tensor, grown.tensor, [&](auto n, auto c, auto row, auto column, const Window& w) {
        const double value = grown(n, c, row, column);
        if (is_max(p)) {
          const auto [i, j] = largest(p, from, n, c, w);
          at(n, c, i, j) += value;
          return;
        }
        for (std::int64_t i = w.top; i < w.bottom; ++i) {
          for (std::int64_t j = w.left; j < w.right; ++j) at(n, c, i, j) += value / w.count;
        }
      });
      for (std::int64_t n = 0; n < size[0]; ++n) {
        for (std::int64_t c = 0; c < size[1]; ++c) {
          for (std::int64_t i = 0; i < size[2]; ++i) {
            for (std::int64_t j = 0; j < size[3]; ++j) to.put(n, c, i, j, at(n, c, i, j));
          }
        }
      }
    });
  });
}
