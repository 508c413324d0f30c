// cuDNN: convolution by plain loops.
#include <algorithm>
#include <cstring>

#include "cudnn_double.h"

namespace cuda_double {
namespace {

using Convolution = cudnnConvolutionStruct;

constexpr std::size_t kWorkspace = 2048;  // what the algorithms want that want any

std::int64_t output_size(const Convolution& v, const Tensor& x, const Tensor& w, std::size_t axis) {
  const std::int64_t reach = v.dilations[axis] * (w.sizes[axis + 2] - 1) + 1;
  return (x.sizes[axis + 2] + 2 * v.pads[axis] - reach) / v.strides[axis] + 1;
}

/// Says what is wrong; empty: nothing.
std::string wrong_shape(const Convolution& v, const Tensor& x, const Tensor& w, const Tensor& y) {
  const bool fits = x.sizes[0] == y.sizes[0] && w.sizes[0] == y.sizes[1] && x.sizes[1] == w.sizes[1] * v.groups &&
                    w.sizes[0] % v.groups == 0 && y.sizes[2] == output_size(v, x, w, 0) &&
                    y.sizes[3] == output_size(v, x, w, 1);
  return fits ? "" : "sizes that do not fit: x " + in_words(x) + ", w " + in_words(w) + ", y " + in_words(y);
}

bool is_supported(const Convolution& v, const Tensor& x, const Tensor& w, const Tensor& y) {
  if (x.type != w.type || x.type != y.type) return false;
  return v.compute == (x.type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT);
}

void check(const Convolution* v, const Tensor* x, const Tensor* w, const Tensor* y) {
  if (!v || !x || !w || !y) throw RefusedByCudnn{CUDNN_STATUS_BAD_PARAM_NULL_POINTER};
  if (!wrong_shape(*v, *x, *w, *y).empty()) throw RefusedByCudnn{CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH};
  if (!is_supported(*v, *x, *w, *y)) throw RefusedByCudnn{CUDNN_STATUS_NOT_SUPPORTED};
}

/// The algorithms, the fastest first, as a card's heuristics may give them: such that are not deterministic among them,
/// and such that do not work at all.
template <class Perf, class Algo>
void list(World& world, const Convolution& v, std::initializer_list<std::pair<Algo, bool>> algorithms, Algo not_there,
          int wanted, int* found, Perf* results) {
  if (!found || !results || wanted < 1) throw RefusedByCudnn{CUDNN_STATUS_BAD_PARAM};
  *found = 0;
  const auto add = [&](Algo algo, cudnnStatus_t status, bool deterministic, std::size_t memory) {
    if (*found == wanted) return;
    Perf& perf = results[(*found)++];
    perf = {};
    perf.algo = algo;
    perf.status = status;
    perf.time = -1;
    perf.memory = memory;
    perf.determinism = deterministic ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
    perf.mathType = v.math;
  };
  for (const auto& [algo, deterministic] : algorithms) {
    const bool refused = is_refused_at_random(world) != 0;
    add(algo, refused ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS, deterministic, algo == 1 ? kWorkspace : 0);
  }
  add(not_there, CUDNN_STATUS_NOT_SUPPORTED, true, 0);
}

std::size_t workspace_of(int algo) { return algo == 1 ? kWorkspace : 0; }

/// The input's row, or column, under a filter's; maybe outside.
std::int64_t under(const Convolution& v, const Tensor& w, std::size_t axis, std::int64_t out, std::int64_t tap) {
  const std::int64_t at = v.mode == CUDNN_CROSS_CORRELATION ? tap : w.sizes[axis + 2] - 1 - tap;
  return out * v.strides[axis] - v.pads[axis] + at * v.dilations[axis];
}

/// Calls f(n, k, c of the filter, c of the input, r, s, p, q, h, w) for each product that the convolution adds up.
template <class F>
void each_product(const Convolution& v, const Tensor& x, const Tensor& w, const Tensor& y, F f) {
  const std::int64_t out_per_group = w.sizes[0] / v.groups;
  for (std::int64_t n = 0; n < x.sizes[0]; ++n) {
    for (std::int64_t k = 0; k < w.sizes[0]; ++k) {
      for (std::int64_t p = 0; p < y.sizes[2]; ++p) {
        for (std::int64_t q = 0; q < y.sizes[3]; ++q) {
          for (std::int64_t c = 0; c < w.sizes[1]; ++c) {
            for (std::int64_t r = 0; r < w.sizes[2]; ++r) {
              for (std::int64_t s = 0; s < w.sizes[3]; ++s) {
                const std::int64_t row = under(v, w, 0, p, r), column = under(v, w, 1, q, s);
                if (row < 0 || row >= x.sizes[2] || column < 0 || column >= x.sizes[3]) continue;
                f(n, k, c, k / out_per_group * w.sizes[1] + c, r, s, p, q, row, column);
              }
            }
          }
        }
      }
    }
  }
}

/// Sums of products in the compute type, for each element of a dense array of the result's sizes.
template <class T>
struct Sums {
  explicit Sums(const Tensor& t)
      : sizes(t.sizes), values(static_cast<std::size_t>(sizes[0] * sizes[1] * sizes[2] * sizes[3])) {}
  T& at(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
    return values[static_cast<std::size_t>(((a * sizes[1] + b) * sizes[2] + c) * sizes[3] + d)];
  }
  void write(const Results& to) {
    std::size_t i = 0;
    for (std::int64_t a = 0; a < sizes[0]; ++a) {
      for (std::int64_t b = 0; b < sizes[1]; ++b) {
        for (std::int64_t c = 0; c < sizes[2]; ++c) {
          for (std::int64_t d = 0; d < sizes[3]; ++d) to.put(a, b, c, d, static_cast<double>(values[i++]));
        }
      }
    }
  }
  std::array<std::int64_t, 4> sizes;
  std::vector<T> values;
};

bool rounds_to_tf32(const Convolution& v, const Tensor& x) {
  return x.type == CUDNN_DATA_FLOAT && v.math != CUDNN_FMA_MATH;
}

/// Runs f with a zero of the compute type.
template <class F>
void in_compute_type(const Tensor& x, F f) {
  if (x.type == CUDNN_DATA_DOUBLE) {
    f(double{});
  } else {
    f(float{});
  }
}

void check_deterministic(World& world, const char* name, bool deterministic) {
  if (!deterministic) world.report(std::string(name) + " with an algorithm that is not deterministic");
}

void spoil(void* workspace, std::size_t bytes) {
  if (workspace) std::memset(workspace, 0xAB, bytes);
}

}  // namespace
}  // namespace cuda_double

