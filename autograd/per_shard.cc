#include "sluice/autograd/per_shard.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>

#include "sluice/autograd/custom.h"
#include "sluice/autograd/gradients.h"
#include "sluice/autograd/node.h"
#include "sluice/autograd/recomputation.h"
#include "sluice/ndarray/grad_mode.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/placed.h"
#include "sluice/operators/placed_owner.h"

namespace sluice {
namespace {

using builtin::Placed;
using Arrays = std::vector<NDArray>;
using Kind = Placement::Kind;

constexpr const char* kName = "per_shard";

std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// While it lives, the thread calls a place's part.
class AtPlace {
 public:
  AtPlace(const Mesh& mesh, int rank) : device_(mesh.device(rank)) { current_scope().interpreter = 0; }

 private:
  ScopeGuard before_;
  DeviceScope device_;
};

/// What a place has of a call: leaves for the inputs that want a gradient, and what was made of them.
struct Local {
  Arrays leaves, made;
};

/// One call: a function of shards, or the gradients of one.
struct Job {
  std::source_location where;
  Mesh mesh = {};
  std::vector<Layout> inputs = {};                 ///< those that want a gradient
  std::vector<std::vector<Placement>> asked = {};  ///< of the results, by axis of the mesh
  std::vector<Layout> results = {};                ///< known when all is made

