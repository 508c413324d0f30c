// Owner: what stands behind an array that has no elements of its own. Such an array is made of others (halves, shards,
// a recipe), and its owner answers the calls that have it as an operand.
//
//   class Halves final : public Owner { ... NDArray first, second; ... };
//   const NDArray x = owned_array({{8, 4}, DType::f32, cpu(0)}, Ref<Owner>(new Halves(a, b)));
//   mean(relu(matmul(x, w))).backward();        // each call goes to Halves::apply
//
// The array has a shape, a dtype and a device, copies of its handle are the same array, and it can want a gradient. It
// has no memory: waits, item, to_vector, borrow, printing, push_op and windows that only memory has (strided, unfold,
// diagonal) throw ArrayError with the owner's refusal().
//
// Order: interpreters of the thread see a call first; then the tape takes what the call's node keeps of its inputs;
// then the owner is asked, and the answer gets the node. Of several owners that of the first operand is, inputs before
// targets, and it sees the others. What an owner calls is not recorded for gradients and is seen by no interpreter: the
// tape has the call of the program. Its gradient is made of calls and of views, which go to the owners of their
// operands in turn.
//
// A view of such an array is an array of its own for its owner, made of views of the parts; to gradients it is a view:
// it follows later writes to the array. Recorded writes to such a view are refused, and so are with_grad and
// on_gradient of it. Where the owner can answer only with copies (a reshape of turned parts), the result is a copy, as
// it would be of a plain array. What several uses of one view give to its gradient is added first, and is one term of
// the array's gradient: sums of gradients may differ by rounding from those of plain arrays, whose views hand on each
// term.
//
// A plain array beside such an array in a call may get a gradient of the owner's. Gradients that have to be looked at
// through a window of memory are refused then, in the owner's words: after a recorded write to a part of that array,
// and for grad() of a view of it. on_uses() of such an array gets a term for each view object, not for each of its
// uses.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "sluice/ndarray/interpreter.h"
#include "sluice/ndarray/view_call.h"

