#include "sluice/ndarray/array_call.h"

#include <array>
#include <cstring>

#include "sluice/ndarray/device_call.h"
#include "sluice/ndarray/strided_copy.h"

namespace sluice {

/// A simulated kernel's is memory of the thread that stands for the device.
Scratch ArrayContext::device_scratch(std::size_t bytes) const {
  return issuing_ ? Scratch(issuing_->scratch(bytes), bytes) : Scratch(cpu(0), bytes);
}

ArrayCall::ArrayCall() = default;
ArrayCall::~ArrayCall() = default;

Resolved& ArrayCall::add(const Ref<Version>& version, const NDArray& window) {
  const Dims &shape = window.shape(), &strides = window.strides();
  const auto rank = static_cast<std::size_t>(shape.rank());
  const auto as_before = [&](const Resolved& last) {
    if (last.rank != rank) return false;
    const std::int64_t* const there = dims.begin() + last.dims;
    for (std::size_t i = 0; i < rank; ++i) {
      if (there[i] != shape.begin()[i] || there[rank + i] != strides.begin()[i]) return false;
    }
    return true;
  };
  std::uint32_t at = 0;
  if (!operands.empty() && as_before(operands[operands.size() - 1])) {
    at = operands[operands.size() - 1].dims;
  } else {
    at = static_cast<std::uint32_t>(dims.size());
    for (const std::int64_t n : shape) dims.emplace_back(n);
    for (const std::int64_t n : strides) dims.emplace_back(n);
  }
  return operands.emplace_back(version, window.offset(), at, static_cast<std::uint8_t>(rank), window.array()->dtype());
}

TensorView ArrayCall::window(std::size_t i) const {
  const Resolved& operand = operands[i];
  const std::int64_t* const there = dims.begin() + operand.dims;
  return {nullptr, operand.dtype, Dims(std::span(there, operand.rank)),
          Dims(std::span(there + operand.rank, operand.rank))};
}

void ArrayCall::preserve() const {
  if (!preserves) return;
  for (const Preserve& p : *preserves) {
    std::memcpy(p.to->buffer().data() + p.begin, p.from->buffer().data() + p.begin, p.bytes);
  }
}

/// The windows, where they lie. Allocates what no op has asked for yet.
void ArrayCall::find(std::span<TensorView> views) const {
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const Resolved& operand = operands[i];
    Buffer& buffer = operand.version->buffer();
    views[i] = window(i);
    views[i].data = buffer.data() + operand.offset * static_cast<std::int64_t>(size_of(operand.dtype));
    if (buffer.pinned()) [[unlikely]]
      touch_pinned(buffer, views[i], i >= inputs);
  }
}

void ArrayCall::run(Context& context) {
  if (context.stream()) [[unlikely]]
    return issue(context);
  constexpr std::size_t kFew = 6;
  if (packs || operands.size() > kFew) [[unlikely]]
    return run_packed(context);
  std::array<TensorView, kFew> few;
  const std::span<TensorView> views = std::span(few).first(operands.size());
  try {
    preserve();
    find(views);
  } catch (...) {
    if (!torn_unissued) context.wrote_nothing();  // out of memory, before the body
    throw;
  }
  if (!body) return;
  ArrayContext arguments(views.first(inputs), views.subspan(inputs), attributes.data(), &context);
  body(arguments);
}

/// The same for many operands, and where the body works on contiguous copies of some.
void ArrayCall::run_packed(Context& context) {
  std::vector<TensorView> windows;
  std::vector<TensorView> views;
  std::vector<Scratch> packed;
  try {
    preserve();
    windows.resize(operands.size());
    find(windows);
    views = windows;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i].pack) continue;
      TensorView& view = views[i];
      packed.emplace_back(context.device(), static_cast<std::size_t>(view.count()) * size_of(view.dtype));
      view.data = packed.back().as<std::byte>();
      view.strides = row_major(view.shape);
      if (i < inputs || operands[i].preload) strided_copy(windows[i], view);
    }
  } catch (...) {
    if (!torn_unissued) context.wrote_nothing();
    throw;
  }
  const std::span<const TensorView> seen(views);
  ArrayContext arguments(seen.first(inputs), seen.subspan(inputs), attributes.data(), &context);
  if (body) body(arguments);
  for (std::size_t i = inputs; i < operands.size(); ++i) {
    if (operands[i].pack) strided_copy(views[i], windows[i]);
  }
}

void ArrayCall::issue(Context& context) {
  device = std::make_unique<DeviceCall>(*this, context);
  device->issue(context);
}

}  // namespace sluice