using namespace cuda_double;

cudnnStatus_t cudnnGetConvolution2dForwardOutputDim(const cudnnConvolutionDescriptor_t v,
                                                    const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
                                                    int* n, int* c, int* height, int* width) {
  if (!v || !x || !w || !n || !c || !height || !width) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  *n = static_cast<int>(x->sizes[0]);
  *c = static_cast<int>(w->sizes[0]);
  *height = static_cast<int>(output_size(*v, *x, *w, 0));
  *width = static_cast<int>(output_size(*v, *x, *w, 1));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                     const cudnnFilterDescriptor_t w,
                                                     const cudnnConvolutionDescriptor_t v,
                                                     const cudnnTensorDescriptor_t y, const int wanted, int* found,
                                                     cudnnConvolutionFwdAlgoPerf_t* results) {
  return cudnn_call([&](World& world, ThreadState&) {
    check(v, x, w, y);
    refuse_at_random(world);
    list<cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionFwdAlgo_t>(
        world, *v,
        {{CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, true}, {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, true}},
        CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, wanted, found, results);
  });
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t, const cudnnFilterDescriptor_t w,
                                                          const cudnnTensorDescriptor_t dy,
                                                          const cudnnConvolutionDescriptor_t v,
                                                          const cudnnTensorDescriptor_t dx, const int wanted,
                                                          int* found, cudnnConvolutionBwdDataAlgoPerf_t* results) {
  return cudnn_call([&](World& world, ThreadState&) {
    check(v, dx, w, dy);
    refuse_at_random(world);
    list<cudnnConvolutionBwdDataAlgoPerf_t, cudnnConvolutionBwdDataAlgo_t>(
        world, *v, {{CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, false}, {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, true}},
        static_cast<cudnnConvolutionBwdDataAlgo_t>(4), wanted, found, results);
  });
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                            const cudnnTensorDescriptor_t dy,
                                                            const cudnnConvolutionDescriptor_t v,
                                                            const cudnnFilterDescriptor_t dw, const int wanted,
                                                            int* found, cudnnConvolutionBwdFilterAlgoPerf_t* results) {
  return cudnn_call([&](World& world, ThreadState&) {
    check(v, x, dw, dy);
    refuse_at_random(world);
    list<cudnnConvolutionBwdFilterAlgoPerf_t, cudnnConvolutionBwdFilterAlgo_t>(
        world, *v, {{CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, false}, {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, true}},
        static_cast<cudnnConvolutionBwdFilterAlgo_t>(4), wanted, found, results);
  });
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                      const cudnnFilterDescriptor_t w,
                                                      const cudnnConvolutionDescriptor_t v,
                                                      const cudnnTensorDescriptor_t y, cudnnConvolutionFwdAlgo_t algo,
                                                      std::size_t* bytes) {
  return cudnn_call([&](World&, ThreadState&) {
    check(v, x, w, y);
    if (algo > CUDNN_CONVOLUTION_FWD_ALGO_GEMM) throw RefusedByCudnn{CUDNN_STATUS_NOT_SUPPORTED};
    *bytes = workspace_of(algo);
  });
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, const cudnnFilterDescriptor_t w,
                                                           const cudnnTensorDescriptor_t dy,
                                                           const cudnnConvolutionDescriptor_t v,
                                                           const cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t algo, std::size_t* bytes) {
  return cudnn_call([&](World&, ThreadState&) {
    check(v, dx, w, dy);
    if (algo > CUDNN_CONVOLUTION_BWD_DATA_ALGO_1) throw RefusedByCudnn{CUDNN_STATUS_NOT_SUPPORTED};
    *bytes = workspace_of(algo);
  });
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                             const cudnnTensorDescriptor_t dy,
                                                             const cudnnConvolutionDescriptor_t v,
                                                             const cudnnFilterDescriptor_t dw,
                                                             cudnnConvolutionBwdFilterAlgo_t algo, std::size_t* bytes) {
  return cudnn_call([&](World&, ThreadState&) {
    check(v, x, dw, dy);
    if (algo > CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1) throw RefusedByCudnn{CUDNN_STATUS_NOT_SUPPORTED};
    *bytes = workspace_of(algo);
  });
}

