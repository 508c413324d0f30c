#include "sluice/autograd/node.h"

#include <algorithm>
#include <atomic>
#include <variant>

#include "sluice/autograd/gradients.h"
#include "sluice/engine/detail/forks.h"
#include "sluice/ndarray/dry_run.h"
#include "sluice/ndarray/owner.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/reduction.h"

namespace sluice::autograd {

std::uint64_t next_sequence() {
  static std::atomic<std::uint64_t> counter{1};
  return 2 * counter.fetch_add(1, std::memory_order_relaxed);
}

void restore_after_dry_run(Node& leaf) {
  DryRun* const run = DryRun::current();
  if (!run) return;
  run->at_end([of = Ref<Node>(&leaf), gradient = leaf.grad]() mutable {
    const std::lock_guard lock(of->mutex);
    std::swap(of->grad, gradient);
  });
}

// ---- windows

std::unique_ptr<Window> window_of(const NDArray& x) {
  const Array& array = *x.array();
  const std::int64_t offset = x.offset() - array.base_offset();
  if (offset == 0 && x.shape() == array.shape() && x.is_contiguous()) return nullptr;
  return std::make_unique<Window>(Window{array.shape(), x.shape(), x.strides(), offset});
}

Unfolded unfold(const NDArray& gradient, const Window& window, const std::source_location& where) {
  // Broadcast axes: what went to several places comes back as a sum.
  Dims broadcast, shape, strides;
  for (int i = 0; i < window.shape.rank(); ++i) {
    if (window.shape[i] == 1) continue;
    if (window.strides[i] == 0) continue;
    shape.push_back(window.shape[i]);
    strides.push_back(window.strides[i]);
  }
  for (int i = 0; i < window.shape.rank(); ++i) {
    if (window.shape[i] != 1 && window.strides[i] == 0) broadcast.push_back(i);
  }
  const NDArray g = broadcast.empty() ? gradient : sum({gradient, where}, broadcast);
  return {g.reshape(shape, where), strides};
}

NDArray fold(const NDArray& gradient, const Window& window, const std::source_location& where) {
  const auto [g, strides] = unfold(gradient, window, where);
  const Dims& shape = g.shape();
  if (window.base.count() == 0) return g.reshape(window.base, where);
  // A permutation of the whole: permute back, without a copy.
  Dims order;
  for (int i = 0; i < shape.rank(); ++i) order.push_back(i);
  std::vector<std::int64_t> axes(order.begin(), order.end());
  std::stable_sort(axes.begin(), axes.end(), [&](std::int64_t a, std::int64_t b) {
    return strides[static_cast<int>(a)] > strides[static_cast<int>(b)];
  });
  Dims sorted_shape, sorted_strides;
  for (std::int64_t a : axes) {
    sorted_shape.push_back(shape[static_cast<int>(a)]);
    sorted_strides.push_back(strides[static_cast<int>(a)]);
  }
  if (window.offset == 0 && shape.count() == window.base.count() && sorted_strides == row_major(sorted_shape)) {
    return g.permute(Dims(axes), where).reshape(window.base, where);
  }
  const Operator& scatter = detail::first_use([] { return &Registry::instance().get("scatter"); });
  return apply(scatter, {&g}, WindowAttributes{window.base, strides, window.offset}, {.where = where});
}

bool shows_all_once(const Window& window) {
  const std::int64_t count = window.base.count();
  if (window.shape.count() != count) return false;
  std::vector<std::pair<std::int64_t, std::int64_t>> axes;  // strides without their signs, and sizes
  std::int64_t first = window.offset;                       // the least place that the view reaches
  for (int i = 0; i < window.shape.rank(); ++i) {
    const std::int64_t stride = window.strides[i], size = window.shape[i];
    if (size == 1) continue;
    if (stride < 0) first += (size - 1) * stride;
    axes.emplace_back(std::abs(stride), size);
  }
  if (count <= 1) return first == 0 || count == 0;
  std::sort(axes.begin(), axes.end());
  std::int64_t wanted = 1;
  for (const auto& [stride, size] : axes) {
    if (stride != wanted) return false;
    wanted *= size;
  }
  return first == 0;
}

NDArray look(const NDArray& whole, const Window& window, const std::source_location& where) {
  const NDArray dense = whole.contiguous(where);
  return dense.strided(window.shape, window.strides, dense.offset() + window.offset, where);
}

NDArray alias(const NDArray& x, bool recorded) {
  {
    std::lock_guard lock(x.array()->mutex());
    const bool own = x.array()->refs() == 1 && !sluice::detail::is_owned_view(x);
    if (own && (recorded || !x.array()->history)) return x;
  }
  return recorded ? x.on(sluice::detail::snapshot_of(x.array())) : x.detach();
}

// ---- letting go

namespace {

/// Everything that a node owns may own nodes in turn. While one is being let go of on this thread, others queue.
struct Trash {
  std::vector<Ref<Recomputation>> checkpoints;
  std::vector<Edge> edges;
  std::vector<NDArray> arrays;
};
constinit thread_local Trash* draining = nullptr;

template <class T>
void move_to(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  from.clear();
  from.shrink_to_fit();
}

}  // namespace

Node::~Node() {
  if (checkpoint) checkpoint->forget(checkpoint_index);
  release();
}

void Node::release() noexcept {
  if (edges.empty() && saved_inputs.empty() && saved_outputs.empty() && !checkpoint) return;
  Trash own;
  Trash& list = draining ? *draining : own;
  list.edges.insert(list.edges.end(), std::make_move_iterator(edges.begin()), std::make_move_iterator(edges.end()));
  edges.clear();
  move_to(list.arrays, saved_inputs);
  move_to(list.arrays, saved_outputs);
  if (checkpoint) list.checkpoints.push_back(std::move(checkpoint));
  if (draining) return;
  draining = &own;
  while (!list.edges.empty() || !list.arrays.empty() || !list.checkpoints.empty()) {
    if (!list.checkpoints.empty()) {
      const Ref<Recomputation> last = std::move(list.checkpoints.back());
      list.checkpoints.pop_back();
    } else if (!list.arrays.empty()) {
      const NDArray last = std::move(list.arrays.back());
      list.arrays.pop_back();
    } else {
      const Edge last = std::move(list.edges.back());
      list.edges.pop_back();
    }
  }
  draining = nullptr;
}

// ---- recording

namespace {

Ref<Node> node_of(const Ref<History>& history) { return Ref<Node>(static_cast<Node*>(history.get())); }

Ref<History> new_node() {
  if ((current_scope().flags & kRerunFlag) != 0) [[unlikely]] {
    if (Recomputation* const at = Recomputation::current()) return Ref<History>(at->next_node());
  }
  return Ref<History>(new Node(next_sequence() + 1));
}

}  // namespace

Ref<Node> node_for_push() { return node_of(new_node()); }

bool computed_again() {
  if ((current_scope().flags & kRerunFlag) == 0) [[likely]]
    return false;
  const Recomputation* const at = Recomputation::current();
  return at && at->is_again();
}

namespace {

class TapeRecorder final : public detail::Recorder {
 public:
  TapeRecorder() {
    begin = new_node;
    owned = record_owned;
  }

