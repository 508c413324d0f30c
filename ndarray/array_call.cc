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

/// The window of an operand, where it lies. Allocates what no op has asked for yet.
TensorView ArrayCall::window(std::size_t i) const {
  Buffer& buffer = operands[i].version->buffer();
  TensorView view = views[i];
  view.data = buffer.data() + operands[i].offset * static_cast<std::int64_t>(size_of(view.dtype));
  if (buffer.pinned()) [[unlikely]]
    touch_pinned(buffer, view, i >= inputs);
  return view;
}

void ArrayCall::run(Context& context) {
  if (context.stream()) [[unlikely]]
    return issue(context);
  if (packs) [[unlikely]]
    return run_packed(context);
  try {
    for (const Preserve& p : preserves) {
      std::memcpy(p.to->buffer().data() + p.begin, p.from->buffer().data() + p.begin, p.bytes);
    }
    for (std::size_t i = 0; i < operands.size(); ++i) {
      Buffer& buffer = operands[i].version->buffer();
      views[i].data = buffer.data() + operands[i].offset * static_cast<std::int64_t>(size_of(views[i].dtype));
      if (buffer.pinned()) [[unlikely]]
        touch_pinned(buffer, views[i], i >= inputs);
    }
  } catch (...) {
    if (!torn_unissued) context.wrote_nothing();  // out of memory, before the body
    throw;
  }
  if (!body) return;
  const std::span<const TensorView> every(views.begin(), views.size());
  ArrayContext arguments(every.first(inputs), every.subspan(inputs), attributes.data(), &context);
  body(arguments);
}

/// The same where the body works on contiguous copies of some operands.
void ArrayCall::run_packed(Context& context) {
  std::vector<TensorView> seen;
  std::vector<Scratch> packed;
  try {
    for (const Preserve& p : preserves) {
      std::memcpy(p.to->buffer().data() + p.begin, p.from->buffer().data() + p.begin, p.bytes);
    }
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const TensorView at = window(i);
      TensorView view = at;
      if (operands[i].pack) {
        packed.emplace_back(context.device(), static_cast<std::size_t>(at.count()) * size_of(at.dtype));
        view = {packed.back().as<std::byte>(), at.dtype, at.shape, row_major(at.shape)};
        if (i < inputs || operands[i].preload) strided_copy(at, view);
      }
      seen.push_back(view);
    }
  } catch (...) {
    if (!torn_unissued) context.wrote_nothing();
    throw;
  }
  const std::span<const TensorView> every(seen);
  ArrayContext arguments(every.first(inputs), every.subspan(inputs), attributes.data(), &context);
  if (body) body(arguments);
  for (std::size_t i = inputs; i < operands.size(); ++i) {
    if (operands[i].pack) strided_copy(seen[i], window(i));
  }
}

void ArrayCall::issue(Context& context) {
  device = std::make_unique<DeviceCall>(*this, context);
  device->issue(context);
}

}  // namespace sluice
