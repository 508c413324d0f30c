// The owner of an array on a mesh. Internal; placed.h has what programs use.
#pragma once

#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "sluice/ndarray/layout.h"
#include "sluice/ndarray/owner.h"
#include "sluice/operators/registry.h"
#include "sluice/resources/random.h"

namespace sluice {
struct PlacedCall;
}

namespace sluice::builtin {

class Placed final : public Owner {
 public:
  /// `shards` by rank, of the layout's extents, on the mesh's devices. `in_calls`: with_call_layout(). `is_copy`: it is
  /// a view of a gathered array, so that what is written to it would be lost.
  Placed(Layout layout, std::vector<NDArray> shards, Layout in_calls = {}, bool is_copy = false)
      : layout_(std::move(layout)), shards_(std::move(shards)), in_calls_(std::move(in_calls)), is_copy_(is_copy) {}

  /// Null for an array that is not on a mesh.
  static const Placed* of(const NDArray& x);
  /// The array of these shards.
  static NDArray array(const Layout& layout, DType dtype, std::vector<NDArray> shards,
                       const std::source_location& where, const Layout& in_calls = {});

  const Layout& layout() const { return layout_; }
  /// How calls see it; and whether that is otherwise.
  const Layout& in_calls() const { return in_calls_ ? in_calls_ : layout_; }
  bool gathers() const { return static_cast<bool>(in_calls_); }
  bool is_copy() const { return is_copy_; }
  const std::vector<NDArray>& shards() const { return shards_; }
  /// What a place has of the part that `wanted` gives it. It must have all of it.
  NDArray part(int rank, const Layout& wanted, const std::source_location& where) const;

  void apply(Call& call) override;
  void view(ViewCall& call) override;
  Ref<Owner> snapshot() const override;
  NDArray constant(const Spec& spec, const Scalar& value, const std::source_location& where) const override;
  std::vector<NDArray> parts() const override { return shards_; }
  NDArray value() const override { return layout_.replicated() ? shards_[0] : NDArray(); }
  std::string refusal() const override;
  std::shared_ptr<const GradientLayout> gradient_layout() const override;

 private:
  /// The call, of operands as calls see them. True: it was made.
  static bool made_of_gathered(Call& call);

  Layout layout_;
  std::vector<NDArray> shards_;
  Layout in_calls_;  ///< none: as it lies
  bool is_copy_;
};

/// apply_all() of a call without targets that has one result, without a list of it.
NDArray apply_one(const Operator& op, std::span<const NDArray* const> inputs, const Attributes& attributes,
                  const std::source_location& where);

/// Whether x is on a mesh, and calls see it cut along this axis.
bool is_cut(const NDArray& x, int axis);
/// The same, but replicated where it is partial and `where_replicated`, if that is given, is replicated.
Layout added_up(const Layout& layout, const Layout* where_replicated = nullptr);

/// Numbers of f32 in [0, 1) for the elements of x: uniform() of its shape, laid out as x is. Each place draws its own
/// part of the one draw.
NDArray uniform_like(const NDArray& x, const RandomKey& key, std::uint64_t first, const std::source_location& where);
inline NDArray uniform_like(const NDArray& x, RandomStream& stream, std::uint64_t first,
                            const std::source_location& where) {
  return uniform_like(x, stream.next(), first, where);
}

/// The attributes of dropout's row at a place (Placing::local). Throws std::invalid_argument where the place's part is
/// no window of the draw.
Attributes local_dropout(const Attributes& whole, const PlacedCall& placed, int rank);

/// The row of reshard(), which is not registered: it has no kernel, and an owner alone answers it.
const Operator& reshard_row();
struct ReshardAttributes {
  Layout to;
  /// What has to be there before a place takes memory for what it gets of others. CPUs wait for it; devices with
  /// streams may take what they get early.
  std::vector<NDArray> after = {};
  friend bool operator==(const ReshardAttributes& a, const ReshardAttributes& b) { return a.to == b.to; }
};
/// One step of resharding: along one axis of the mesh.
struct ReshardStep {
  enum class Kind : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all, slice };
  Kind kind = Kind::slice;
  int mesh_axis = 0;
  Layout from, to;
};
/// The steps between two layouts of one mesh and shape, of which `to` is partial only where `from` is. What is cut
/// without moving anything goes first, then terms are added, then pieces move, from the last axis of the mesh to the
/// first.
std::vector<ReshardStep> reshard_steps(const Layout& from, const Layout& to);
/// The shards in another layout, of snapshots: what is not moved shares memory.
std::vector<NDArray> resharded(const std::vector<NDArray>& shards, const Layout& from, const Layout& to,
                               const std::source_location& where, const std::vector<NDArray>& after = {});
/// All elements at one place alone. `from` is not partial.
NDArray gathered_at(const std::vector<NDArray>& shards, const Layout& from, int rank,
                    const std::source_location& where);

}  // namespace sluice::builtin
