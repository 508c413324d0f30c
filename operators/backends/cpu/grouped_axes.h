// A reduction's input as (outer, reduced, inner), whatever axes are reduced.
#pragma once

#include "sluice/ndarray/strided_copy.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/registry.h"

namespace sluice::cpu_backend {

/// Contiguous memory of shape (outer, reduced, inner), where `reduced` are a reduction's axes: the input itself, or
/// where the axes lie otherwise a copy with outer the kept axes and inner 1. Group g = (o, i) is output element g in
/// row-major order.
struct GroupedAxes {
  const std::byte* data = nullptr;
  std::int64_t outer = 1, reduced = 1, inner = 1;
  Scratch packed;

  GroupedAxes(ArrayContext& c, const TensorView& x, std::uint32_t axes) {
    Dims kept, gone;
    bool seen_reduced = false, seen_inner = false, regular = is_row_major(x);
    for (int i = 0; i < x.shape.rank(); ++i) {
      const bool reduces = (axes >> i & 1U) != 0;
      (reduces ? gone : kept).push_back(i);
      if (reduces) {
        reduced *= x.shape[i];
        seen_reduced = true;
        if (seen_inner && x.shape[i] != 1) regular = false;
      } else if (seen_reduced) {
        inner *= x.shape[i];
        if (x.shape[i] != 1) seen_inner = true;
      } else {
        outer *= x.shape[i];
      }
    }
    data = x.data;
    if (regular) return;
    outer *= inner;
    inner = 1;
    TensorView from = x;
    from.shape = from.strides = Dims{};
    for (const Dims* list : {&kept, &gone}) {
      for (std::int64_t i : *list) {
        from.shape.push_back(x.shape[static_cast<int>(i)]);
        from.strides.push_back(x.strides[static_cast<int>(i)]);
      }
    }
    packed = c.scratch(static_cast<std::size_t>(x.count()) * size_of(x.dtype));
    strided_copy(from, {packed.as<std::byte>(), x.dtype, from.shape, row_major(from.shape)});
    data = packed.as<std::byte>();
  }
};

}  // namespace sluice::cpu_backend
