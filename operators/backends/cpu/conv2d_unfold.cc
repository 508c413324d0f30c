// Convolution as a matrix product over unfolded images (im2col): for every shape and type.
#include "sluice/operators/backends/cpu/conv2d_parts.h"
#include "sluice/operators/backends/cpu/gemm.h"

namespace sluice::cpu_backend::conv {
namespace {

using std::int64_t;
constexpr int64_t kLeastWork = 2 << 20;

// columns[(c, ky, kx), (oy, ox)] = x[c, oy * stride + ky - pad, ox * stride + kx - pad], 0 in the padding.
template <class T>
void unfold(const Conv2dShape& s, const T* x, T* columns) {
  const int64_t out_h = s.out_height(), out_w = s.out_width();
  for (int64_t c = 0; c < s.in_channels; ++c) {
    for (int64_t ky = 0; ky < s.kernel_h; ++ky) {
      for (int64_t kx = 0; kx < s.kernel_w; ++kx) {
        for (int64_t oy = 0; oy < out_h; ++oy, columns += out_w) {
          const int64_t iy = oy * s.stride_h + ky - s.pad_h;
          if (iy < 0 || iy >= s.height) {
            std::fill(columns, columns + out_w, T{});
            continue;
          }
          const T* row = x + (c * s.height + iy) * s.width;
          for (int64_t ox = 0; ox < out_w; ++ox) {
            const int64_t ix = ox * s.stride_w + kx - s.pad_w;
            columns[ox] = ix >= 0 && ix < s.width ? row[ix] : T{};
          }
        }
      }
    }
  }
}

// The reverse: adds every column element to the x element it came from.
template <class T>
void fold(const Conv2dShape& s, const T* columns, T* x) {
  const int64_t out_h = s.out_height(), out_w = s.out_width();
  std::fill(x, x + s.in_channels * s.height * s.width, T{});
  for (int64_t c = 0; c < s.in_channels; ++c) {
    for (int64_t ky = 0; ky < s.kernel_h; ++ky) {
      for (int64_t kx = 0; kx < s.kernel_w; ++kx) {
        for (int64_t oy = 0; oy < out_h; ++oy, columns += out_w) {
          const int64_t iy = oy * s.stride_h + ky - s.pad_h;
          if (iy < 0 || iy >= s.height) continue;
          T* row = x + (c * s.height + iy) * s.width;
          for (int64_t ox = 0; ox < out_w; ++ox) {
            const int64_t ix = ox * s.stride_w + kx - s.pad_w;
            if (ix >= 0 && ix < s.width) row[ix] += columns[ox];
          }
        }
      }
    }
  }
}

struct Sizes {
  explicit Sizes(const Conv2dShape& s)
      : taps(s.in_channels * s.kernel_h * s.kernel_w),
        places(s.out_height() * s.out_width()),
        x(s.in_channels * s.height * s.width),
        y(s.out_channels * places),
        images(images_per_chunk(s, kLeastWork)) {}
  int64_t taps, places, x, y, images;
};

}  // namespace

template <class T>
void unfold_forward(const Conv2dShape& s, const T* x, const T* w, const T* bias, T* y, bool relu,
                    const Workspace& workspace) {
  const Sizes size(s);
  parallel_for(s.batch, size.images, [&](int64_t begin, int64_t end) {
    const Borrowed columns(workspace, static_cast<std::size_t>(size.taps * size.places) * sizeof(T));
    for (int64_t i = begin; i < end; ++i) {
      T* out = y + i * size.y;
      unfold(s, x + i * size.x, columns.as<T>());
      gemm_here(false, false, s.out_channels, size.places, size.taps, T{1}, w, size.taps, columns.as<T>(), size.places,
                T{}, out, size.places);
      if (bias == nullptr && !relu) continue;
      for (int64_t c = 0; c < s.out_channels; ++c) {
        const T add = bias == nullptr ? T{} : bias[c];
        for (int64_t p = 0; p < size.places; ++p) {
          const T value = out[c * size.places + p] + add;
          out[c * size.places + p] = relu && value < T{} ? T{} : value;
        }
      }
    }
  });
}

template <class T>
void unfold_input_grad(const Conv2dShape& s, const T* dy, const T* w, T* dx, const Workspace& workspace) {
  const Sizes size(s);
  parallel_for(s.batch, size.images, [&](int64_t begin, int64_t end) {
    const Borrowed columns(workspace, static_cast<std::size_t>(size.taps * size.places) * sizeof(T));
    for (int64_t i = begin; i < end; ++i) {
      gemm_here(true, false, size.taps, size.places, s.out_channels, T{1}, w, size.taps, dy + i * size.y, size.places,
                T{}, columns.as<T>(), size.places);
      fold(s, columns.as<T>(), dx + i * size.x);
    }
  });
}

template <class T>
void unfold_weight_grad(const Conv2dShape& s, const T* x, const T* dy, T* dw, const Workspace& workspace) {
  const Sizes size(s);
  const int64_t count = s.w_count();
  sum_over_chunks(s, size.images, dw, workspace, [&](int64_t first, int64_t images, TotalOf<T>* totals) {
    const Borrowed columns(workspace, static_cast<std::size_t>(size.taps * size.places) * sizeof(T));
    const Borrowed sum(workspace, static_cast<std::size_t>(count) * sizeof(T));
    int64_t added = 0;  // places since the sum began
    for (int64_t i = first; i < first + images; ++i) {
      unfold(s, x + i * size.x, columns.as<T>());
      gemm_here(false, true, s.out_channels, size.taps, size.places, T{1}, dy + i * size.y, size.places,
                columns.as<T>(), size.places, added == 0 ? T{} : T{1}, sum.as<T>(), size.taps);
      added += size.places;
      if (added < kMostPlaces && i + 1 < first + images) continue;
      dispatch(AddToTotals{}, static_cast<const T*>(sum.as<T>()), totals, count);
      added = 0;
    }
  });
}

#define SLUICE_INSTANTIATE(T)                                                                                 \
  template void unfold_forward(const Conv2dShape&, const T*, const T*, const T*, T*, bool, const Workspace&); \
  template void unfold_input_grad(const Conv2dShape&, const T*, const T*, T*, const Workspace&);              \
  template void unfold_weight_grad(const Conv2dShape&, const T*, const T*, T*, const Workspace&)
SLUICE_INSTANTIATE(float);
SLUICE_INSTANTIATE(double);
#undef SLUICE_INSTANTIATE

}  // namespace sluice::cpu_backend::conv
