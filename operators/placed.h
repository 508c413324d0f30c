// Arrays on a mesh: one array whose elements lie on many devices. Shapes stay those of the whole.
//
//   const Mesh mesh({{"dp", 2}, {"tp", 2}});
//   const NDArray x = place(batch, mesh, {{"dp", shard(0)}});
//   const NDArray w = place(weight, mesh, {{"tp", shard(0)}}).with_grad();
//   const NDArray y = linear(x, w);              // dp:shard(0) tp:shard(1): each place has computed its block
//   whole(mean(square(y))).backward();           // mean() is partial(sum) over dp and tp; w.grad() lies as w does
//
// A call whose operands lie on a mesh is made at each place, of the shards there, if the row's rule allows their
// layouts (placement.h); else it throws ArrayError, which names the layouts and the reshard that would help. Nothing is
// resharded in silence, but that a replicated operand which wants no gradient is cut where the others are. Plain arrays
// and arrays on a mesh do not meet in a call.
//
// The gradient of an array lies as the array does, where that is not partial: gradients that the array's uses give are
// added as they are while they lie alike, and the sum is resharded once. So the gradient of replicate -> shard is a
// gather, that of a gather cuts, and the gradients of partial arrays are replicated. A leaf's may lie otherwise:
// set_gradient_layout.
//
// Reading needs all elements in one place: item(), to_vector() and printing take the first place's values of an array
// that is replicated, and throw for any other: whole(x) first.
#pragma once

#include <source_location>
#include <vector>

#include "sluice/engine/scope.h"
#include "sluice/ndarray/interpreter.h"
#include "sluice/ndarray/layout.h"
#include "sluice/ndarray/nd_array.h"

namespace sluice {

/// A plain array laid out on a mesh: each place gets a copy of its shard. Axes that are not named are replicated.
/// Throws ArrayError for an array that wants a gradient or was recorded (give the result with_grad()), for partial, and
/// what Layout throws. Does not block.
NDArray place(const NDArray& x, const Mesh& mesh, const Placements& placements = {},
              std::source_location where = std::source_location::current());

/// The same in a given layout, such as that of another array. Its cuts are kept. Throws ArrayError also for a layout of
/// another shape, and UsageError for no layout.
NDArray place(const NDArray& x, const Layout& layout, std::source_location where = std::source_location::current());
/// A plain array on the first device of the mesh, with all elements; a plain array itself. Not recorded. For files,
/// metrics and other devices; other places get no copy, as they do of whole(x). comms() does not list it.
NDArray gathered(const NDArray& x, std::source_location where = std::source_location::current());

/// How it lies; no layout for a plain array.
Layout layout_of(const NDArray& x, std::source_location where = std::source_location::current());

/// The values of x as an array that calls see in another layout than it lies (ZeRO 3): a call that has it as an operand
/// first reshards it to `layout`, which comms() lists, and drops the result when it was made; backward does so anew.
/// Writes in place, files, reading, layout_of() and reshard(x, Layout) see it as it lies, as its gradient does. So is a
/// view, but one that shards do not have (a part of a cut axis): that is a copy, and not written to. Give it
/// with_grad() afterwards. Throws ArrayError for an array that is plain, partial or wants a gradient, and for a layout
/// that is partial or of another shape or mesh; UsageError for no layout. Does not block.
NDArray with_call_layout(const NDArray& x, const Layout& layout,
                         std::source_location where = std::source_location::current());
/// How calls see it: layout_of(x), but for an array of with_call_layout().
Layout call_layout_of(const NDArray& x, std::source_location where = std::source_location::current());

/// The array in another layout: axes of the mesh that are not named stay as they are. This is what communicates: a cut
/// or replicated axis becomes any of the two, and a partial one too, by adding its terms in rank order. Gradients flow
/// back. Throws ArrayError for a plain array, and where a placement would become partial. Does not block.
NDArray reshard(const Operand& x, const Placements& placements);
/// The same, in a layout on its mesh, such as that of another array. Throws ArrayError also for a layout of another
/// shape or mesh, and UsageError for no layout.
NDArray reshard(const Operand& x, const Layout& layout);
/// The array replicated on all axes of its mesh.
NDArray whole(const Operand& x);

/// The gradient of x, which wants one (with_grad()), lies in this layout of its mesh and shape, now and later: where x
/// is replicated each place can keep a part of it, whose terms a reduce-scatter adds up (ZeRO 2). Not while a backward
/// pass runs that reaches x. Throws ArrayError for an array that is plain or no leaf, and for a layout that is partial
/// or of another shape or mesh; UsageError for no layout. Does not block.
void set_gradient_layout(const NDArray& x, const Layout& layout,
                         std::source_location where = std::source_location::current());

/// The shards by rank, as plain arrays without history; later writes to x do not change them. Throws ArrayError for a
/// plain array.
std::vector<NDArray> shards_of(const NDArray& x, std::source_location where = std::source_location::current());

/// While it lives, arrays that the thread's calls make from nothing (zeros, arange, uniform) are replicated on the
/// mesh: what a net makes inside of its forward function meets its other arrays. from() and loaded arrays stay plain:
/// place() them. Destroyed on the thread that made it. Throws UsageError for no mesh.
class MeshScope {
 public:
  explicit MeshScope(const Mesh& mesh, std::source_location where = std::source_location::current());

 private:
  DeviceScope device_;
  InterpreterScope interpreter_;
};

}  // namespace sluice