  [[noreturn]] void refuse(const std::string& why) const { throw ArrayError(kName, where, why); }
  std::size_t places() const { return at(mesh.places()); }
  /// Whether each place along an axis of the mesh computes the same.
  bool same_along(int m) const {
    return std::ranges::all_of(asked, [&](const auto& on) { return on[at(m)].kind == Kind::replicate; });
  }
  /// Whether the place's copy of a result is the one that counts. Where places compute different things, one copy of a
  /// replicated result stands for all: else its gradient would come as often as there are copies.
  bool counts(std::size_t result, int rank) const {
    for (int m = 0; m < mesh.axes(); ++m) {
      const bool copies = asked[result][at(m)].kind == Kind::replicate && !same_along(m);
      if (copies && mesh.coordinate(rank, m) != 0) return false;
    }
    return true;
  }
  /// How the places' gradients of an input lie together.
  std::vector<Placement> gradient_of(std::size_t input) const {
    std::vector<Placement> on;
    for (int m = 0; m < mesh.axes(); ++m) {
      const Placement& lies = inputs[input].on(m);
      on.push_back(lies.kind == Kind::replicate && !same_along(m) ? partial() : lies);
    }
    return on;
  }
};

/// What a result's places gave, put together.
Layout layout_of_parts(const Job& job, std::size_t k, const std::vector<Arrays>& made) {
  const auto is = [&](std::size_t rank) {
    const NDArray& y = made[rank][k];
    return "result " + std::to_string(k) + " is " + to_string(y.shape()) + " " + std::string(name_of(y.dtype())) +
           " at place " + std::to_string(rank);
  };
  const NDArray& first = made[0][k];
  std::vector<Placement> on = job.asked[k];
  std::vector<std::size_t> pieces(at(first.rank()), 1);
  for (int m = 0; m < job.mesh.axes(); ++m) {
    Placement& p = on[at(m)];
    if (p.kind != Kind::shard) continue;
    if (p.axis < 0) p.axis += first.rank();
    if (p.axis < 0 || p.axis >= first.rank()) {
      job.refuse(is(0) + ": it has no axis for " + to_string(job.asked[k][at(m)]));
    }
    p.unit = 1;
    pieces[at(p.axis)] *= at(job.mesh.size(m));
  }
  std::vector<std::vector<std::int64_t>> sizes;
  for (const std::size_t n : pieces) sizes.emplace_back(n, -1);
  for (std::size_t rank = 0; rank < job.places(); ++rank) {
    const NDArray& y = made[rank][k];
    if (owner_of(y)) job.refuse(is(rank) + ", an array on a mesh: a plain one is wanted");
    const Device device = job.mesh.device(static_cast<int>(rank));
    if (!(y.device() == device)) job.refuse(is(rank) + " on " + to_string(y.device()) + ", not " + to_string(device));
    if (y.rank() != first.rank() || y.dtype() != first.dtype()) job.refuse(is(rank) + ", and " + is(0));
    std::vector<std::size_t> piece(pieces.size(), 0);
    for (int m = 0; m < job.mesh.axes(); ++m) {
      if (on[at(m)].kind != Kind::shard) continue;
      std::size_t& of_axis = piece[at(on[at(m)].axis)];
      of_axis = of_axis * at(job.mesh.size(m)) + at(job.mesh.coordinate(static_cast<int>(rank), m));
    }
    for (int axis = 0; axis < y.rank(); ++axis) {
      std::int64_t& size = sizes[at(axis)][piece[at(axis)]];
      if (size < 0) size = y.shape()[axis];
      if (size != y.shape()[axis]) {
        job.refuse(is(rank) + ", and axis " + std::to_string(axis) + " has " + std::to_string(size) +
                   " at another place that has the same part of it");
      }
    }
  }
  Dims shape = first.shape();
  Layout::Cuts cuts;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const bool cut =
        std::ranges::any_of(on, [&](const Placement& p) { return p.kind == Kind::shard && p.axis == axis; });
    std::int64_t end = 0;
    for (const std::int64_t size : sizes[at(axis)]) {
      if (cut) cuts[at(axis)].push_back(end);
      end += size;
    }
    if (cut) cuts[at(axis)].push_back(end);
    shape[axis] = end;
  }
  return Layout(job.mesh, shape, std::move(on), std::move(cuts));
}

/// What the tape keeps of a call, in this order: the inputs that want a gradient, and of each place its leaves and what
/// it made of them.
Arrays at_place(const Job& job, const Saved& saved, std::size_t rank, bool leaves) {
  const std::size_t inputs = job.inputs.size(), results = job.asked.size();
  std::size_t from = inputs + rank * (inputs + results) + (leaves ? 0 : inputs);
  Arrays list;
  for (std::size_t i = 0; i < (leaves ? inputs : results); ++i) list.push_back(saved[from++]);
  return list;
}

/// Makes all places' parts by `local`, keeps them for backward, and puts the results together.
template <class F>
Arrays forward(Job& job, Saved& saved, const Arrays& inputs, const F& local) {
  const autograd::Recomputation::None none;  // what is recorded at a place is no checkpoint's
  saved.keep(inputs, job.where);
  std::vector<Arrays> made;
  for (std::size_t rank = 0; rank < job.places(); ++rank) {
    const AtPlace here(job.mesh, static_cast<int>(rank));
    Local part = local(static_cast<int>(rank));
    saved.keep(part.leaves, job.where);
    saved.keep(part.made, job.where);
    made.push_back(std::move(part.made));
  }
  job.results.clear();
  Arrays results;
  for (std::size_t k = 0; k < job.asked.size(); ++k) {
    job.results.push_back(layout_of_parts(job, k, made));
    Arrays parts;
    for (const Arrays& of_place : made) {
      const NDArray part = of_place[k].detach(job.where);
      parts.push_back(part.is_contiguous() ? part : part.copy(job.where));  // it may repeat elements
    }
    results.push_back(Placed::array(job.results[k], made[0][k].dtype(), std::move(parts), job.where));
    Rerun::made(results.back());
  }
  return results;
}

Arrays backward(const std::shared_ptr<const Job>& job, const Saved& saved, const Arrays& of_results);

/// The gradients with respect to a place's leaves, of the results that count. With `again` they are recorded.
Arrays gradients_at(const Job& job, int rank, const Local& local, const Arrays& of_results, bool again) {
  Arrays roots, given;
  for (std::size_t k = 0; k < local.made.size(); ++k) {
    if (!of_results[k].defined() || !job.counts(k, rank) || !local.made[k].requires_grad()) continue;
    roots.push_back(local.made[k]);
    given.push_back(of_results[k]);
  }
  Arrays gradients(local.leaves.size());
  if (!roots.empty()) {
    gradients = grad(roots, given, local.leaves, {.create_graph = again, .retain = true}, job.where);
  }
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const NDArray& leaf = local.leaves[i];
    if (!gradients[i].defined()) gradients[i] = zeros(leaf.shape(), leaf.dtype(), job.where);
  }
  return gradients;
}