  void finish(const Operator& op, const Attributes& attributes, std::span<const NDArray* const> inputs,
              std::span<const NDArray> outputs, Tape& tape, const std::source_location& where) override {
    Node& node = *node_of(tape.history);
    if (computed_again()) [[unlikely]] {
      Node* const at = node.kind == Node::Kind::write ? node.edges.empty() ? nullptr : node.edges[1].node.get() : &node;
      if (!at || at->freed) return;
      if (at->op != &op) throw ArrayError(op.name, where, "another operator than when a checkpoint ran it first");
      keep(*at, inputs, tape);
      return;
    }
    node.where = where;
    node.layer = current_scope().layer;
    node.device = outputs[0].array()->device();
    if (!tape.in_place) {
      fill(node, op, attributes, inputs, outputs, tape);
      return;
    }
    std::unique_ptr<Window> window = window_of(outputs[0]);
    const bool differentiable = tape.flows && std::any_of(tape.input_histories.begin(), tape.input_histories.end(),
                                                          [](const auto& past) { return bool(past.history); });
    if (!window && differentiable) {  // the whole array is the operation's output
      fill(node, op, attributes, inputs, outputs, tape);
      return;
    }
    node.kind = Node::Kind::write;
    const Array& array = *outputs[0].array();
    node.outputs.emplace_back(array.shape(), array.dtype(), array.device());
    node.edges.resize(2);
    const auto& before = tape.output_histories[0];
    const bool whole = outputs[0].count() == array.shape().count();
    if (before.history && !whole) node.edges[0] = {node_of(before.history), before.output, nullptr};
    if (window) node.edges[1].window = std::move(window);
    if (differentiable) {
      Ref<Node> written(new Node(node.sequence - 1));
      written->where = where;
      written->layer = node.layer;
      written->device = node.device;
      fill(*written, op, attributes, inputs, outputs, tape);
      node.edges[1].node = std::move(written);
    }
  }