namespace {
/// What the three calls check in the same way.
void check_call(CudnnWork& work, const Convolution* v, const Tensor* x, const Tensor* w, const Tensor* y, int algo,
                int last) {
  if (!v || !x || !w || !y) throw RefusedByCudnn{CUDNN_STATUS_BAD_PARAM_NULL_POINTER};
  const std::string wrong = wrong_shape(*v, *x, *w, *y);
  if (!wrong.empty()) work.refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, wrong);
  if (!is_supported(*v, *x, *w, *y) || algo > last) throw RefusedByCudnn{CUDNN_STATUS_NOT_SUPPORTED};
}
}  // namespace

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t x_desc,
                                      const void* x, const cudnnFilterDescriptor_t w_desc, const void* w,
                                      const cudnnConvolutionDescriptor_t convolution, cudnnConvolutionFwdAlgo_t algo,
                                      void* workspace, std::size_t workspace_bytes, const void* beta,
                                      const cudnnTensorDescriptor_t y_desc, void* y) {
  return cudnn_call([&](World& world, ThreadState& thread) {
    CudnnWork work(world, thread, handle, "cudnnConvolutionForward");
    check_call(work, convolution, x_desc, w_desc, y_desc, algo, CUDNN_CONVOLUTION_FWD_ALGO_GEMM);
    const Convolution v = *convolution;
    const bool tf32 = rounds_to_tf32(v, *x_desc);
    const Elements from{*x_desc, work.reads(*x_desc, x), tf32}, filter{*w_desc, work.reads(*w_desc, w), tf32};
    const Results to{*y_desc, work.writes(*y_desc, y), factor(alpha, *x_desc), factor(beta, *x_desc)};
    const std::size_t needed = workspace_of(algo);
    void* const spoiled = work.workspace(workspace, workspace_bytes, needed);
    work.issue([=] {
      spoil(spoiled, needed);
      in_compute_type(from.tensor, [&](auto zero) {
        using T = decltype(zero);
        Sums<T> sums(to.tensor);
        each_product(v, from.tensor, filter.tensor, to.tensor,
                     [&](auto n, auto k, auto c, auto in, auto r, auto s, auto p, auto q, auto row, auto column) {
                       sums.at(n, k, p, q) +=
                           static_cast<T>(from(n, in, row, column)) * static_cast<T>(filter(k, c, r, s));
                     });
        sums.write(to);
      });
    });
  });
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                           const cudnnFilterDescriptor_t w_desc, const void* w,
                                           const cudnnTensorDescriptor_t dy_desc, const void* dy,
                                           const cudnnConvolutionDescriptor_t convolution,
                                           cudnnConvolutionBwdDataAlgo_t algo, void* workspace,
                                           std::size_t workspace_bytes, const void* beta,
                                           const cudnnTensorDescriptor_t dx_desc, void* dx) {
  return cudnn_call([&](World& world, ThreadState& thread) {
    CudnnWork work(world, thread, handle, "cudnnConvolutionBackwardData");
    check_call(work, convolution, dx_desc, w_desc, dy_desc, algo, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1);
    check_deterministic(world, "cudnnConvolutionBackwardData", algo == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1);
    const Convolution v = *convolution;
    const bool tf32 = rounds_to_tf32(v, *dy_desc);
    const Elements from{*dy_desc, work.reads(*dy_desc, dy), tf32}, filter{*w_desc, work.reads(*w_desc, w), tf32};
    const Results to{*dx_desc, work.writes(*dx_desc, dx), factor(alpha, *dy_desc), factor(beta, *dy_desc)};
    const std::size_t needed = workspace_of(algo);
    void* const spoiled = work.workspace(workspace, workspace_bytes, needed);
    work.issue([=] {
      spoil(spoiled, needed);
      in_compute_type(from.tensor, [&](auto zero) {
        using T = decltype(zero);
        Sums<T> sums(to.tensor);
        each_product(v, to.tensor, filter.tensor, from.tensor,
                     [&](auto n, auto k, auto c, auto in, auto r, auto s, auto p, auto q, auto row, auto column) {
                       sums.at(n, in, row, column) +=
                           static_cast<T>(from(n, k, p, q)) * static_cast<T>(filter(k, c, r, s));
                     });
        sums.write(to);
      });
    });
  });
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha,
                                             const cudnnTensorDescriptor_t x_desc, const void* x,
                                             const cudnnTensorDescriptor_t dy_desc, const void* dy,
                                             const cudnnConvolutionDescriptor_t convolution,
                                             cudnnConvolutionBwdFilterAlgo_t algo, void* workspace,
                                             std::size_t workspace_bytes, const void* beta,
                                             const cudnnFilterDescriptor_t dw_desc, void* dw) {
  return cudnn_call([&](World& world, ThreadState& thread) {
    CudnnWork work(world, thread, handle, "cudnnConvolutionBackwardFilter");
    check_call(work, convolution, x_desc, dw_desc, dy_desc, algo, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1);
    check_deterministic(world, "cudnnConvolutionBackwardFilter", algo == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1);
    const Convolution v = *convolution;
    const bool tf32 = rounds_to_tf32(v, *x_desc);
    const Elements from{*x_desc, work.reads(*x_desc, x), tf32}, grown{*dy_desc, work.reads(*dy_desc, dy), tf32};
    const Results to{*dw_desc, work.writes(*dw_desc, dw), factor(alpha, *x_desc), factor(beta, *x_desc)};
    const std::size_t needed = workspace_of(algo);
    void* const spoiled = work.workspace(workspace, workspace_bytes, needed);
    work.issue([=] {
      spoil(spoiled, needed);
      in_compute_type(from.tensor, [&](auto zero) {
        using T = decltype(zero);
        Sums<T> sums(to.tensor);
        each_product(v, from.tensor, to.tensor, grown.tensor,
                     [&](auto n, auto k, auto c, auto in, auto r, auto s, auto p, auto q, auto row, auto column) {
                       sums.at(k, c, r, s) +=
                           static_cast<T>(from(n, in, row, column)) * static_cast<T>(grown(n, k, p, q));
                     });
        sums.write(to);
      });
    });
  });
}