/// The gradients as a call of its own, which can be differentiated in turn: of the inputs, and of the gradients that
/// came.
Arrays recorded(const std::shared_ptr<const Job>& job, const Saved& saved, const Arrays& of_results) {
  const auto next = std::make_shared<Job>(Job{.where = job->where, .mesh = job->mesh});
  Arrays inputs;
  for (std::size_t i = 0; i < job->inputs.size(); ++i) {
    inputs.push_back(saved[i]);
    next->inputs.push_back(job->inputs[i]);
    next->asked.push_back(job->gradient_of(i));
  }
  std::vector<bool> wanted;
  for (const NDArray& g : of_results) {
    wanted.push_back(g.defined() && autograd::past_of(g).node);
    if (!wanted.back()) continue;
    inputs.push_back(g);
    next->inputs.push_back(layout_of(g));
  }
  const auto local = [&](int rank) {
    const Local before{at_place(*job, saved, at(rank), true), at_place(*job, saved, at(rank), false)};
    Local after{before.leaves, {}};
    Arrays given;
    for (std::size_t k = 0; k < of_results.size(); ++k) {
      given.emplace_back();
      if (!of_results[k].defined()) continue;
      given.back() = Placed::of(of_results[k])->shards()[at(rank)].detach(job->where);
      if (wanted[k]) after.leaves.push_back(given.back().with_grad(job->where));
    }
    const WithGrad on;
    after.made = gradients_at(*job, rank, before, given, true);
    return after;
  };
  return apply_custom(
      {.name = kName,
       .forward = [&](Saved& kept, const Arrays& x) { return forward(*next, kept, x, local); },
       .backward = [next](const Saved& kept, const Arrays& gradients) { return backward(next, kept, gradients); },
       .zeros = false},
      inputs, job->where);
}

Arrays backward(const std::shared_ptr<const Job>& job, const Saved& saved, const Arrays& of_results) {
  Arrays brought;
  for (std::size_t k = 0; k < job->results.size(); ++k) {
    brought.emplace_back();
    if (!of_results[k].defined()) continue;
    const Layout wanted = builtin::added_up(job->results[k]);
    const bool lies = layout_of(of_results[k]) == wanted;
    brought.back() = lies ? of_results[k] : reshard({of_results[k], job->where}, wanted);
  }
  if (grad_mode()) return recorded(job, saved, brought);
  std::vector<Arrays> parts(job->inputs.size());
  for (std::size_t rank = 0; rank < job->places(); ++rank) {
    const AtPlace here(job->mesh, static_cast<int>(rank));
    Arrays given;
    for (const NDArray& g : brought) {
      given.push_back(g.defined() ? Placed::of(g)->shards()[rank].detach(job->where) : g);
    }
    const Local local{at_place(*job, saved, rank, true), at_place(*job, saved, rank, false)};
    Arrays gradients = gradients_at(*job, static_cast<int>(rank), local, given, false);
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].push_back(std::move(gradients[i]));
  }
  Arrays gradients;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Layout& lies = job->inputs[i];
    Layout::Cuts cuts;
    for (int axis = 0; axis < lies.shape().rank(); ++axis) cuts[at(axis)] = lies.cuts(axis);
    const DType dtype = parts[i][0].dtype();
    const Layout layout(job->mesh, lies.shape(), job->gradient_of(i), std::move(cuts));
    gradients.push_back(Placed::array(layout, dtype, std::move(parts[i]), job->where));
  }
  return gradients;
}

// ---- the first call

/// Throws where f, which was called at this time of the tape, has used an array that wants a gradient and is no input:
/// nobody would get it.
void check_captures(const Job& job, const Local& local, std::uint64_t begin) {
  std::unordered_set<const autograd::Node*> seen, own;
  std::vector<const autograd::Node*> nodes;
  for (const NDArray& leaf : local.leaves) own.insert(autograd::past_of(leaf).node.get());
  for (const NDArray& y : local.made) nodes.push_back(autograd::past_of(y).node.get());
  while (!nodes.empty()) {
    const autograd::Node* const node = nodes.back();
    nodes.pop_back();
    if (!node || own.contains(node) || !seen.insert(node).second) continue;
    if (node->kind == autograd::Node::Kind::leaf && node->sequence < begin) {
      job.refuse("f uses an array of " + to_string(node->outputs[0].shape) +
                 " that wants a gradient and is no input: give it as one, or its detach()");
    }
    for (const autograd::Edge& edge : node->edges) nodes.push_back(edge.node.get());
  }
}

void check_inputs(Job& job, const Arrays& xs) {
  for (std::size_t i = 0; i < xs.size(); ++i) {
    const std::string input = "input " + std::to_string(i);
    const Layout layout = layout_of(xs[i], job.where);
    if (!layout) job.refuse(input + " is on no mesh: place(x, mesh) first");
    if (i == 0) job.mesh = layout.mesh();
    if (!(layout.mesh() == job.mesh)) {
      job.refuse(input + " is on " + to_string(layout.mesh()) + ", and input 0 on " + to_string(job.mesh));
    }
    if (layout.partial()) job.refuse(input + " is " + to_string(layout) + ": not added up yet: reshard it first");
  }
}