 private:
  static void fill(Node& node, const Operator& op, const Attributes& attributes, std::span<const NDArray* const> inputs,
                   std::span<const NDArray> outputs, Tape& tape) {
    node.op = &op;
    node.attributes = attributes;
    node.edges.resize(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      node.inputs.emplace_back(inputs[i]->spec());
      const auto& past = tape.input_histories[i];
      if (past.history && is_floating(inputs[i]->dtype())) {
        node.edges[i] = {node_of(past.history), past.output, window_of(*inputs[i])};
      }
    }
    for (const NDArray& y : outputs) node.outputs.emplace_back(y.spec());
    if ((current_scope().flags & kRerunFlag) != 0 && Recomputation::current()) return;
    keep(node, inputs, tape);
  }

  static void keep(Node& node, std::span<const NDArray* const> inputs, Tape& tape) {
    // The kernel may have seen inputs broadcast; the gradient sees them as they were given.
    for (std::size_t i = 0; i < tape.saved_inputs.size(); ++i) {
      if (tape.saved_inputs[i].defined()) tape.saved_inputs[i] = inputs[i]->on(tape.saved_inputs[i].array());
    }
    node.saved_inputs = std::move(tape.saved_inputs);
    node.saved_outputs = std::move(tape.saved_outputs);
  }
};

}  // namespace

Past past_of(const NDArray& given) {
  const NDArray x = Rerun::seen(given);
  Array& array = *x.array();
  sluice::detail::follow_writes(array);
  std::lock_guard lock(array.mutex());
  return {node_of(array.history), array.history_output};
}

NDArray own_value(const NDArray& x, const std::source_location& where) {
  const NoGrad scope;
  return window_of(x) || x.array()->stays() ? x.copy(where) : x.detach(where);
}

Ref<Node> record(const Operator& row, Attributes attributes, std::span<const NDArray> inputs,
                 std::span<const Past> past, std::span<const NDArray> results, const std::source_location& where) {
  const Ref<Node> node = node_of(new_node());
  for (std::size_t i = 0; i < results.size(); ++i) {
    Array& array = *results[i].array();
    if (!is_floating(array.dtype())) continue;
    keep_layout(*node, i, array);
    std::lock_guard lock(array.mutex());
    array.history = Ref<History>(node);
    array.history_output = static_cast<std::int32_t>(i);
  }
  if (computed_again()) return node;
  std::vector<const NDArray*> pointers;
  for (const NDArray& x : inputs) pointers.push_back(&x);
  fill(*node, row, std::move(attributes), pointers, past, results, where);
  return node;
}

void fill(Node& node, const Operator& row, Attributes attributes, std::span<const NDArray* const> inputs,
          std::span<const Past> past, std::span<const NDArray> results, const std::source_location& where) {
  node.op = &row;
  node.attributes = std::move(attributes);
  node.where = where;
  node.layer = current_scope().layer;
  node.device = (results.empty() ? *inputs[0] : results[0]).array()->device();
  node.edges.resize(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    node.inputs.emplace_back(inputs[i]->spec());
    if (past[i].node && is_floating(inputs[i]->dtype())) {
      node.edges[i] = {past[i].node, past[i].output, window_of(*inputs[i])};
    }
  }
  for (const NDArray& y : results) node.outputs.emplace_back(y.spec());
}

void install_recorder() {
  detail::once_in_process([] { detail::set_recorder(new TapeRecorder()); });
}

}  // namespace sluice::autograd
