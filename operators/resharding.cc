// What moves elements between the places of a mesh.
#include <algorithm>
#include <functional>

#include "sluice/engine/scope.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/placed_owner.h"

namespace sluice::builtin {
namespace {

using Kind = Placement::Kind;
using Shards = std::vector<NDArray>;

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

/// An array for a kernel of `device`: CPUs read each other's memory, other devices get a copy.
NDArray near(const NDArray& x, Device device, const std::source_location& where) {
  const bool cpus = device.kind == DeviceKind::cpu && x.device().kind == DeviceKind::cpu;
  return cpus ? x : x.to(device, where);
}

/// A call on `device`, of arrays that are near it.
NDArray on_device(const char* row, const Shards& inputs, const Attributes& attributes, Device device,
                  const std::source_location& where) {
  std::vector<const NDArray*> list;
  for (const NDArray& x : inputs) list.push_back(&x);
  return apply_all(Registry::instance().get(row), list, attributes, {.where = where, .on = device})[0];
}

/// The terms combined in the order of their ranks, on `device`.
NDArray combined(Shards terms, ReduceOp op, Device device, const std::source_location& where) {
  if (terms.size() > 1 && op == ReduceOp::sum) {
    for (NDArray& x : terms) x = near(x, device, where);
    return on_device("add_n", terms, {}, device, where);
  }
  NDArray total = terms[0].to(device, where);
  for (std::size_t i = 1; i < terms.size(); ++i) {
    const NDArray term = terms[i].to(device, where);
    total = op == ReduceOp::max ? maximum({total, where}, term) : minimum({total, where}, term);
  }
  return total;
}

/// Pieces one behind the other, on `device`, once all of `after` is there.
NDArray joined(Shards pieces, int axis, Device device, const Shards& after, const std::source_location& where) {
  for (NDArray& x : pieces) x = near(x, device, where);
  Dims nothing = pieces[0].shape();
  nothing[axis] = 0;
  for (const NDArray& x : after) {  // pieces without elements, which are read all the same
    if (device.kind != DeviceKind::cpu || x.device().kind != DeviceKind::cpu || x.dtype() != pieces[0].dtype() ||
        x.rank() == 0)
      continue;
    pieces.push_back(x.narrow(0, 0, 0, where).reshape(nothing, where));
  }
  return on_device("concat", pieces, AxisAttributes{axis, 0, DType::f32}, device, where);
}

/// A copy on `device`.
NDArray copied(const NDArray& x, Device device, const std::source_location& where) {
  return x.device() == device ? x.copy(where) : x.to(device, where);
}

/// The sum along axis m of the mesh at each place of it: place j combines part j of all, and hands it out.
void all_reduce(Shards& shards, const Mesh& mesh, int m, ReduceOp op, const std::source_location& where) {
  const int p = mesh.size(m), step = mesh.stride(m);
  for (int first = 0; first < mesh.places(); ++first) {
    if (mesh.coordinate(first, m) != 0) continue;
    const Dims shape = shards[at(first)].shape();
    const std::int64_t n = shape.count();
    Shards flat, parts;
    for (int k = 0; k < p; ++k) flat.push_back(shards[at(first + k * step)].reshape({n}, where));
    for (int j = 0; j < p; ++j) {
      const std::int64_t begin = n / p * j + n % p * j / p, end = n / p * (j + 1) + n % p * (j + 1) / p;
      if (begin == end) continue;
      Shards terms;
      for (const NDArray& x : flat) terms.push_back(x.narrow(0, begin, end, where));
      parts.push_back(combined(std::move(terms), op, mesh.device(first + j * step), where));
    }
    for (int k = 0; k < p && n > 0; ++k) {
      const Device device = mesh.device(first + k * step);
      const NDArray all = parts.size() == 1 ? copied(parts[0], device, where) : joined(parts, 0, device, {}, where);
      shards[at(first + k * step)] = all.reshape(shape, where);
    }
  }
}

/// The pieces of place `rank` in `to`, joined: `from` is partial only where `to` is.
NDArray gathered(const Shards& shards, const Layout& from, const Layout& to, int rank, const Shards& after,
                 const std::source_location& where) {
  const Mesh& mesh = from.mesh();
  const Dims begin = to.begin(rank), size = to.extent(rank);
  if (size.count() == 0) {
    const DeviceScope scope(mesh.device(rank));
    return zeros(size, shards[at(rank)].dtype(), where);
  }
  Dims piece = size;  // which one of each axis
  int alone = -1;     // the place of the only piece
  const std::function<NDArray(int)> join = [&](int axis) -> NDArray {
    if (axis == size.rank()) {
      int source = 0;
      for (int m = 0; m < mesh.axes(); ++m) {
        int coordinate = mesh.coordinate(rank, m);
        if (from.on(m).kind == Kind::shard) {
          std::int64_t rest = piece[from.on(m).axis];
          for (int inner = mesh.axes() - 1; inner > m; --inner) {
            if (from.on(inner) == from.on(m)) rest /= mesh.size(inner);
          }
          coordinate = static_cast<int>(rest % mesh.size(m));
        }
        source += coordinate * mesh.stride(m);
      }
      NDArray x = shards[at(source)];
      const Dims has = from.begin(source), there = from.extent(source);
      for (int i = 0; i < size.rank(); ++i) {
        const std::int64_t first = std::max(begin[i], has[i]), last = std::min(begin[i] + size[i], has[i] + there[i]);
        if (last - first != there[i]) x = x.narrow(i, first - has[i], last - has[i], where);
      }
      alone = source;
      return x;
    }
    if (!from.cut(axis)) return join(axis + 1);
    const std::vector<std::int64_t>& cuts = from.cuts(axis);
    Shards list;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      if (cuts[i] == cuts[i + 1] || cuts[i] >= begin[axis] + size[axis] || cuts[i + 1] <= begin[axis]) continue;
      piece[axis] = static_cast<std::int64_t>(i);
      list.push_back(join(axis + 1));
    }
    if (list.size() == 1) return list[0];
    alone = -1;
    return joined(std::move(list), axis, mesh.device(rank), after, where);
  };
  const NDArray x = join(0);
  return alone < 0 || alone == rank ? x : copied(x, mesh.device(rank), where);  // two shards are two arrays
}

/// How many axes of the mesh cut an axis of the array.
int cutters(const Layout& layout, int axis) {
  int n = 0;
  for (int m = 0; m < layout.mesh().axes(); ++m) n += layout.on(m).kind == Kind::shard && layout.on(m).axis == axis;
  return n;
}

/// The chain of steps, as it grows.
class Steps {
 public:
  Steps(const Layout& from, const Layout& to) : now_(from), to_(to) {}