void check_results(Job& job, const Arrays& xs, bool wants, const std::vector<Placements>& results) {
  for (std::size_t k = 0; k < results.size(); ++k) {
    const std::string result = "result " + std::to_string(k) + " is ";
    std::vector<Placement> on(at(job.mesh.axes()), replicate);
    std::vector<bool> named(on.size(), false);
    for (const auto& [name, placement] : results[k]) {
      const int m = job.mesh.axis(name, job.where);
      if (named[at(m)]) {
        throw UsageError(std::string("[") + kName + "] " + to_string(job.where) + ": " + name + " twice");
      }
      named[at(m)] = true;
      on[at(m)] = placement;
    }
    for (int m = 0; m < job.mesh.axes(); ++m) {
      if (on[at(m)].kind == Kind::partial && on[at(m)].op != ReduceOp::sum && wants) {
        job.refuse(result + to_string(on[at(m)]) + " over " + job.mesh.name(m) +
                   ", which has no gradient, and an input wants one");
      }
      if (on[at(m)].kind != Kind::replicate) continue;
      for (std::size_t i = 0; i < xs.size(); ++i) {
        if (layout_of(xs[i]).on(m).kind == Kind::replicate) continue;
        job.refuse(result + "said to be replicated over " + job.mesh.name(m) + ", along which input " +
                   std::to_string(i) + " is cut: each place would have another value; let it be partial() or " +
                   "shard(axis) there");
      }
    }
    job.asked.push_back(std::move(on));
  }
}

}  // namespace

std::vector<NDArray> per_shard_all(const ShardFunction& f, const NDArrays& inputs,
                                   const std::vector<Placements>& results, std::source_location where) {
  const auto job = std::make_shared<Job>(Job{.where = where});
  if (inputs.empty()) job->refuse("no inputs: their mesh is where f is called");
  if (results.empty()) job->refuse("no results are said");
  Arrays xs, wanting;
  for (const NDArray& x : inputs) {
    x.checked(kName, where);
    const Placed* const placed = Placed::of(x);
    xs.push_back(placed && placed->gathers() ? reshard({x, where}, Placements()) : x);
  }
  check_inputs(*job, xs);
  std::vector<bool> wanted;
  for (const NDArray& x : xs) {
    wanted.push_back(grad_mode() && is_floating(x.dtype()) && autograd::past_of(x).node);
    if (!wanted.back()) continue;
    wanting.push_back(x);
    job->inputs.push_back(layout_of(x));
  }
  check_results(*job, xs, !wanting.empty(), results);
  // The first time that a checkpoint calls it nothing is to be kept.
  const autograd::Recomputation* const checkpoint = autograd::Recomputation::current();
  const bool records = grad_mode() && (!checkpoint || checkpoint->is_again());
  const auto local = [&](int rank) {
    Local part;
    Arrays shards;
    for (std::size_t i = 0; i < xs.size(); ++i) {
      shards.push_back(Placed::of(xs[i])->shards()[at(rank)].detach(where));
      if (wanted[i]) part.leaves.push_back(shards.back().with_grad(where));
    }
    const ScopeGuard mode;
    if (records) current_scope().flags &= ~kNoGradFlag;
    const std::uint64_t begin = autograd::next_sequence();
    part.made = f(shards, rank, where);
    if (part.made.size() != results.size()) {
      job->refuse("f gave " + std::to_string(part.made.size()) + " arrays at place " + std::to_string(rank) +
                  ", wanted " + std::to_string(results.size()));
    }
    if (records) check_captures(*job, part, begin);
    return part;
  };
  if (wanting.empty()) {
    Saved none;
    return forward(*job, none, {}, local);
  }
  return apply_custom(
      {.name = kName,
       .forward = [&](Saved& saved, const Arrays& x) { return forward(*job, saved, x, local); },
       .backward = [job](const Saved& saved, const Arrays& gradients) { return backward(job, saved, gradients); },
       .zeros = false},
      wanting, where);
}

NDArray per_shard(const ShardFunction& f, const NDArrays& inputs, const Placements& result,
                  std::source_location where) {
  return std::move(per_shard_all(f, inputs, {result}, where)[0]);
}

}  // namespace sluice