namespace sluice {

/// How gradients of an array of an owner lie, where that is for the owner to say. Kept by the tape, without the array.
/// Thread-safe. The functions are called without a lock.
class GradientLayout {
 public:
  virtual ~GradientLayout() = default;
  /// The gradient as gradients of the array lie, made by calls: asked for once, of the sum of what the array's uses
  /// gave.
  virtual NDArray bring(const NDArray& gradient, const std::source_location& where) const = 0;
  /// Whether two gradients lie alike, and can be added as they are. Else each is brought first.
  virtual bool alike(const NDArray& a, const NDArray& b) const = 0;
  /// Whether the gradient lies as it should, but that its terms are not added up. Operations that relay gradients, and
  /// views of what they made, then pass it on so.
  virtual bool terms_alone(const NDArray& gradient) const = 0;
};

/// One for each array; arrays may share one. Its functions are called on the thread that makes the call, by several
/// threads at once where arrays of it are used so. What they throw the caller gets, and nothing is recorded.
class Owner : public RefCounted {
 public:
  /// Answers a call by Call::answer, with plain arrays or arrays of owners: it makes it of other calls, such as
  /// apply_all(row_of(call), inputs, call.attributes(), {.where = call.where()}). A call with targets has it write its
  /// parts, and answer with the targets. Inputs and targets may share parts: the result is as if all were read first.
  virtual void apply(Call& call) = 0;
  /// Answers a view by ViewCall::answer, with an array of an owner. Writes to its parts must be writes to the parts of
  /// the array: it is made of views of them. Never called for ViewKind::window.
  virtual void view(ViewCall& call) = 0;
  /// The same value, which stays when the parts of this one are written: made of their detach(). The tape keeps values
  /// so. Called without a lock.
  virtual Ref<Owner> snapshot() const = 0;
  /// An array of this spec, laid out as this one is where that can be, whose elements are all `value`: zeros_like,
  /// ones_like, full_like and empty_like, and the gradients with which a backward pass begins.
  virtual NDArray constant(const Spec& spec, const Scalar& value, const std::source_location& where) const = 0;
  /// The arrays that hold its elements.
  virtual std::vector<NDArray> parts() const = 0;
  /// A plain array with all its elements, where reading wants no more than that: item(), to_vector() and printing take
  /// it. An empty handle: there is none, and they throw.
  virtual NDArray value() const { return {}; }
  /// How gradients of the array lie. Null: as they come. Called with locks held: it makes no calls.
  virtual std::shared_ptr<const GradientLayout> gradient_layout() const { return nullptr; }
  /// Why there is no memory to look at, and what to call instead: "is in two halves: join(x) first".
  virtual std::string refusal() const = 0;
};

/// An array of an owner. It belongs to default_engine(). Throws ArrayError for a shape that no array can have, and
/// UsageError for null.
NDArray owned_array(const Spec& spec, Ref<Owner> owner, std::source_location where = std::source_location::current());
/// From now on the gradient of a leaf, an array with with_grad() that has an owner, lies as `layout` says and not as
/// the owner says; one that is there is brought. Not while a backward pass runs that reaches the leaf. Throws
/// ArrayError for an array that is no such leaf, UsageError for null, and what bring() throws. Defined in autograd/.
void set_gradient_layout(const NDArray& leaf, std::shared_ptr<const GradientLayout> layout,
                         std::source_location where = std::source_location::current());
/// The owner of an array; null for a plain one. Throws ArrayError for an empty handle.
Ref<Owner> owner_of(const NDArray& x, std::source_location where = std::source_location::current());

namespace detail {
/// True for a view of an array of an owner, whose parts are views of that one's.
bool is_owned_view(const NDArray& x);
/// Array::snapshot(), without the array's lock for what an owner does.
Ref<Array> snapshot_of(const Ref<Array>& array);
/// Owner::constant of the owner of `like`, which has one. Throws ArrayError for an answer of another spec.
NDArray ask_constant(const NDArray& like, const Spec& spec, const Scalar& value, const std::source_location& where);
/// Brings the history of a view of an owner's array up to date: the array may have been written since it was made.
/// Arrays of other kinds have nothing to bring. Defined in autograd/.
void follow_writes(Array& array);
/// How often histories of arrays of owners have changed. One more is said after such a change.
std::uint64_t histories_changed() noexcept;
void one_more_history_changed() noexcept;
/// Owner::value() of an array of an owner; an empty handle for other arrays, and for an empty handle.
NDArray value_of(const NDArray& x);
/// Calls f(plain array) for x, or for the parts that it is made of.
template <class F>
void each_plain(const NDArray& x, F&& f) {
  const Ref<Owner> owner = owner_of(x);
  if (!owner) return f(x);
  for (const NDArray& part : owner->parts()) each_plain(part, f);
}
/// Asks the owner of the first operand that has one. Throws ArrayError where it does not answer.
std::vector<NDArray> ask_owner(const OperatorInfo& row, std::span<const NDArray* const> inputs,
                               const Attributes& attributes, std::span<const NDArray> targets, const Updates& updates,
                               std::span<const Spec> specs, const std::source_location& where);

/// What an Array has in place of a version.
struct Owned final : RefCounted {
  explicit Owned(Ref<Owner> by) : owner(std::move(by)) {}
  /// However long the chain of views is, it does not recurse.
  ~Owned() override;
  const Ref<Owner> owner;

  /// Of a view: what it shows, and what the tape knew of that when it was recorded last. Guarded by the mutex of the
  /// view's array.
  struct View {
    ViewCall call;
    Ref<History> history;
    std::int32_t output = 0;
    std::atomic<std::uint64_t> looked{0};  ///< when it was brought up to date last: histories_changed()
  };
  std::unique_ptr<View> view;
};
}  // namespace detail

}  // namespace sluice
