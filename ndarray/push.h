// Pushing operations on arrays: versions are resolved together with the operation's place in the order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <span>
#include <type_traits>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/ndarray/array_completion.h"
#include "sluice/ndarray/attributes.h"
#include "sluice/ndarray/grad_mode.h"
#include "sluice/ndarray/nd_array.h"
#include "sluice/ndarray/operand_sets.h"
#include "sluice/ndarray/scope_flags.h"
#include "sluice/ndarray/short_list.h"
#include "sluice/ndarray/tensor_view.h"
#include "sluice/resources/scratch.h"

namespace sluice {

/// What a body that issues may ask for. An interface, because kernels may lie in a library of their own.
class Issuing {
 public:
  virtual Stream& stream() = 0;
  virtual Provider& provider() = 0;
  /// Memory of the device, until the op is over. Throws std::bad_alloc.
  virtual void* scratch(std::size_t bytes) = 0;
  /// Context::settled_errors.
  virtual std::uint64_t settled_errors(Device device) = 0;
  /// After a launch that has failed so often: whether to try it once more (ArrayPush::tries). Waits until what was
  /// issued before is over.
  virtual bool again(int failures) = 0;

  /// Something may have been issued that changes the outputs.
  bool issued = false;
  /// A launch has failed. If nothing was issued then, the outputs have their old values.
  bool refused = false;

 protected:
  ~Issuing() = default;
};

/// While it lives, the thread's operations on arrays are pushed with this priority (0 to 7, higher first), whatever
/// they ask for themselves; their bodies' pushes too. Throws UsageError for another number.
class PriorityScope : ScopeGuard {
 public:
  explicit PriorityScope(int priority);
};

/// What the body of an array operation works on: the versions that its push resolved, never handles. Valid while the
/// body runs.
///
/// On a device with streams a body runs as a simulated kernel, when its turn comes there, and the addresses are those
/// of the device's memory. A body that issues work itself (ArrayPush::issues) runs on the host, and must not touch the
/// addresses but only pass them on to kernels.
class ArrayContext {
 public:
  int inputs() const { return static_cast<int>(inputs_.size()); }
  int outputs() const { return static_cast<int>(outputs_.size()); }
  /// Input and output windows, in the order of the push.
  const TensorView& input(int i) const { return inputs_[static_cast<std::size_t>(i)]; }
  const TensorView& output(int i = 0) const { return outputs_[static_cast<std::size_t>(i)]; }
  Device device() const { return engine_context_->device(); }
  /// The operation's attributes: A must be the type that was pushed.
  template <class A>
  const A& attributes() const {
    return *static_cast<const A*>(attributes_);
  }
  /// Memory for the body's own use. It is host memory, until the returned block is destroyed; for a body that issues it
  /// is memory of the device, until the op is over. Throws std::bad_alloc.
  Scratch scratch(std::size_t bytes) const {
    return device().kind == DeviceKind::cpu ? Scratch(device(), bytes) : device_scratch(bytes);
  }
  /// With OnPoison::run or always: the error that an operand carried when the op began; null if none. On a device with
  /// streams such a body begins when all work that was issued before to devices of its kind is over. Inputs come first,
  /// then outputs. Such an operand has no address: the data of its window is null. An output that is overwritten
  /// whole has no error, whatever it was before; another one stays poisoned when the body returns.
  ErrorRef error(int operand) const;
  /// With OnPoison::always: Context::skip_reason.
  ErrorRef skip_reason() const { return engine_context_->skip_reason(); }
  Context& engine_context() const { return *engine_context_; }
  /// For a body that issues: the stream to which, and the provider whose memory it is. Other bodies get a UsageError.
  Stream& stream() const {
    Issuing& to = issuing();
    to.issued = true;
    return to.stream();
  }
  Provider& provider() const { return issuing().provider(); }
  /// The same for what else such a body may ask for.
  Issuing& issuing() const {
    if (!issuing_) throw UsageError("a body that issues nothing has no stream, and no provider");
    return *issuing_;
  }

 public:  // for push_arrays
  /// What few bodies have.
  struct Extra {
    std::span<const ErrorRef> errors;                     ///< by operand; empty where the body does not see poison
    const std::shared_ptr<detail::PendingCall>* pending;  ///< of a body that answers later; else null
  };
  ArrayContext(std::span<const TensorView> inputs, std::span<const TensorView> outputs, const void* attributes,
               Context* context, Issuing* issuing = nullptr, const Extra* extra = nullptr)
      : inputs_(inputs),
        outputs_(outputs),
        attributes_(attributes),
        engine_context_(context),
        issuing_(issuing),
        extra_(extra) {}
  /// Of a body that answers later, once; else an empty one.
  ArrayCompletion completion() const;

 private:
  Scratch device_scratch(std::size_t bytes) const;

  std::span<const TensorView> inputs_;
  std::span<const TensorView> outputs_;
  const void* attributes_;
  Context* engine_context_;
  Issuing* issuing_;    ///< of a body that issues
  const Extra* extra_;  ///< null where there is none
};

/// One push on arrays. Plain data; the spans live until push_arrays returns.
struct ArrayPush {
  using Body = void (*)(ArrayContext& context);

