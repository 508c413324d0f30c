// What kernels of attention and of its gradient share: sizes, and which keys a query sees.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sluice/ndarray/tensor_view.h"
#include "sluice/operators/attention.h"
#include "sluice/resources/host_device.h"

namespace sluice {

/// Of contiguous q (batch, heads, n, size), k (batch, groups, m, size), v (batch, groups, m, value_size) and a mask
/// whose axes have these sizes or 1. A query row is (batch * heads + head) * n + i, a key row likewise with groups.
struct AttentionSizes {
  std::int64_t batch, heads, groups, n, m, size, value_size;
  double scale;
  bool causal;
  std::int64_t mask[4] = {};  ///< steps of the mask along batch, heads, n, m

  AttentionSizes(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView* mask_view,
                 const AttentionAttributes& a)
      : batch(q.shape[0]),
        heads(q.shape[1]),
        groups(k.shape[1]),
        n(q.shape[2]),
        m(k.shape[2]),
        size(q.shape[3]),
        value_size(v.shape[3]),
        scale(a.scale),
        causal(a.causal) {
    if (!mask_view) return;
    const Dims strides = row_major(mask_view->shape);
    for (int i = 0; i < 4; ++i) mask[i] = mask_view->shape[i] == 1 ? 0 : strides[i];
  }
  SLUICE_HD std::int64_t query_rows() const { return batch * heads * n; }
  SLUICE_HD std::int64_t key_rows() const { return batch * groups * m; }
  /// The group, counted through all batches, that serves a head that is counted so.
  SLUICE_HD std::int64_t group_of(std::int64_t head) const {
    return head / heads * groups + head % heads / (heads / groups);
  }
  /// Query i sees the keys below.
  SLUICE_HD std::int64_t keys_of(std::int64_t i) const {
    if (!causal) return m;
    const std::int64_t keys = i + m - n + 1;
    return keys < 0 ? 0 : keys;
  }
  /// The first query that sees key j.
  SLUICE_HD std::int64_t first_query_of(std::int64_t j) const {
    if (!causal) return 0;
    const std::int64_t first = j - (m - n);
    return first < 0 ? 0 : first;
  }
  /// Where the mask of a head, counted through all batches, of query i and key j is.
  SLUICE_HD std::int64_t mask_at(std::int64_t head, std::int64_t i, std::int64_t j) const {
    return head / heads * mask[0] + head % heads * mask[1] + i * mask[2] + j * mask[3];
  }
};

}  // namespace sluice
