// nn::place: the arrays of a net on a mesh of devices, by a table of layouts.
//
//   struct Mlp {
//     nn::Linear up{784, 512}, down{512, 10};
//     NDArray operator()(const NDArray& x) const { return down(relu(up(x))); }
//   };
//   const Mesh mesh({{"dp", 2}, {"tp", 2}});
//   nn::place(net, mesh, {{"tp", {{"up", {.weight = shard(0), .bias = shard(0)}},
//                                 {"down", {.weight = shard(1), .out = replicate}}}}});
//   nn::initialise(net, 1);
//   const NDArray y = net(place(x, mesh, {{"dp", shard(0)}}));    // half of the batch at each place of dp
//
// The net's text stays that of one device. What no table names is replicated: along "dp" all arrays are, each place
// has a part of the batch, and backward() adds the gradients up over "dp" by itself. nn::Optimizer steps each shard
// where it is, nn::clip_gradients takes the norm of all of them; what an optimiser keeps lies as the parameter does,
// or cut further (AxisLayouts::zero).
// nn::save writes whole arrays, and nn::load reads them into any layout.
#pragma once

#include <map>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "sluice/ndarray/layout.h"
#include "sluice/nn/net/net.h"

namespace sluice::nn {

/// How a part of a net lies along one axis of a mesh. What is not said is replicated, and passes as it comes.
struct PartLayout {
  std::optional<Placement> weight{}, bias{};  ///< of its parameters with these names
  /// What enters and what leaves a layer of the library with a `weight` is resharded so: replicate adds up the terms
  /// that a weight cut by columns gives, shard(1) adds them up for each place's own positions (sequence parallelism).
  /// A bias, and the relu of nn::Linear, then come behind the sum. A struct with a `weight` of its own calls
  /// nn::entering and nn::leaving. A tied weight has one layout and one `in` and `out`, by its first path, in all
  /// layers that use it; nn::Embedding::logits reshards nothing.
  std::optional<Placement> in{}, out{};
  std::map<std::string, Placement> others{};  ///< parameters, statistics and constants by other names
};
/// Parts whose path the pattern matches: "*.up|*.qkv", as in Select. The first that matches a part counts.
struct PartRule {
  std::string parts;
  PartLayout layout;
};
struct AxisLayouts {
  std::string axis;  ///< of the mesh
  std::vector<PartRule> rules{};
  /// ZeRO (Rajbhandari et al. 2020). With 1 each place along the axis keeps a part of what an optimiser keeps of a
  /// parameter, and computes the new values of that part alone, which all then gather: of the 16 bytes a parameter of
  /// Adam's, 8 of which are kept, 8 + 8 / p stay. With 2 each place also keeps the same part of the gradient alone, and
  /// terms are added up by a reduce-scatter: 4 + 12 / p stay. Several backward() before a step send their terms each.
  /// With 3 it keeps that part of the parameter alone, 16 / p in all: a layer gathers what it uses, backward gathers
  /// once more what it needs, and a step gathers nothing. On CPUs a gather begins when what enters the layer is there.
  /// Weights have the bits that they have with 0; with 2 and nn::clip_gradients only where the first axis is cut of
  /// each parameter, else norms agree to rounding; and with Lamb and Adafactor, which take norms themselves, they agree
  /// to rounding. Of a parameter that the axis leaves whole the first axis is cut that
  /// nothing else cuts, and that is at least p long; one that has none is stepped whole at each place. A rule that
  /// looks at a whole matrix (Muon) is refused by a line then.
  int zero = 0;
};

namespace detail {
void place(const Contents& net, const Mesh& mesh, const std::vector<AxisLayouts>& tables, std::source_location where);
std::string explain(const Contents& net, const Mesh& mesh, const std::vector<AxisLayouts>& tables,
                    std::source_location where);
}  // namespace detail

/// Lays out all arrays of the net on the mesh, gradients too: those that have values, and those that get one later. Of
/// a net that is on a mesh already it changes the layouts; nn::to(net, device) undoes it. Arrays of the net become
/// others, as by nn::to; their identities stay, and an optimiser goes on. Parts without names get them. Throws
/// UsageError for no mesh, an axis that the mesh does not have or that has two tables, a rule that is the first match
/// of no part, or that names a parameter which a part does not have; ArrayError for a layout that an array cannot have.
/// Then nothing was changed.
template <class Net>
void place(const Net& net, const Mesh& mesh, const std::vector<AxisLayouts>& tables = {},
           std::source_location where = std::source_location::current()) {
  detail::place(contents(net), mesh, tables, where);
}

/// What nn::place would do, and changes nothing: a line for each array of the net with its shape, how it lies, what
/// the largest shard holds in f32 or in the dtype of its values, and for each axis the rule that its part met:
///
///     blocks.0.up.weight  (512, 128)  dp:shard(1) tp:shard(0)  64.0 KiB of 256.0 KiB  tp '*.up'  dp zero 3
///
/// and the bytes of all of them at the place that has most. Of a net without values too, and of meshes that are larger
/// than the machine. Throws as nn::place does. Thread-safe as far as the net is not changed. Does not block.
template <class Net>
std::string explain(const Net& net, const Mesh& mesh, const std::vector<AxisLayouts>& tables = {},
                    std::source_location where = std::source_location::current()) {
  return detail::explain(contents(net), mesh, tables, where);
}

}  // namespace sluice::nn
