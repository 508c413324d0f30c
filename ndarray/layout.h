// Layout: how an array lies on a mesh. The array keeps its whole (global) shape; each place of the mesh has a shard.
//
// For each axis of the mesh an array is
//   replicate    whole at each place along it: bit for bit the same values
//   shard(i)     cut along its axis i: shard r of p holds the elements [r n / p, (r + 1) n / p). Nothing is padded: n
//                need not divide, and shards may be empty. shard(i).by(u) cuts at multiples of u (heads of a layer).
//   partial(op)  a term at each place: the value is their sum (or maximum, or minimum), which nobody has made yet
//
// Several axes of the mesh may cut one axis of an array: the first of them cuts the whole, the next cuts each piece.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "sluice/ndarray/dims.h"
#include "sluice/ndarray/mesh.h"

namespace sluice {

/// What the terms of a partial array are combined by.
enum class ReduceOp : std::uint8_t { sum, max, min };

/// How an array lies along one axis of a mesh.
struct Placement {
  enum class Kind : std::uint8_t { replicate, shard, partial };
  Kind kind = Kind::replicate;
  ReduceOp op = ReduceOp::sum;  ///< of partial
  int axis = 0;                 ///< of shard: the array's; negative ones count from the last
  std::int64_t unit = 1;        ///< of shard: cuts are multiples of it

  /// The same, cut at multiples of u, of which the axis must be one.
  constexpr Placement by(std::int64_t u) const {
    Placement other = *this;
    other.unit = u;
    return other;
  }
  friend constexpr bool operator==(const Placement&, const Placement&) = default;
};
inline constexpr Placement replicate{};
constexpr Placement shard(int axis) { return {Placement::Kind::shard, ReduceOp::sum, axis, 1}; }
constexpr Placement partial(ReduceOp op = ReduceOp::sum) { return {Placement::Kind::partial, op, 0, 1}; }
/// "shard(1)", "partial(sum)", "replicate".
std::string to_string(const Placement& placement);

/// Placements by names of axes of a mesh. Axes that are not named are left as they are: replicate for a new array.
using Placements = std::vector<std::pair<std::string, Placement>>;

/// A layout of arrays of one shape. A value: copies share what they hold, and never change. Thread-safe.
class Layout {
 public:
  using Where = const std::source_location&;
  /// Of arrays on no mesh.
  Layout() = default;
  /// Throws ArrayError for an axis that the array does not have, and for a unit that does not divide what is cut;
  /// UsageError for an axis that the mesh does not have, or that is named twice.
  Layout(const Mesh& mesh, const Dims& shape, const Placements& placements = {},
         Where where = std::source_location::current());

  explicit operator bool() const { return data_ != nullptr; }
  /// No mesh for no layout.
  const Mesh& mesh() const;
  // Of a layout that is one:
  /// Of an axis of the mesh. `axis` is not negative there, and `unit` is 1: cuts() has the rest.
  const Placement& on(int mesh_axis) const { return data_->on[static_cast<std::size_t>(mesh_axis)]; }
  /// Where the pieces of an axis of the array begin, and last its size; empty for an axis that is not cut.
  const std::vector<std::int64_t>& cuts(int axis) const { return data_->cuts[static_cast<std::size_t>(axis)]; }
  bool cut(int axis) const { return !cuts(axis).empty(); }
  /// Which piece of an axis a place has; 0 where it is not cut.
  int piece(int rank, int axis) const;
  /// Where the shard of a place begins in the array, and its shape.
  Dims begin(int rank) const;
  Dims extent(int rank) const;
  /// Of the whole array.
  const Dims& shape() const { return data_->shape; }
  bool replicated() const { return !data_ || data_->plain; }
  bool partial() const;

  /// Another layout of the array: with these placements on the axes of the mesh that they name. Axes of the mesh behind
  /// the first of those cut anew what they cut, in units of 1. Throws as the constructor does, and UsageError for no
  /// layout.
  Layout with(const Placements& placements, Where where = std::source_location::current()) const;
  /// Replicated on this mesh, of an array of this shape.
  static Layout whole(const Mesh& mesh, const Dims& shape);

  /// Equal meshes, shapes, placements and cuts.
  friend bool operator==(const Layout& a, const Layout& b);

  /// What a rule makes: placements for each axis of the mesh, and the cuts of axes that are cut. Not checked.
  using Cuts = std::array<std::vector<std::int64_t>, kMaxRank>;
  Layout(const Mesh& mesh, const Dims& shape, std::vector<Placement> on, Cuts cuts);

 private:
  struct Data {
    Mesh mesh;
    Dims shape;
    std::vector<Placement> on;  ///< by axis of the mesh
    Cuts cuts;                  ///< by axis of the array
    bool plain = true;
  };
  std::shared_ptr<const Data> data_;
};

/// "dp:shard(0) tp:partial(sum)"; axes on which it is replicated are left out, "replicate" if it is on all.
std::string to_string(const Layout& layout);

}  // namespace sluice