cudnnStatus_t cudnnConvolutionBackwardBias(cudnnHandle_t handle, const void* alpha,
                                           const cudnnTensorDescriptor_t dy_desc, const void* dy, const void* beta,
                                           const cudnnTensorDescriptor_t db_desc, void* db) {
  return cudnn_call([&](World& world, ThreadState& thread) {
    CudnnWork work(world, thread, handle, "cudnnConvolutionBackwardBias");
    if (!dy_desc || !db_desc) throw RefusedByCudnn{CUDNN_STATUS_BAD_PARAM_NULL_POINTER};
    if (db_desc->sizes != std::array<std::int64_t, 4>{1, dy_desc->sizes[1], 1, 1}) {
      work.refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                  "sizes that do not fit: dy " + in_words(*dy_desc) + ", db " + in_words(*db_desc));
    }
    const Elements from{*dy_desc, work.reads(*dy_desc, dy)};
    const Results to{*db_desc, work.writes(*db_desc, db), factor(alpha, *dy_desc), factor(beta, *dy_desc)};
    work.issue([=] {
      in_compute_type(from.tensor, [&](auto zero) {
        const auto& size = from.tensor.sizes;
        for (std::int64_t c = 0; c < size[1]; ++c) {
          auto sum = zero;
          for (std::int64_t n = 0; n < size[0]; ++n) {
            for (std::int64_t h = 0; h < size[2]; ++h) {
              for (std::int64_t w = 0; w < size[3]; ++w) sum += static_cast<decltype(zero)>(from(n, c, h, w));
            }
          }
          to.put(0, c, 0, 0, static_cast<double>(sum));
        }
      });
    });
  });
}

