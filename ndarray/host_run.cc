#include "sluice/ndarray/host_run.h"

#include "sluice/ndarray/strided_copy.h"

namespace sluice {

void HostRun::begin(const ArrayCall& call, Context& context) {
  try {
    call.preserve();
    if (call.sees_poison) errors_ = call.errors(context);
    windows_.resize(call.operands.size());
    errors_.empty() ? call.find(windows_) : find_good(call);
    views_ = windows_;
    for (std::size_t i = 0; i < call.operands.size(); ++i) {
      const Resolved& operand = call.operands[i];
      TensorView& view = views_[i];
      if (!operand.pack || !view.data) continue;
      packed_.emplace_back(context.device(), static_cast<std::size_t>(view.count()) * size_of(view.dtype));
      view.data = packed_.back().as<std::byte>();
      view.strides = row_major(view.shape);
      if (i < call.inputs || operand.preload) strided_copy(windows_[i], view);
    }
  } catch (...) {
    if (!call.torn_unissued) context.wrote_nothing();
    throw;
  }
}

/// ArrayCall::find, but for the operands with an error, which have no address.
void HostRun::find_good(const ArrayCall& call) {
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    windows_[i] = call.window(i);
    if (errors_[i]) continue;
    Buffer& buffer = call.operands[i].version->buffer();
    windows_[i].data =
        buffer.data() + call.operands[i].offset * static_cast<std::int64_t>(size_of(call.operands[i].dtype));
    if (buffer.pinned()) touch_pinned(buffer, windows_[i], i >= call.inputs);
  }
}

void HostRun::end(const ArrayCall& call) const {
  for (std::size_t i = call.inputs; i < call.operands.size(); ++i) {
    if (call.operands[i].pack && views_[i].data) strided_copy(views_[i], windows_[i]);
  }
}

bool HostRun::unpacks(const ArrayCall& call) const {
  for (std::size_t i = call.inputs; i < call.operands.size(); ++i) {
    if (call.operands[i].pack && views_[i].data) return true;
  }
  return false;
}

void ArrayCall::run_special(Context& context) {
  HostRun run;
  run.begin(*this, context);
  const ArrayContext::Extra extra{run.errors(), nullptr};
  ArrayContext arguments(run.views().first(inputs), run.views().subspan(inputs), attributes.data(), &context, nullptr,
                         &extra);
  if (body) body(arguments);
  run.end(*this);
}

}  // namespace sluice