  std::vector<ReshardStep> all_of_them() {
    const Mesh& mesh = to_.mesh();
    for (int m = 0; m < mesh.axes(); ++m) {
      if (now_.on(m).kind == Kind::replicate && alone(m)) go(ReshardStep::Kind::slice, m, to_.on(m));
    }
    for (int m = 0; m < mesh.axes(); ++m) {
      if (now_.on(m).kind != Kind::partial || to_.on(m).kind == Kind::partial) continue;
      const bool scatters = alone(m);
      go(scatters ? ReshardStep::Kind::reduce_scatter : ReshardStep::Kind::all_reduce, m,
         scatters ? to_.on(m) : replicate);
    }
    for (int m = mesh.axes(); m-- > 0;) {
      if (now_.on(m).kind != Kind::shard) continue;
      const int axis = now_.on(m).axis;
      if (settled(axis)) continue;
      const bool moves = cutters(now_, axis) == 1 && to_.on(m).axis != axis && alone(m);
      go(moves ? ReshardStep::Kind::all_to_all : ReshardStep::Kind::all_gather, m, moves ? to_.on(m) : replicate);
    }
    for (int m = 0; m < mesh.axes(); ++m) {
      if (now_.on(m).kind == Kind::replicate && to_.on(m).kind == Kind::shard)
        go(ReshardStep::Kind::slice, m, to_.on(m));
    }
    return std::move(steps_);
  }