cudnnStatus_t cudnnAddTensor(cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t a_desc,
                             const void* a, const void* beta, const cudnnTensorDescriptor_t c_desc, void* c) {
  return cudnn_call([&](World& world, ThreadState& thread) {
    CudnnWork work(world, thread, handle, "cudnnAddTensor");
    if (!a_desc || !c_desc) throw RefusedByCudnn{CUDNN_STATUS_BAD_PARAM_NULL_POINTER};
    for (std::size_t i = 0; i < 4; ++i) {
      if (a_desc->sizes[i] == 1 || a_desc->sizes[i] == c_desc->sizes[i]) continue;
      work.refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                  "sizes that do not fit: a " + in_words(*a_desc) + ", c " + in_words(*c_desc));
    }
    if (a_desc->type != c_desc->type) throw RefusedByCudnn{CUDNN_STATUS_NOT_SUPPORTED};
    const Elements from{*a_desc, work.reads(*a_desc, a)};
    const Results to{*c_desc, work.writes(*c_desc, c), factor(alpha, *a_desc), factor(beta, *a_desc)};
    work.issue([=] {
      const auto& size = to.tensor.sizes;
      const auto& own = from.tensor.sizes;
      for (std::int64_t n = 0; n < size[0]; ++n) {
        for (std::int64_t k = 0; k < size[1]; ++k) {
          for (std::int64_t h = 0; h < size[2]; ++h) {
            for (std::int64_t w = 0; w < size[3]; ++w) {
              to.put(n, k, h, w, from(n % own[0], k % own[1], h % own[2], w % own[3]));
            }
          }
        }
      }
    });
  });
}
