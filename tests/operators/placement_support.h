// Arrays on meshes for tests: made of terms and shards by hand, and put together again by hand.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "../support/devices.h"
#include "operator_case.h"
#include "sluice/operators/placed_owner.h"
#include "sluice/sluice.h"

namespace sluice::testing {

inline std::vector<double> doubles_of(const NDArray& x) {
  const NoGrad scope;
  const NDArray here = layout_of(x) ? shards_of(whole(x))[0] : x;
  return here.to(cpu(0)).to(DType::f64).to_vector<double>();
}

/// x in a layout, which may be partial: the terms of a sum are parts of x that differ from place to place, those of a
/// maximum x and less.
inline NDArray placed_as(const NDArray& x, const Layout& layout) {
  const NoGrad scope;
  std::vector<NDArray> shards;
  const Mesh& mesh = layout.mesh();
  for (int rank = 0; rank < mesh.places(); ++rank) {
    NDArray part = x.detach();
    const Dims begin = layout.begin(rank), size = layout.extent(rank);
    for (int axis = 0; axis < size.rank(); ++axis) part = part.narrow(axis, begin[axis], begin[axis] + size[axis]);
    for (int m = 0; m < mesh.axes(); ++m) {
      if (layout.on(m).kind != Placement::Kind::partial) continue;
      const int k = mesh.coordinate(rank, m), p = mesh.size(m);
      const bool floating = is_floating(x.dtype());
      if (layout.on(m).op == ReduceOp::max) {
        part = k == p - 1 ? part : part - 1;
      } else if (layout.on(m).op == ReduceOp::min) {
        part = k == p - 1 ? part : part + 1;
      } else if (floating) {  // 0.25 of it, and the rest at the last place
        part = part * (k == p - 1 ? 1 - 0.25 * (p - 1) : 0.25);
      } else {
        part = k == p - 1 ? part - 3 * (p - 1) : full_like(part, 3);
      }
    }
    shards.push_back(part.copy().to(mesh.device(rank)));
  }
  return builtin::Placed::array(layout, x.dtype(), std::move(shards), std::source_location::current());
}

/// The elements of an array on a mesh, from its shards one by one; of a plain array its own. Terms are combined in
/// f64. Replicas must be equal bit by bit.
inline std::vector<double> put_together(const NDArray& x, const std::string& what) {
  const Layout layout = layout_of(x);
  if (!layout) return doubles_of(x);
  const Mesh& mesh = layout.mesh();
  const std::vector<NDArray> shards = shards_of(x);
  std::vector<double> whole(static_cast<std::size_t>(x.count()), 0);
  std::vector<bool> seen(whole.size());
  std::map<std::vector<int>, std::vector<std::byte>> replicas;
  for (int rank = 0; rank < mesh.places(); ++rank) {
    const NDArray& shard = shards[static_cast<std::size_t>(rank)];
    const Dims begin = layout.begin(rank), size = layout.extent(rank);
    EXPECT_EQ(shard.shape(), size) << what << ": shard " << rank;
    EXPECT_EQ(shard.device(), mesh.device(rank)) << what << ": shard " << rank;
    if (!(shard.shape() == size)) return {};
    std::vector<int> place;
    for (int m = 0; m < mesh.axes(); ++m) {
      place.push_back(layout.on(m).kind == Placement::Kind::replicate ? -1 : mesh.coordinate(rank, m));
    }
    const std::vector<std::byte> bytes = shard.to_bytes();
    const auto [first, fresh] = replicas.try_emplace(place, bytes);
    if (!fresh) {
      EXPECT_EQ(first->second, bytes) << what << ": replica " << rank;
      continue;
    }
    const std::vector<double> values = doubles_of(shard);
    const Dims local = row_major(size), global = row_major(x.shape());
    ReduceOp op = ReduceOp::sum;
    for (int m = 0; m < mesh.axes(); ++m) {
      if (layout.on(m).kind == Placement::Kind::partial) op = layout.on(m).op;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::int64_t at = 0;
      for (int axis = 0; axis < size.rank(); ++axis) {
        at += (static_cast<std::int64_t>(i) / local[axis] % size[axis] + begin[axis]) * global[axis];
      }
      const auto k = static_cast<std::size_t>(at);
      if (!seen[k]) {
        whole[k] = values[i];
      } else if (op == ReduceOp::sum) {
        whole[k] += values[i];
      } else {
        whole[k] = op == ReduceOp::max ? std::max(whole[k], values[i]) : std::min(whole[k], values[i]);
      }
      seen[k] = true;
    }
  }
  for (const bool one : seen) {
    EXPECT_TRUE(one) << what << ": an element is in no shard";
    if (!one) return {};
  }
  return whole;
}

/// The largest difference, relative to the largest element; infinite where one is NaN and the other is not.
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double scale = 1, far = 0;
  for (const double v : a) scale = std::isfinite(v) ? std::max(scale, std::abs(v)) : scale;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    far = std::max(far, std::isfinite(a[i]) && std::isfinite(b[i]) ? std::abs(a[i] - b[i]) / scale : INFINITY);
  }
  return far;
}

/// "R", "S0", "P": of all axes of the mesh.
inline std::string letters_of(const Layout& layout) {
  std::string text;
  for (int m = 0; m < layout.mesh().axes(); ++m) {
    const Placement& p = layout.on(m);
    text += p.kind == Placement::Kind::replicate ? "R"
            : p.kind == Placement::Kind::shard   ? "S" + std::to_string(p.axis)
            : p.op == ReduceOp::sum              ? "P"
            : p.op == ReduceOp::max              ? "Pmax"
                                                 : "Pmin";
  }
  return text;
}

}  // namespace sluice::testing