  Body body = nullptr;                     ///< null: only the copies that the push makes itself
  const Attributes* attributes = nullptr;  ///< what attributes<A>() gives the body; they are copied
  std::span<const NDArray* const> inputs;  ///< read
  std::span<const NDArray> outputs;        ///< overwritten whole (each view), or, in `updates`, read and written
  bool fresh = false;      ///< nobody else knows the outputs: they were made for this push, and nothing is in them
  Updates updates;         ///< the outputs that the body also reads
  bool issues = false;     ///< on a device with streams: the body issues work; else it is a kernel
  bool later = false;      ///< the body takes ArrayContext::completion(), and issues where there are streams
  std::uint8_t tries = 1;  ///< how often in all a launch that fails is tried
  /// Other ops change what belongs together with the outputs. If this op cannot be issued, the outputs have their old
  /// values, and are torn all the same: recover() must not pass them for good.
  bool torn_unissued = false;
  bool elementwise = false;    ///< an output element depends on input elements of its own index alone
  bool dense_inputs = false;   ///< the body wants contiguous inputs: others are packed for it
  bool dense_outputs = false;  ///< the same for outputs, unpacked afterwards
  PushOptions options;
  std::source_location where;
  /// What it writes is nobody's function: outside of a NoGrad scope an array that is written whole loses its history,
  /// and leaves, and parts of arrays that have one, are refused.
  bool opaque = false;
  /// How it is recorded for gradients, if it is; null: it is not.
  struct Tape* tape = nullptr;
};

/// Recording a push for gradients: what push_arrays is told, and what it answers. It is recorded if an input that
/// gradients flow to, or an output that is written in place, has a history at the instant of the push.
struct Tape {
  struct Past {
    Ref<History> history;
    std::int32_t output = 0;
  };
  // Told:
  bool flows = false;                 ///< there is a gradient with respect to inputs
  bool in_place = false;              ///< the outputs are arrays that had a value
  std::span<const Needs> needs;       ///< of each input's gradient: the values to keep. The last counts for the rest
  Ref<History> (*begin)() = nullptr;  ///< makes the history that the outputs' arrays get
  // Answered:
  Ref<History> history;               ///< null: it was not recorded, and the rest is empty
  std::vector<NDArray> saved_inputs;  ///< at i if input i's value was kept; else empty handles
  std::vector<NDArray> saved_outputs;
  ShortList<Past, 4> input_histories;  ///< as they were before this push
  ShortList<Past, 2> output_histories;
};

/// Resolves versions and pushes, at one instant. An output whose present value is held elsewhere (a tape, a snapshot)
/// gets a new version. An input that overlaps an output is read as it was before. Throws ArrayError where an output
/// overlaps itself or another output, where arrays belong to different engines, where a push must not write to what has
/// a history, and where the operation's device cannot reach an array: a device's kernels reach its own memory, and
/// pinned host memory. Throws what Engine::push throws.
Ticket push_arrays(const ArrayPush& push);

/// Pushes the copies that a write to these arrays needs where their values are held elsewhere (a tape, a snapshot), so
/// that a write which is pushed next finds no value held. push_arrays does this itself; this function is for callers
/// that need the errors of the copies before.
void copy_held_values(std::span<const NDArray> outputs, std::source_location where);

/// For programs: an op of your own on arrays. body(ArrayContext&) gets the elements of `inputs`, which it reads, and of
/// `outputs`, which it must overwrite completely. It is not recorded for gradients: to them an array that it overwrites
/// is a constant from then on. Outside of a NoGrad scope it throws ArrayError for an array made by with_grad, and for a
/// part of an array that recorded operators made. A push may have thousands of arrays, all of them at one instant
/// (docs/performance/arrays.md says what each costs).
///   push_op([](ArrayContext& c) { ... c.input(0).as<float>() ... }, {x}, {y}, {.name = "mine"});
/// A body that takes an ArrayCompletion beside it, body(ArrayContext&, ArrayCompletion), is over when that is answered:
///   push_op([&](ArrayContext& c, ArrayCompletion done) { socket.receive(c.output().data, std::move(done)); }, {},
///   {y});
/// With `.on_poison` of `run` or `always` the body is called where operands are poisoned too, or even where the op was
/// cancelled (ArrayContext::error and skip_reason).
template <class F>
Ticket push_op(F body, std::span<const NDArray> inputs, std::span<const NDArray> outputs,
               const PushOptions& options = {}, std::source_location where = std::source_location::current()) {
  std::vector<const NDArray*> reads;
  reads.reserve(inputs.size());
  for (const NDArray& x : inputs) reads.push_back(&x);
  const Attributes closure(std::move(body));
  ArrayPush push;
  push.attributes = &closure;
  push.later = std::is_invocable_v<const F&, ArrayContext&, ArrayCompletion>;
  push.body = [](ArrayContext& context) {
    if constexpr (std::is_invocable_v<const F&, ArrayContext&, ArrayCompletion>) {
      context.attributes<F>()(context, context.completion());
    } else {
      context.attributes<F>()(context);
    }
  };
  push.inputs = reads;
  push.outputs = outputs;
  push.options = options;
  push.where = where;
  push.opaque = true;
  return push_arrays(push);
}
template <class F>
Ticket push_op(F body, std::initializer_list<NDArray> inputs, std::initializer_list<NDArray> outputs,
               const PushOptions& options = {}, std::source_location where = std::source_location::current()) {
  return push_op(std::move(body), std::span(inputs.begin(), inputs.size()), std::span(outputs.begin(), outputs.size()),
                 options, where);
}

}  // namespace sluice
