#include "sluice/ndarray/layout.h"

#include <algorithm>

#include "sluice/engine/detail/forks.h"
#include "sluice/ndarray/nd_array.h"

namespace sluice {
namespace {

using Kind = Placement::Kind;

/// The pieces of [0, size) that an axis of a mesh with p places cuts, in units.
void cut_piece(std::vector<std::int64_t>& into, std::int64_t begin, std::int64_t size, std::int64_t unit, int p) {
  const std::int64_t units = size / unit;
  for (int r = 0; r < p; ++r) {
    // r * units / p without overflow.
    into.push_back(begin + (units / p * r + units % p * r / p) * unit);
  }
}

}  // namespace

std::string to_string(const Placement& placement) {
  static constexpr const char* names[] = {"sum", "max", "min"};
  switch (placement.kind) {
    case Kind::shard:
      return "shard(" + std::to_string(placement.axis) + ")" +
             (placement.unit == 1 ? "" : ".by(" + std::to_string(placement.unit) + ")");
    case Kind::partial:
      return std::string("partial(") + names[static_cast<int>(placement.op)] + ")";
    default:
      return "replicate";
  }
}

Layout::Layout(const Mesh& mesh, const Dims& shape, std::vector<Placement> on, Cuts cuts) {
  auto data = std::make_shared<Data>(Data{mesh, shape, std::move(on), std::move(cuts), true});
  for (const Placement& p : data->on) data->plain = data->plain && p.kind == Kind::replicate;
  data_ = std::move(data);
}

Layout Layout::whole(const Mesh& mesh, const Dims& shape) {
  return Layout(mesh, shape, std::vector<Placement>(static_cast<std::size_t>(mesh.axes())), Cuts());
}

Layout::Layout(const Mesh& mesh, const Dims& shape, const Placements& placements, Where where)
    : Layout(whole(mesh, shape).with(placements, where)) {}

Layout Layout::with(const Placements& placements, Where where) const {
  const auto refuse = [&](const std::string& name, const Placement& p, const std::string& why) {
    throw ArrayError("layout", where,
                     sluice::to_string(shape()) + " " + name + ":" + sluice::to_string(p) + ": " + why);
  };
  if (!data_) throw UsageError("[layout] " + to_string(where) + ": an array on no mesh");
  std::vector<Placement> on = data_->on;
  std::vector<bool> named(on.size());
  Cuts cuts = data_->cuts;
  std::array<bool, kMaxRank> cut_anew{};
  for (const auto& [name, given] : placements) {
    const auto at = static_cast<std::size_t>(mesh().axis(name, where));
    if (named[at]) throw UsageError("[layout] " + to_string(where) + ": the axis " + name + " is named twice");
    named[at] = true;
    Placement p = given;
    if (p.kind == Kind::shard) {
      if (p.axis < 0) p.axis += shape().rank();
      if (p.axis < 0 || p.axis >= shape().rank()) refuse(name, given, "the array has no such axis");
      if (p.unit < 1) refuse(name, given, "a unit is 1 or more");
      cut_anew[static_cast<std::size_t>(p.axis)] = true;
    }
    if (on[at].kind == Kind::shard) cut_anew[static_cast<std::size_t>(on[at].axis)] = true;
    on[at] = p;
  }
  for (int axis = 0; axis < shape().rank(); ++axis) {
    if (!cut_anew[static_cast<std::size_t>(axis)]) continue;
    // What axes of the mesh cut that stay as they are, before the first that does not, stays too.
    int kept = 0, pieces = 1;
    bool any = false;
    for (; kept < mesh().axes() && !named[static_cast<std::size_t>(kept)]; ++kept) {
      if (this->on(kept).kind != Kind::shard || this->on(kept).axis != axis) continue;
      any = true;
      pieces *= mesh().size(kept);
    }
    std::vector<std::int64_t> edges{0, shape()[axis]};
    if (any) {
      edges.clear();
      const std::size_t step = (cuts[static_cast<std::size_t>(axis)].size() - 1) / static_cast<std::size_t>(pieces);
      for (std::size_t i = 0; i <= static_cast<std::size_t>(pieces); ++i) {
        edges.push_back(cuts[static_cast<std::size_t>(axis)][i * step]);
      }
    }
    for (int m = kept; m < mesh().axes(); ++m) {
      const Placement& p = on[static_cast<std::size_t>(m)];
      if (p.kind != Kind::shard || p.axis != axis) continue;
      any = true;
      std::vector<std::int64_t> finer;
      for (std::size_t i = 0; i + 1 < edges.size(); ++i) {
        const std::int64_t size = edges[i + 1] - edges[i];
        if (size % p.unit != 0) {
          refuse(mesh().name(m), p, std::to_string(size) + " is no multiple of " + std::to_string(p.unit));
        }
        cut_piece(finer, edges[i], size, p.unit, mesh().size(m));
      }
      finer.push_back(shape()[axis]);
      edges = std::move(finer);
    }
    cuts[static_cast<std::size_t>(axis)] = any ? std::move(edges) : std::vector<std::int64_t>();
  }
  for (Placement& p : on) p.unit = 1;
  return Layout(mesh(), shape(), std::move(on), std::move(cuts));
}

const Mesh& Layout::mesh() const {
  if (data_) return data_->mesh;
  return detail::first_use([] {
    static const Mesh none;
    return &none;
  });
}

int Layout::piece(int rank, int axis) const {
  int at = 0;
  for (int m = 0; m < mesh().axes(); ++m) {
    if (on(m).kind == Kind::shard && on(m).axis == axis) at = at * mesh().size(m) + mesh().coordinate(rank, m);
  }
  return at;
}

Dims Layout::begin(int rank) const {
  Dims result = shape();
  for (int i = 0; i < result.rank(); ++i) {
    result[i] = cut(i) ? cuts(i)[static_cast<std::size_t>(piece(rank, i))] : 0;
  }
  return result;
}

Dims Layout::extent(int rank) const {
  Dims result = shape();
  for (int i = 0; i < result.rank(); ++i) {
    if (!cut(i)) continue;
    const auto at = static_cast<std::size_t>(piece(rank, i));
    result[i] = cuts(i)[at + 1] - cuts(i)[at];
  }
  return result;
}

bool Layout::partial() const {
  return data_ &&
         std::any_of(data_->on.begin(), data_->on.end(), [](const Placement& p) { return p.kind == Kind::partial; });
}

bool operator==(const Layout& a, const Layout& b) {
  if (a.data_ == b.data_) return true;
  if (!a.data_ || !b.data_) return false;
  return a.data_->mesh == b.data_->mesh && a.data_->shape == b.data_->shape && a.data_->on == b.data_->on &&
         a.data_->cuts == b.data_->cuts;
}

std::string to_string(const Layout& layout) {
  if (!layout) return "on no mesh";
  std::string text;
  for (int m = 0; m < layout.mesh().axes(); ++m) {
    if (layout.on(m).kind == Kind::replicate) continue;
    text += (text.empty() ? "" : " ") + layout.mesh().name(m) + ":" + to_string(layout.on(m));
  }
  return text.empty() ? "replicate" : text;
}

}  // namespace sluice
