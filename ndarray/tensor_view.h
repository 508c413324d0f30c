// TensorView: what a kernel works on, a strided window on memory of one element type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sluice/ndarray/dims.h"
#include "sluice/ndarray/dtype.h"

namespace sluice {

/// Memory with a shape; strides in elements, 0 for broadcast axes, negative for reversed ones. Owns nothing.
struct TensorView {
  std::byte* data = nullptr;  ///< the element at index (0, 0, ...)
  DType dtype = DType::f32;
  Dims shape;
  Dims strides;

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
  std::int64_t count() const { return shape.count(); }
};

/// True if the elements lie in row-major order without gaps (axes of size 1 may have any stride; empty is contiguous).
inline bool is_row_major(const Dims& shape, const Dims& strides) {
  std::int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && strides[i] != step) return false;
    step *= shape[i];
  }
  return true;
}
inline bool is_row_major(const TensorView& view) { return is_row_major(view.shape, view.strides); }

}  // namespace sluice
