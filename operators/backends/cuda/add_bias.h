// What follows a product or a convolution whose library adds no bias.
#pragma once

#include <cstdint>

#include "sluice/operators/backends/cuda/elementwise.h"
#include "sluice/operators/backends/cuda/kernel.h"

namespace sluice::cuda {

/// y = y + bias of its channel, if there is one, and with relu negative results become 0. A channel has `plane`
/// elements that follow each other; the columns of a product are channels of one.
template <class T>
struct AddBias {
  T* y;
  const T* bias;
  std::int64_t channels, plane;
  bool relu;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(bias);
  }
  __device__ void operator()(std::int64_t i) const {
    compute_of<T> value = number(y[i]);
    if (bias) value = value + number(bias[i / plane % channels]);
    if (relu && value < compute_of<T>(0)) value = 0;
    y[i] = T(value);
  }
};

}  // namespace sluice::cuda
