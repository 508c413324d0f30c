// Direct convolution for few input channels (f32), by vectors along the rows of y, in the arrays' own layout.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "sluice/operators/backends/cpu/conv2d_parts.h"
#include "sluice/operators/backends/cpu/dispatch.h"

namespace sluice::cpu_backend::conv {
namespace {

// Of one padded image, or of a band of it: out_h rows of y, whose channels are `plane` elements apart.
struct Sizes {
  long height, width, out_channels, out_h, out_w, kernel_h, kernel_w, taps, plane;
};

struct Functions {
  void (*forward)(const Sizes&, const float* x, const float* w, const float* bias, const long* offset, bool relu,
                  float* y);
  void (*weights)(const Sizes&, const float* x, const float* dy, float* sums);
  int width;     // floats of a vector
  int channels;  // output channels at once in forward
};

namespace plain {
constexpr int kWidth = 4;
#define SLUICE_FMA(a, b, c) ((a) * (b) + (c))
#define SLUICE_SPREAD(x) (Vec{(x), (x), (x), (x)})
#include "sluice/operators/backends/cpu/conv2d_few_channels.inc"
#undef SLUICE_FMA
#undef SLUICE_SPREAD
}  // namespace plain

#define SLUICE_WIDE_KERNELS "sluice/operators/backends/cpu/conv2d_few_channels.inc"
#include "sluice/operators/backends/cpu/wide_vectors.inc"

// The widest vectors that a row of y fills; null if there are none.
const Functions* functions_for(std::int64_t out_width) {
#if SLUICE_WIDE_VECTORS
  const InstructionSet set = instruction_set_in_use();
  if (set == InstructionSet::avx512 && out_width >= avx512::kWidth) return &avx512::kFunctions;
  if (set >= InstructionSet::avx2 && out_width >= avx2::kWidth) return &avx2::kFunctions;
#endif
  return out_width >= plain::kWidth ? &plain::kFunctions : nullptr;
}

constexpr std::int64_t kLeastWork = 3 << 20;

Sizes sizes_of(const Conv2dShape& s) {
  return {static_cast<long>(s.height + 2 * s.pad_h),
          static_cast<long>(s.width + 2 * s.pad_w),
          static_cast<long>(s.out_channels),
          static_cast<long>(s.out_height()),
          static_cast<long>(s.out_width()),
          static_cast<long>(s.kernel_h),
          static_cast<long>(s.kernel_w),
          static_cast<long>(s.in_channels * s.kernel_h * s.kernel_w),
          static_cast<long>(s.out_height() * s.out_width())};
}

bool is_padded(const Conv2dShape& s) { return s.pad_h != 0 || s.pad_w != 0; }

std::size_t padded_bytes(const Conv2dShape& s, const Sizes& size) {
  return is_padded(s) ? static_cast<std::size_t>(s.in_channels * size.height * size.width) * sizeof(float) : 0;
}

// The image with its zeros around it, in `room`; or the image itself where there is no padding.
const float* padded(const Conv2dShape& s, const Sizes& size, const float* x, float* room) {
  if (!is_padded(s)) return x;
  std::fill(room, room + s.in_channels * size.height * size.width, 0.0F);
  for (std::int64_t c = 0; c < s.in_channels; ++c) {
    for (std::int64_t r = 0; r < s.height; ++r) {
      std::copy_n(x + (c * s.height + r) * s.width, s.width,
                  room + (c * size.height + r + s.pad_h) * size.width + s.pad_w);
    }
  }
  return room;
}

}  // namespace

bool few_channels_fits(const Conv2dShape& s) {
  return s.in_channels <= 4 && s.stride_h == 1 && s.stride_w == 1 &&
         (s.kernel_w == 1 || s.kernel_w == 3 || s.kernel_w == 5) && s.kernel_h <= 7 && s.out_height() >= 1 &&
         functions_for(s.out_width()) != nullptr;
}

void few_channels_forward(const Conv2dShape& s, const float* x, const float* w, const float* bias, float* y, bool relu,
                          const Workspace& workspace) {
  const Sizes size = sizes_of(s);
  const Functions& functions = *functions_for(size.out_w);
  // Weights as [block of channels][tap][channel in block], zeros behind the last channel; then the biases.
  const long at_once = functions.channels;
  const long blocks = (size.out_channels + at_once - 1) / at_once;
  const long channels = blocks * at_once;
  const Borrowed packed(workspace, static_cast<std::size_t>(channels * (size.taps + 1)) * sizeof(float));
  auto* weights = packed.as<float>();
  float* biases = weights + channels * size.taps;
  for (long o = 0; o < channels; ++o) {
    const bool real = o < size.out_channels;
    biases[o] = real && bias != nullptr ? bias[o] : 0.0F;
    for (long t = 0; t < size.taps; ++t) {
      weights[(o / at_once * size.taps + t) * at_once + o % at_once] = real ? w[o * size.taps + t] : 0.0F;
    }
  }
  const Borrowed places(workspace, static_cast<std::size_t>(size.taps) * sizeof(long));
  auto* offset = places.as<long>();
  for (long t = 0; t < size.taps; ++t) {
    const long kx = t % size.kernel_w, ky = t / size.kernel_w % size.kernel_h;
    offset[t] = (t / (size.kernel_w * size.kernel_h) * size.height + ky) * size.width + kx;
  }
  parallel_for(s.batch, images_per_chunk(s, kLeastWork), [&](std::int64_t begin, std::int64_t end) {
    const Borrowed room(workspace, padded_bytes(s, size));
    for (std::int64_t i = begin; i < end; ++i) {
      const float* image = padded(s, size, x + i * s.in_channels * s.height * s.width, room.as<float>());
      functions.forward(size, image, weights, biases, offset, relu, y + i * s.out_channels * size.out_h * size.out_w);
    }
  });
}

void few_channels_weight_grad(const Conv2dShape& s, const float* x, const float* dy, float* dw,
                              const Workspace& workspace) {
  const Sizes size = sizes_of(s);
  const Functions& functions = *functions_for(size.out_w);
  const auto lanes = static_cast<std::int64_t>(functions.width);
  const std::int64_t count = s.w_count() * lanes;
  const long rows = std::max(1L, static_cast<long>(kMostPlaces) / size.out_w);  // of a band
  sum_over_chunks(
      s, images_per_chunk(s, kLeastWork), dw, workspace, [&](std::int64_t first, std::int64_t images, double* totals) {
        const Borrowed room(workspace, padded_bytes(s, size));
        const Borrowed lane_sums(workspace, static_cast<std::size_t>(count) * (sizeof(float) + sizeof(double)));
        auto* lane_totals = lane_sums.as<double>();
        auto* sums = reinterpret_cast<float*>(lane_totals + count);
        std::fill(lane_totals, lane_totals + count, 0.0);
        std::fill(sums, sums + count, 0.0F);
        long added = 0;  // rows since the sums began
        for (std::int64_t i = first; i < first + images; ++i) {
          const float* image = padded(s, size, x + i * s.in_channels * s.height * s.width, room.as<float>());
          const float* gradient = dy + i * s.out_channels * size.plane;
          for (long row = 0; row < size.out_h; row += rows) {
            Sizes band = size;
            band.out_h = std::min(rows, size.out_h - row);
            functions.weights(band, image + row * size.width, gradient + row * size.out_w, sums);
            added += band.out_h;
            if (added < rows && (row + rows < size.out_h || i + 1 < first + images)) continue;
            dispatch(AddToTotals{}, static_cast<const float*>(sums), lane_totals, count);
            std::fill(sums, sums + count, 0.0F);
            added = 0;
          }
        }
        for (std::int64_t j = 0; j < s.w_count(); ++j) {
          for (std::int64_t l = 0; l < lanes; ++l) totals[j] += lane_totals[j * lanes + l];
        }
      });
}

}  // namespace sluice::cpu_backend::conv
