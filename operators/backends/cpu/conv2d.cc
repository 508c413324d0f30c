#include "sluice/operators/backends/cpu/conv2d.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/environment.h"
#include "sluice/operators/backends/cpu/conv2d_parts.h"
#include "sluice/operators/backends/cpu/dispatch.h"
#include "sluice/operators/backends/cpu/elementwise_loops.h"

namespace sluice::cpu_backend {
namespace {

using conv::Algorithm;
using std::int64_t;

enum class Kernel { few_channels, winograd, direct, unfold };

// Where Winograd's 4x4 tiles beat the direct kernel. Measured on one Zen 5 core with AVX-512, batch 16, 3x3 kernels, in
// ms (Winograd to direct; forward, input gradient, weight gradient; docs/performance/cpu-kernels.md has more):
//    32 ->  64, 13x13 unpadded: 0.21 to 0.35, 0.42 to 0.34 (13 of 16 places of a tile row serve), 0.22 to 0.36
//    64 ->  64, 32x32: 3.7 to 5.6, 3.6 to 5.7, 4.1 to 5.7      256 -> 256, 8x8: 4.0 to 5.3, 3.9 to 5.4, 3.9 to 6.4
//   512 -> 512, 4x4: 8.5 to 5.4, 8.2 to 4.6, 4.3 to 6.5         16 ->  32, 14x14: 0.16 to 0.13, 0.19 to 0.13, 0.17 to
//   0.13
bool winograd_pays(Conv2dPass pass, const Conv2dShape& s) {
  if (instruction_set_in_use() != InstructionSet::avx512) return false;
  if (s.kernel_h != 3 || s.kernel_w != 3 || s.stride_h != 1 || s.stride_w != 1) return false;
  if (s.in_channels < 32 || s.out_channels < 32) return false;
  if (pass == Conv2dPass::weight_grad) return true;
  const bool forward = pass == Conv2dPass::forward;
  const int64_t height = forward ? s.out_height() : s.height, width = forward ? s.out_width() : s.width;
  const int64_t tiled = (height + 3) / 4 * 4 * ((width + 3) / 4 * 4);
  return height * width >= 64 && 4 * height * width >= 3 * tiled;
}

/// SLUICE_WINOGRAD=0 in the environment: never.
bool winograd_allowed() {
  return sluice::detail::first_use([] {
    static bool allowed;
    allowed = sluice::detail::switch_from_environment("SLUICE_WINOGRAD", true);
    return &allowed;
  });
}

/// oneDNN, and the kernel for few channels, count in numbers below 2^31.
bool is_common(const Conv2dShape& s) {
  constexpr int64_t most = std::numeric_limits<std::int32_t>::max();
  return std::max({s.batch, s.in_channels, s.out_channels, s.height + 2 * s.pad_h, s.width + 2 * s.pad_w, s.kernel_h,
                   s.kernel_w, s.stride_h, s.stride_w}) <= most;
}

Kernel choose(Conv2dPass pass, const Conv2dShape& s, bool exact) {
  if (s.batch <= 0 || !is_common(s)) return Kernel::unfold;
  if (conv::few_channels_fits(s)) {
    // oneDNN works in blocks of 16 input channels or has a slower path: 1 -> 32 channels at 28x28, batch 64: forward
    // 0.17 (ours) to 0.27, weights 0.23 to 0.25, input gradient 0.34 (unfold) to 1.8 ms; 3 -> 64 at 32x32, batch 16:
    // forward 0.26 to 0.58, weights 0.55 (ours) to 0.35, input gradient 0.53 (unfold) to 1.35 ms.
    if (pass == Conv2dPass::input_grad) return Kernel::unfold;
    if (pass == Conv2dPass::forward || s.in_channels < 3) return Kernel::few_channels;
  }
  if (!exact && winograd_pays(pass, s) && winograd_allowed() && conv::onednn_has(pass, s, Algorithm::winograd)) {
    return Kernel::winograd;
  }
  if (conv::onednn_has(pass, s, Algorithm::direct)) return Kernel::direct;
  return Kernel::unfold;
}

// The sum of one channel over all images: 16 running totals, so that the additions overlap, added pairwise at the end.
struct ChannelSum {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const T* x, int64_t images, int64_t pitch, int64_t plane, T* out) const {
    constexpr int lanes = 16;
    TotalOf<T> sums[lanes] = {};
    for (int64_t image = 0; image < images; ++image, x += pitch) {
      int64_t i = 0;
      for (; i + lanes <= plane; i += lanes) {
        for (int l = 0; l < lanes; ++l) sums[l] += static_cast<TotalOf<T>>(x[i + l]);
      }
      for (int l = 0; i < plane; ++i, ++l) sums[l] += static_cast<TotalOf<T>>(x[i]);
    }
    for (int half = lanes / 2; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) sums[l] += sums[l + half];
    }
    *out = static_cast<T>(sums[0]);
  }
};

}  // namespace