 private:
  /// Whether the place along m is to cut an axis of the array that nothing cuts now, and that nothing else will.
  bool alone(int m) const {
    return to_.on(m).kind == Kind::shard && cutters(to_, to_.on(m).axis) == 1 && !now_.cut(to_.on(m).axis);
  }
  /// Whether an axis of the array is cut as it is to be, or so that its pieces need only be cut further.
  bool settled(int axis) const {
    int pieces = 1;
    bool further = false;
    for (int m = 0; m < to_.mesh().axes(); ++m) {
      const auto cuts = [&](const Layout& layout) {
        return layout.on(m).kind == Kind::shard && layout.on(m).axis == axis;
      };
      if (cuts(now_) && (further || !cuts(to_))) return false;
      further = further || cuts(to_) != cuts(now_);
      if (cuts(now_)) pieces *= to_.mesh().size(m);
    }
    const std::vector<std::int64_t>&coarse = now_.cuts(axis), &fine = to_.cuts(axis);
    const std::size_t step = (fine.size() - 1) / at(pieces);
    for (std::size_t i = 0; i < coarse.size(); ++i) {
      if (coarse[i] != fine[i * step]) return false;
    }
    return true;
  }
  void go(ReshardStep::Kind kind, int m, const Placement& placement) {
    std::vector<Placement> on;
    for (int k = 0; k < to_.mesh().axes(); ++k) on.push_back(k == m ? placement : now_.on(k));
    Layout::Cuts cuts;
    for (int axis = 0; axis < to_.shape().rank(); ++axis) {
      // Pieces of the first axes of the mesh that cut it: every so many of the finest ones.
      int pieces = 1;
      bool any = false;
      for (int k = 0; k < to_.mesh().axes(); ++k) {
        const Placement& p = on[static_cast<std::size_t>(k)];
        if (p.kind != Kind::shard || p.axis != axis) continue;
        pieces *= to_.mesh().size(k);
        any = true;
      }
      if (!any) continue;
      const bool grows = placement.kind == Kind::shard && placement.axis == axis;
      const std::vector<std::int64_t>& finest = grows ? to_.cuts(axis) : now_.cuts(axis);
      const std::size_t step = (finest.size() - 1) / at(pieces);
      for (std::size_t i = 0; i < finest.size(); i += step) cuts[at(axis)].push_back(finest[i]);
    }
    Layout next(to_.mesh(), to_.shape(), std::move(on), std::move(cuts));
    steps_.push_back({kind, m, now_, next});
    now_ = std::move(next);
  }

  Layout now_;
  const Layout& to_;
  std::vector<ReshardStep> steps_;
};

/// Each place adds up its own piece.
Shards reduce_scatter(const Shards& shards, const ReshardStep& step, const std::source_location& where) {
  const Mesh& mesh = step.to.mesh();
  const int axis = step.to.on(step.mesh_axis).axis;
  Shards result;
  for (int rank = 0; rank < mesh.places(); ++rank) {
    const std::int64_t begin = step.to.begin(rank)[axis], size = step.to.extent(rank)[axis];
    const int stride = mesh.stride(step.mesh_axis), first = rank - mesh.coordinate(rank, step.mesh_axis) * stride;
    Shards terms;
    for (int k = 0; k < mesh.size(step.mesh_axis); ++k) {
      terms.push_back(shards[at(first + k * stride)].narrow(axis, begin, begin + size, where));
    }
    result.push_back(combined(std::move(terms), step.from.on(step.mesh_axis).op, mesh.device(rank), where));
  }
  return result;
}

}  // namespace

std::vector<ReshardStep> reshard_steps(const Layout& from, const Layout& to) { return Steps(from, to).all_of_them(); }

NDArray gathered_at(const std::vector<NDArray>& shards, const Layout& from, int rank,
                    const std::source_location& where) {
  return gathered(shards, from, Layout::whole(from.mesh(), from.shape()), rank, {}, where);
}

std::vector<NDArray> resharded(const std::vector<NDArray>& shards, const Layout& from, const Layout& to,
                               const std::source_location& where, const std::vector<NDArray>& after) {
  Shards now;
  for (const NDArray& x : shards) now.push_back(x.detach(where));
  for (const ReshardStep& step : reshard_steps(from, to)) {
    if (step.kind == ReshardStep::Kind::all_reduce) {
      all_reduce(now, from.mesh(), step.mesh_axis, step.from.on(step.mesh_axis).op, where);
    } else if (step.kind == ReshardStep::Kind::reduce_scatter) {
      now = reduce_scatter(now, step, where);
    } else {
      Shards moved;
      for (int rank = 0; rank < from.mesh().places(); ++rank) {
        // Kernels may add up in an order that depends on strides, and replicas are to have the same bits: what one
        // place has itself, as a view, another gets as a copy.
        const NDArray x = gathered(now, step.from, step.to, rank, after, where);
        moved.push_back(step.kind == ReshardStep::Kind::slice ? x : x.contiguous(where));
      }
      now = std::move(moved);
    }
  }
  return now;
}

}  // namespace sluice::builtin
