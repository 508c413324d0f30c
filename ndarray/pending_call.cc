#include "sluice/ndarray/pending_call.h"

#include <utility>

#include "sluice/ndarray/device_call.h"

namespace sluice {
namespace detail {
namespace {

/// Unpacks the outputs, on the op's lane.
struct Unpack {
  std::shared_ptr<PendingCall> pending;

  void operator()() {
    std::exception_ptr failed;
    try {
      pending->host.end(*pending->call);
    } catch (...) {
      failed = std::current_exception();
    }
    Completion completion = std::move(pending->completion);
    pending.reset();
    failed ? completion.fail(std::move(failed)) : completion.done();
  }
};

/// On the lane. Where the engine takes no op, because it was stopped or is full: on this thread.
void unpack(std::shared_ptr<PendingCall> pending) noexcept {
  Unpack closure{std::move(pending)};
  PendingCall& call = *closure.pending;
  // Who waits for the op may end the engine while this thread still pushes.
  const std::shared_ptr<CoreBase> core = call.core->shared_from_this();
  try {
    const OutsideCapture outside;
    const ScopeGuard scope;
    current_scope() = ScopeState{call.options.on.device, 0, 0, nullptr, {}};
    PushOptions options;
    options.on = call.options.on;
    options.priority = call.options.priority;
    options.name = "unpack";
    options.on_poison = OnPoison::always;
    options.never_blocks = true;
    const OpenPush place = core->begin_push({}, sizeof(Unpack), alignof(Unpack), options, call.where);
    new (place.closure) Unpack(std::move(closure));
    core->commit_push(place.operation, closure_table<Unpack>);
  } catch (...) {
    closure();
  }
}

}  // namespace

std::span<const TensorView> PendingCall::views() const { return call->device ? call->device->views() : host.views(); }

void PendingClosure::operator()(Context& context, Completion completion) const {
  ArrayCall& call = *pending->call;
  if (context.stream()) {
    pending->completion = std::move(completion);
    return call.on_stream(context).issue(context, &pending);
  }
  pending->host.begin(call, context);
  pending->completion = std::move(completion);
  const ArrayContext::Extra extra{pending->host.errors(), &pending};
  const std::span<const TensorView> views = pending->views();
  const Attributes body = std::move(call.attributes);  // it goes with this call, and not by whoever answers
  ArrayContext arguments(views.first(call.inputs), views.subspan(call.inputs), body.data(), &context, nullptr, &extra);
  try {
    call.body(arguments);
  } catch (...) {
    if (!pending->answered.load()) throw;
  }
}

}  // namespace detail

ArrayCompletion& ArrayCompletion::operator=(ArrayCompletion&& other) noexcept {
  ArrayCompletion old(std::move(call_));
  call_ = std::move(other.call_);
  return *this;
}

ArrayCompletion::~ArrayCompletion() {
  if (!call_) return;
  const Completion abandoned = std::move(call_->completion);
  call_.reset();  // before the op is over
}

void ArrayCompletion::done() noexcept {
  if (!call_) return;
  call_->answered = true;
  if (!call_->call->device && call_->host.unpacks(*call_->call)) return detail::unpack(std::move(call_));
  Completion completion = std::move(call_->completion);
  call_.reset();
  completion.done();
}

void ArrayCompletion::fail(std::exception_ptr error, bool wrote_nothing) noexcept {
  if (!call_) return;
  Completion completion = std::move(call_->completion);
  call_.reset();
  completion.fail(std::move(error), wrote_nothing);
}

void ArrayCompletion::pass_on(const ErrorRef& root, bool wrote_nothing) noexcept {
  if (!call_) return;
  Completion completion = std::move(call_->completion);
  call_.reset();
  completion.pass_on(root, wrote_nothing);
}

int ArrayCompletion::inputs() const { return static_cast<int>(call_->call->inputs); }
int ArrayCompletion::outputs() const { return static_cast<int>(call_->call->operands.size()) - inputs(); }
const TensorView& ArrayCompletion::input(int i) const { return call_->views()[static_cast<std::size_t>(i)]; }
const TensorView& ArrayCompletion::output(int i) const {
  return call_->views()[call_->call->inputs + static_cast<std::size_t>(i)];
}

}  // namespace sluice