template <class T>
void conv2d_forward(const Conv2dShape& s, const T* x, const T* w, const T* bias, T* y, const Conv2dOptions& options,
                    const Workspace& workspace) {
  if constexpr (std::is_same_v<T, float>) {
    switch (choose(Conv2dPass::forward, s, options.exact)) {
      case Kernel::few_channels:
        return conv::few_channels_forward(s, x, w, bias, y, options.relu, workspace);
      case Kernel::winograd:
        return conv::onednn_forward(s, Algorithm::winograd, x, w, bias, y, options.relu, workspace);
      case Kernel::direct:
        return conv::onednn_forward(s, Algorithm::direct, x, w, bias, y, options.relu, workspace);
      case Kernel::unfold:
        break;
    }
  }
  conv::unfold_forward(s, x, w, bias, y, options.relu, workspace);
}

template <class T>
void conv2d_input_grad(const Conv2dShape& s, const T* dy, const T* w, T* dx, const Conv2dOptions& options,
                       const Workspace& workspace) {
  if constexpr (std::is_same_v<T, float>) {
    const Kernel kernel = choose(Conv2dPass::input_grad, s, options.exact);
    if (kernel == Kernel::winograd) return conv::onednn_input_grad(s, Algorithm::winograd, dy, w, dx, workspace);
    if (kernel == Kernel::direct) return conv::onednn_input_grad(s, Algorithm::direct, dy, w, dx, workspace);
  }
  conv::unfold_input_grad(s, dy, w, dx, workspace);
}

template <class T>
void conv2d_weight_grad(const Conv2dShape& s, const T* x, const T* dy, T* dw, const Conv2dOptions& options,
                        const Workspace& workspace) {
  if constexpr (std::is_same_v<T, float>) {
    switch (choose(Conv2dPass::weight_grad, s, options.exact)) {
      case Kernel::few_channels:
        return conv::few_channels_weight_grad(s, x, dy, dw, workspace);
      case Kernel::winograd:
        return conv::onednn_weight_grad(s, Algorithm::winograd, x, dy, dw, workspace);
      case Kernel::direct:
        return conv::onednn_weight_grad(s, Algorithm::direct, x, dy, dw, workspace);
      case Kernel::unfold:
        break;
    }
  }
  conv::unfold_weight_grad(s, x, dy, dw, workspace);
}

template <class T>
void conv2d_bias_grad(const Conv2dShape& s, const T* dy, T* db) {
  const int64_t plane = s.out_height() * s.out_width();
  const int64_t channels = s.out_channels;
  // A channel is summed by one thread.
  parallel_for(channels, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, plane * s.batch)),
               [=](int64_t begin, int64_t end) {
                 for (int64_t c = begin; c < end; ++c) {
                   dispatch(ChannelSum{}, dy + c * plane, s.batch, channels * plane, plane, db + c);
                 }
               });
}

const char* conv2d_kernel_name(Conv2dPass pass, const Conv2dShape& shape, bool exact, bool is_f32) {
  if (!is_f32) return "unfold";
  constexpr const char* names[] = {"few_channels", "winograd", "direct", "unfold"};
  return names[static_cast<int>(choose(pass, shape, exact))];
}

#define SLUICE_INSTANTIATE(T)                                                                                          \
  template void conv2d_forward(const Conv2dShape&, const T*, const T*, const T*, T*, const Conv2dOptions&,             \
                               const Workspace&);                                                                      \
  template void conv2d_input_grad(const Conv2dShape&, const T*, const T*, T*, const Conv2dOptions&, const Workspace&); \
  template void conv2d_weight_grad(const Conv2dShape&, const T*, const T*, T*, const Conv2dOptions&,                   \
                                   const Workspace&);                                                                  \
  template void conv2d_bias_grad(const Conv2dShape&, const T*, T*)
SLUICE_INSTANTIATE(float);
SLUICE_INSTANTIATE(double);
#undef SLUICE_INSTANTIATE

}  // namespace sluice::cpu_backend
