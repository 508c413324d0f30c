#include "sluice/ndarray/array_call.h"

#include <array>
#include <cstring>

#include "sluice/ndarray/device_call.h"
#include "sluice/ndarray/strided_copy.h"

namespace sluice {

Stream& ArrayContext::stream() const {
  if (!device_call_) throw UsageError("a body that issues nothing has no stream");
  return *engine_context_->stream();
}

Provider& ArrayContext::provider() const {
  if (!device_call_) throw UsageError("a body that issues nothing has no provider");
  return device_call_->provider();
}

/// A simulated kernel's is memory of the thread that stands for the device.
Scratch ArrayContext::device_scratch(std::size_t bytes) const {
  return device_call_ ? Scratch(device_call_->scratch(bytes), bytes) : Scratch(cpu(0), bytes);
}

ArrayCall::ArrayCall() = default;
ArrayCall::~ArrayCall() = default;

void ArrayCall::run(Context& context) {
  if (context.stream()) [[unlikely]]
    return issue(context);
  constexpr std::size_t kInline = 6;
  std::array<TensorView, kInline> few;
  std::vector<TensorView> many(operands.size() > kInline ? operands.size() : 0);
  const std::span<TensorView> views =
      many.empty() ? std::span(few).first(operands.size()) : std::span<TensorView>(many);
  std::vector<Scratch> packed;
  try {
    for (const Preserve& p : preserves) {
      std::memcpy(p.to->buffer().data() + p.begin, p.from->buffer().data() + p.begin, p.bytes);
    }
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const Resolved& operand = operands[i];
      TensorView view = operand.view;
      view.data = operand.version->buffer().data() + operand.offset * static_cast<std::int64_t>(size_of(view.dtype));
      if (operand.version->buffer().pinned()) [[unlikely]]
        touch_pinned(operand.version->buffer(), view, i >= inputs);
      if (operand.pack) {
        packed.emplace_back(context.device(), static_cast<std::size_t>(view.count()) * size_of(view.dtype));
        const TensorView dense{packed.back().as<std::byte>(), view.dtype, view.shape, row_major(view.shape)};
        if (i < inputs || operand.preload) strided_copy(view, dense);
        view = dense;
      }
      views[i] = view;
    }
  } catch (...) {
    if (!torn_unissued) context.wrote_nothing();  // out of memory, before the body
    throw;
  }
  ArrayContext body_context(views.first(inputs), views.subspan(inputs), closure.get(), &context);
  if (body) body(body_context);
  for (std::size_t i = inputs; i < operands.size(); ++i) {
    const Resolved& operand = operands[i];
    if (!operand.pack) continue;
    TensorView target = operand.view;
    target.data = operand.version->buffer().data() + operand.offset * static_cast<std::int64_t>(size_of(target.dtype));
    strided_copy(views[i], target);
  }
}

void ArrayCall::issue(Context& context) {
  device = std::make_unique<DeviceCall>(*this, context);
  device->issue(context);
}

}  // namespace sluice
