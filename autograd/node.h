// The tape: a node for each recorded operation, with edges to the nodes that made its inputs. Internal to autograd/.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <source_location>
#include <span>
#include <vector>

#include "sluice/autograd/recomputation.h"
#include "sluice/operators/registry.h"

namespace sluice {
class GradientLayout;
}

namespace sluice::autograd {

/// The window of a view on an array made with `base`; offset from the array's first element.
struct Window {
  Dims base, shape, strides;
  std::int64_t offset = 0;
};

/// The window of a handle; null if the handle shows the whole array in the shape that it was made with.
std::unique_ptr<Window> window_of(const NDArray& x);
/// The gradient of a view, with what went to several places of it added up, and the steps of its axes in the array.
struct Unfolded {
  NDArray gradient;
  Dims strides;
};
Unfolded unfold(const NDArray& gradient, const Window& window, const std::source_location& where);
/// The gradient of an array, from that of a view of it.
NDArray fold(const NDArray& gradient, const Window& window, const std::source_location& where);
/// True if the view has each element of the array once: it shows the whole in another order or shape.
bool shows_all_once(const Window& window);
/// The opposite of fold: the part of an array's gradient (or value) that a view shows.
NDArray look(const NDArray& whole, const Window& window, const std::source_location& where);

/// The same value under an identity of its own: a write to either leaves the other as it is. Free where the first goes
/// soon after. It wants gradients itself only where those are `recorded`.
NDArray alias(const NDArray& x, bool recorded);

class Node;
class Recomputation;

/// Where the gradient of an input goes: to an output of the node that made its array. Without a node no gradient is
/// wanted.
struct Edge {
  Ref<Node> node;
  std::int32_t output = 0;
  std::unique_ptr<Window> window;
};

/// A hook (custom.h). What was removed has no function.
struct Hook {
  std::int32_t output = 0;
  std::shared_ptr<std::function<NDArray(const NDArray&)>> call;
  std::shared_ptr<const Window> window;  ///< how the handle shows the array, which the hook sees so; null: as it is
};

/// What on_uses() (uses.h) was given.
using Uses = std::function<void(const std::vector<NDArray>& terms)>;

class Node final : public History, public Pooled<Node> {
 public:
  enum class Kind : std::uint8_t {
    operation,  ///< outputs of `op`
    write,      ///< an array after a write to a part of it: edges to the array before and to what was written
    leaf,       ///< made by with_grad
  };
  explicit Node(std::uint64_t seq) : sequence(seq) {}
  ~Node() override;

  /// Releases what backward needs. It does not recurse, however long the chain of nodes behind it is.
  void release() noexcept;

  Kind kind = Kind::operation;
  bool freed = false;
  bool relays = false;     ///< gradients whose terms are not added up are passed on so (Operator::relays_gradient)
  std::uint64_t sequence;  ///< order on the tape; an edge leads to a smaller one
  const Operator* op = nullptr;
  Attributes attributes;
  std::source_location where;
  const detail::Layer* layer = nullptr;  ///< of the forward call
  Device device;
  ShortList<Edge, 2> edges;
  ShortList<Spec, 2> inputs;
  ShortList<Spec, 1> outputs;
  std::vector<NDArray> saved_inputs, saved_outputs;
  /// By output, how its gradients lie; null where no output is of an owner who says so (ndarray/owner.h).
  std::unique_ptr<std::vector<std::shared_ptr<const GradientLayout>>> layouts;

  /// Of an operation in a checkpoint that has kept nothing yet: what computes it again.
  Ref<Recomputation> checkpoint;
  std::size_t checkpoint_index = 0;

  std::mutex mutex;  ///< guards `hooks`, `uses`, and `grad`
  std::unique_ptr<std::vector<Hook>> hooks;
  // A leaf's:
  NDArray grad;
  std::shared_ptr<Uses> uses;  ///< who gets the gradients of its uses, if not `grad` their sum
};

/// The next pair of sequence numbers: an even one, and the odd one after it.
std::uint64_t next_sequence();
/// Gives `results`, which have no history and are whole arrays, a node that leads to the inputs: as if `row`, which
/// need not be registered, had made them. The inputs' part in it is that of `past`, which past_of() took before.
struct Past {
  Ref<Node> node;
  std::int32_t output = 0;
};
Past past_of(const NDArray& x);
Ref<Node> record(const Operator& row, Attributes attributes, std::span<const NDArray> inputs,
                 std::span<const Past> past, std::span<const NDArray> results, const std::source_location& where);
/// The present value under an identity of its own, as a whole array without history. Copies only a view of a part.
NDArray own_value(const NDArray& x, const std::source_location& where);
/// If the calling thread runs dry (ndarray/dry_run.h), the leaf has its present gradient again afterwards. Called with
/// the leaf's mutex held.
void restore_after_dry_run(Node& leaf);
/// Fills a new node: what it was, and edges to the pasts of its inputs.
void fill(Node& node, const Operator& row, Attributes attributes, std::span<const NDArray* const> inputs,
          std::span<const Past> past, std::span<const NDArray> results, const std::source_location& where);

/// Makes a call that has an operand of an owner, by `ask`, and in grad mode records it as one node. What the node holds
/// of the inputs is taken before anything is pushed. Gives the results, which are arrays of their own; none of a call
/// with targets. Throws what `ask` throws, and ArrayError for a write that cannot be recorded; then nothing is
/// recorded.
std::vector<NDArray> record_owned(const Operator& op, std::span<const NDArray* const> inputs,
                                  const Attributes& attributes, std::span<const NDArray> targets,
                                  const Updates& updates, const std::source_location& where,
                                  const std::function<std::vector<NDArray>()>& ask);

/// A node for a push that is recorded: that of a checkpoint's first call, in its second. True from computed_again(): it
/// is there already, and only wants what it has not kept.
Ref<Node> node_for_push();
bool computed_again();
/// What the owner of an array that the node made as output `output` says of its gradients.
void keep_layout(Node& node, std::size_t output, const Array& array);
/// Lets operators record. Called by whatever makes leaves.
void install_recorder();

}  // namespace sluice::autograd
