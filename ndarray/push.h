// Pushing operations on arrays: versions are resolved together with the operation's place in the order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <span>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/ndarray/nd_array.h"
#include "sluice/ndarray/tensor_view.h"
#include "sluice/resources/scratch.h"

namespace sluice {

class DeviceCall;

/// What the body of an array operation works on: the versions resolved for it, never handles. Valid while it runs.
///
/// On a device with streams a body runs as a simulated kernel, when its turn comes there, and finds the device's
/// memory; one that issues by itself (ArrayPush::issues) runs on the host, where the addresses are only to be handed
/// on.
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
  /// Memory until the returned block goes: host memory; for a body that issues, the device's, until the op is over.
  /// Throws std::bad_alloc.
  Scratch scratch(std::size_t bytes) const {
    return device().kind == DeviceKind::cpu ? Scratch(device(), bytes) : device_scratch(bytes);
  }
  Context& engine_context() const { return *engine_context_; }
  /// For a body that issues: where to, and whose memory it is. Others throw UsageError.
  Stream& stream() const;
  Provider& provider() const;
  /// The same operation for a kernel that its body calls on some of the windows.
  ArrayContext part(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                    const void* attributes) const {
    return {inputs, outputs, attributes, engine_context_, device_call_};
  }

 public:  // for push_arrays
  ArrayContext(std::span<const TensorView> inputs, std::span<const TensorView> outputs, const void* attributes,
               Context* context, DeviceCall* device_call = nullptr)
      : inputs_(inputs),
        outputs_(outputs),
        attributes_(attributes),
        engine_context_(context),
        device_call_(device_call) {}

 private:
  Scratch device_scratch(std::size_t bytes) const;

  std::span<const TensorView> inputs_;
  std::span<const TensorView> outputs_;
  const void* attributes_;
  Context* engine_context_;
  DeviceCall* device_call_;  ///< of a body that issues
};

/// One push on arrays. Plain data; the spans live until push_arrays returns.
struct ArrayPush {
  using Body = void (*)(ArrayContext& context);

  Body body = nullptr;                     ///< null: nothing to do but what the push brings about itself
  std::shared_ptr<const void> closure;     ///< what the body finds with attributes<A>()
  std::span<const NDArray* const> inputs;  ///< read
  std::span<const NDArray> outputs;        ///< overwritten whole (each view), or, in `updates`, read and written
  std::uint32_t updates = 0;               ///< bit i: the body also reads output i
  bool updates_all = false;                ///< it reads them all
  bool issues = false;                     ///< on a device with streams the body issues work; else it is a kernel
  std::uint8_t tries = 1;                  ///< launches that fail are made again, so often in all
  bool torn_unissued = false;              ///< other ops change what belongs with the outputs: if this cannot be issued
                                           ///< these have their old values, but recover() is not to pass that for good
  bool elementwise = false;                ///< an output element depends on input elements of its own index alone
  bool dense_inputs = false;               ///< the body wants contiguous inputs: others are packed for it
  bool dense_outputs = false;              ///< the same for outputs, unpacked afterwards
  PushOptions options;
  std::source_location where;
  // For autograd:
  std::uint32_t save_inputs = 0;   ///< bit i: keep the value of input i as it is read
  std::uint32_t save_outputs = 0;  ///< bit i: keep the value that output i gets
  bool want_histories = false;
  Ref<History> history;  ///< becomes that of outputs[0]'s array, at the instant of the push
  std::int32_t history_output = 0;
};

struct ArrayPushResult {
  struct Past {
    Ref<History> history;
    std::int32_t output = 0;
  };
  Ticket ticket;
  std::vector<NDArray> saved_inputs;  ///< at i where bit i was set; else empty handles
  std::vector<NDArray> saved_outputs;
  std::vector<Past> input_histories;  ///< as they were before this push
  std::vector<Past> output_histories;
};

/// Resolves versions and pushes, as one instant. An output whose present value is held elsewhere (a tape, a snapshot)
/// gets a new version; an input that overlaps an output is read as it was before. Throws ArrayError where an output
/// overlaps itself or another output, arrays belong to different engines, or one is where the operation's device cannot
/// reach it (a device's kernels reach its own memory, and host memory that is pinned); and what Engine::push throws.
ArrayPushResult push_arrays(const ArrayPush& push);

/// Pushes the copies that a write to these arrays needs where their values are held elsewhere (a tape, a snapshot): a
/// write that is pushed next finds none held. push_arrays does so by itself; this is for those who want the copies'
/// errors before.
void copy_held_values(std::span<const NDArray> outputs, std::source_location where);

/// For programs: an op of one's own on arrays. body(ArrayContext&) finds the elements of `inputs` (read), then those of
/// `outputs`, which it must overwrite completely. Not recorded for gradients. May be a push of thousands of arrays
/// (docs/performance/arrays.md says what each costs); all of them at one instant.
///   push_op([](ArrayContext& c) { ... c.input(0).as<float>() ... }, {x}, {y}, {.name = "mine"});
template <class F>
Ticket push_op(F body, std::span<const NDArray> inputs, std::span<const NDArray> outputs,
               const PushOptions& options = {}, std::source_location where = std::source_location::current()) {
  std::vector<const NDArray*> reads;
  reads.reserve(inputs.size());
  for (const NDArray& x : inputs) reads.push_back(&x);
  ArrayPush push;
  push.closure = std::make_shared<const F>(std::move(body));
  push.body = [](ArrayContext& context) { context.attributes<F>()(context); };
  push.inputs = reads;
  push.outputs = outputs;
  push.options = options;
  push.where = where;
  return push_arrays(push).ticket;
}
template <class F>
Ticket push_op(F body, std::initializer_list<NDArray> inputs, std::initializer_list<NDArray> outputs,
               const PushOptions& options = {}, std::source_location where = std::source_location::current()) {
  return push_op(std::move(body), std::span(inputs.begin(), inputs.size()), std::span(outputs.begin(), outputs.size()),
                 options, where);
}

}  // namespace sluice
