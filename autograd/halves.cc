#include "sluice/autograd/halves.h"

#include <vector>

#include "sluice/autograd/kept.h"
#include "sluice/autograd/owned.h"
#include "sluice/autograd/tape_run.h"
#include "sluice/operators/creation.h"

namespace sluice {
namespace autograd {

/// A root that leads to none of the inputs.
struct LaterRoot {
  Edge edge;
  NDArray gradient;  ///< empty: 1, of this spec
  Spec spec;
};

struct SecondHalf {
  SecondHalf() = default;
  SecondHalf(const SecondHalf&) = delete;
  SecondHalf& operator=(const SecondHalf&) = delete;
  ~SecondHalf();

  Options options;
  std::vector<Rest> rests;
  std::vector<LaterRoot> roots;
};

/// Lets go of what was to run, as if it had: arrays that the program still holds may lead to it.
SecondHalf::~SecondHalf() {
  if (options.retain) return;
  std::vector<Ref<Node>> left;
  for (Rest& rest : rests) left.push_back(std::move(rest.node));
  for (LaterRoot& root : roots) left.push_back(std::move(root.edge.node));
  while (!left.empty()) {
    const Ref<Node> node = std::move(left.back());
    left.pop_back();
    if (!node || node->kind == Node::Kind::leaf) continue;
    for (Edge& edge : node->edges) {
      if (edge.node) left.push_back(edge.node);
    }
    if (is_view(*node)) continue;
    node->freed = true;
    node->attributes = Attributes();
    node->release();
  }
}

namespace {

NDArray one_for(const LaterRoot& root, const std::source_location& where) {
  const DeviceScope scope(root.spec.device);
  return ones(root.spec.shape, root.spec.dtype, where);
}

/// The memory of each.
std::vector<KeptMemory> memory_in(Kept& kept) {
  std::vector<KeptMemory> list;
  for (const Kept::Piece& piece : kept.pieces()) list.push_back(piece.memory);
  return list;
}

std::size_t sum_of(const std::vector<KeptMemory>& pieces) {
  std::size_t bytes = 0;
  for (const KeptMemory& piece : pieces) bytes += piece.bytes;
  return bytes;
}

void check_inputs(const NDArrays& inputs, const std::source_location& where) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    inputs[i].checked("backward_inputs", where);
    const Ref<Node> node = maker_of(inputs[i]);
    if (!node || node->kind == Node::Kind::leaf) continue;
    throw ArrayError("backward_inputs", where,
                     "input " + std::to_string(i) + " is no leaf; give the stage x.detach().with_grad()");
  }
}

}  // namespace
}  // namespace autograd

WeightGradients::WeightGradients() noexcept = default;
WeightGradients::~WeightGradients() = default;
WeightGradients::WeightGradients(WeightGradients&& other) noexcept = default;
WeightGradients& WeightGradients::operator=(WeightGradients&& other) noexcept = default;

bool WeightGradients::pending() const { return half_ && !(half_->rests.empty() && half_->roots.empty()); }

WeightGradients backward_inputs(const NDArrays& roots, const NDArrays& gradients, const NDArrays& inputs,
                                const HalvesOptions& options, std::source_location where) {
  using namespace autograd;
  if (options.create_graph) {
    throw ArrayError("backward_inputs", where, "create_graph: gradients of gradients need a whole pass; use grad()");
  }
  const Mode mode(false);
  check_roots("backward_inputs", roots, gradients, where);
  check_inputs(inputs, where);
  WeightGradients later;
  later.half_ = std::make_unique<SecondHalf>();
  SecondHalf& half = *later.half_;
  half.options = {.create_graph = false, .retain = options.retain, .where = where};
  Run run(half.options);
  run.first_half(roots, inputs);
  for (std::size_t i = roots.size(); i-- > 0;) {
    LaterRoot root{edge_to(roots[i]), gradients[i], roots[i].spec()};
    if (!root.gradient.defined() && owner_of(roots[i])) root.gradient = ones_like({roots[i], where});
    if (run.reaches(root.edge)) {
      run.seed(root.edge, root.gradient.defined() ? root.gradient : one_for(root, where));
    } else {
      if (root.gradient.defined()) root.gradient = root.gradient.detach(where);  // the program may write to it
      half.roots.push_back(std::move(root));
    }
  }
  run.run();
  half.rests = run.take_rests();
  return later;
}

void WeightGradients::run(std::source_location where) {
  using namespace autograd;
  if (!half_)
    throw ArrayError("WeightGradients::run", where, "there is nothing to run: it was run before, or is empty");
  const std::unique_ptr<SecondHalf> half = std::move(half_);
  const Mode mode(false);
  half->options.where = where;
  Run run(half->options);
  for (LaterRoot& root : half->roots) {
    run.seed(root.edge, root.gradient.defined() ? std::move(root.gradient) : one_for(root, where));
    root = {};
  }
  run.second_half(half->rests);
  run.run();
}

std::size_t WeightGradients::bytes() const { return autograd::sum_of(memory({})); }

std::vector<KeptMemory> WeightGradients::memory(const NDArrays& inputs, std::source_location where) const {
  for (const NDArray& x : inputs) x.checked("WeightGradients::memory", where);
  if (!half_) return {};
  autograd::Kept kept;
  for (const NDArray& x : inputs) kept.count_leaf(autograd::maker_of(x));
  // What nodes that are gone kept, and what they led to, has gone with them.
  for (const autograd::Rest& rest : half_->rests) {
    kept.add(rest.gradients);
    kept.add(rest.results);
    kept.add(rest.common);
    kept.start(rest.node);
  }
  for (const autograd::LaterRoot& root : half_->roots) {
    kept.add(root.gradient);
    kept.start(root.edge.node);
  }
  return autograd::memory_in(kept);
}

namespace {
std::vector<KeptMemory> kept(const char* name, const NDArrays& roots, const NDArrays& inputs,
                             const std::source_location& where) {
  for (const NDArrays& list : {inputs, roots}) {
    for (const NDArray& x : list) x.checked(name, where);
  }
  autograd::Kept kept;
  for (const NDArray& x : inputs) kept.count_leaf(autograd::maker_of(x));
  for (const NDArray& root : roots) kept.start(autograd::maker_of(root));
  return autograd::memory_in(kept);
}
}  // namespace

std::size_t kept_bytes(const NDArrays& roots, const NDArrays& inputs, std::source_location where) {
  return autograd::sum_of(kept("kept_bytes", roots, inputs, where));
}

std::vector<KeptMemory> kept_memory(const NDArrays& roots, const NDArrays& inputs, std::source_location where) {
  return kept("kept_memory", roots, inputs, where);
}

}  // namespace sluice
