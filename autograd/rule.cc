#include "sluice/autograd/rule.h"

#include "sluice/autograd/gradients.h"
#include "sluice/ndarray/anomaly.h"
#include "sluice/ndarray/owner.h"
#include "sluice/operators/creation.h"

namespace sluice::autograd {

Rule::Rule(Node& node, std::vector<NDArray>& gradients, std::vector<bool> wanted, const Options& options)
    : node_(node), gradients_(gradients), options_(options), results_(node.edges.size()), wanted_(std::move(wanted)) {
  if (!options.create_graph) return;
  for (std::size_t i = 0; i < node.saved_outputs.size(); ++i) {
    outputs_.push_back(node.saved_outputs[i].defined() ? with_history(i) : NDArray());
  }
}

const NDArray& Rule::gradient(int i) {
  if (resumed_) throw ArrayError(node_.op->name, node_.where, "its gradient rule uses gradient() beside common()");
  NDArray& g = gradients_[index(i)];
  if (!g.defined()) g = no_gradient(node_.outputs[index(i)]);
  return g;
}

/// Zeros for an output that nothing used, of the owner that the other outputs' gradients have.
NDArray Rule::no_gradient(const Spec& spec) const {
  for (const NDArray& other : gradients_) {
    if (!other.defined()) continue;
    if (owner_of(other)) return sluice::detail::ask_constant(other, spec, 0, options_.where);
  }
  const DeviceScope scope(node_.device);
  return zeros(spec.shape, spec.dtype, options_.where);
}

const NDArray& Rule::common(NDArray (*make)(GradientContext&)) {
  if (!common_.defined()) common_ = make(*this);
  return common_;
}

void Rule::set(int i, NDArray gradient) {
  if (!(gradient.shape() == node_.inputs[index(i)].shape)) {
    throw ArrayError(node_.op->name, node_.where,
                     "its gradient rule gave " + to_string(gradient.shape()) + " for an input of " +
                         to_string(node_.inputs[index(i)].shape));
  }
  results_[index(i)] = std::move(gradient);
}

namespace {

/// While it lives, anomalies name the operator whose gradient is computed.
class GradientOf {
 public:
  explicit GradientOf(const Node& node) : named_((current_scope().flags & kAnomalyFlag) != 0) {
    if (named_) [[unlikely]]
      sluice::detail::set_gradient_of(node.op->name);
  }
  ~GradientOf() {
    if (named_) [[unlikely]]
      sluice::detail::set_gradient_of(nullptr);
  }
  GradientOf(const GradientOf&) = delete;
  GradientOf& operator=(const GradientOf&) = delete;

 private:
  bool named_;
};

}  // namespace

void Rule::ask() {
  const ScopeGuard scope;
  const GradientOf named(node_);
  current_scope().where = node_.where;
  node_.op->gradient(*this);
}

const NDArray& Rule::kept(const std::vector<NDArray>& list, int i) const {
  if (index(i) >= list.size() || !list[index(i)].defined()) {
    throw ArrayError(node_.op->name, node_.where, "its gradient rule uses a value that `needs` does not name");
  }
  return list[index(i)];
}

/// The saved output as this node's output, so that a recorded gradient leads back here.
NDArray Rule::with_history(std::size_t i) {
  const NDArray& saved = node_.saved_outputs[i];
  NDArray own;
  {
    const NoGrad scope;
    own = window_of(saved) ? saved.copy(options_.where) : saved.detach();
  }
  own.array()->history = Ref<History>(&node_);
  own.array()->history_output = static_cast<std::int32_t>(i);
  return own;
}

}  // namespace sluice::autograd
