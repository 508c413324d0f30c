#include "sluice/ndarray/array_call.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "sluice/ndarray/device_call.h"

namespace sluice {

/// A simulated kernel's is memory of the thread that stands for the device.
Scratch ArrayContext::device_scratch(std::size_t bytes) const {
  return issuing_ ? Scratch(issuing_->scratch(bytes), bytes) : Scratch(cpu(0), bytes);
}

ErrorRef ArrayContext::error(int operand) const {
  return extra_ && !extra_->errors.empty() ? extra_->errors[static_cast<std::size_t>(operand)] : nullptr;
}

ArrayCompletion ArrayContext::completion() const {
  return extra_ && extra_->pending ? ArrayCompletion(*extra_->pending) : ArrayCompletion();
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

std::vector<ErrorRef> ArrayCall::errors(Context& context) const {
  std::vector<ErrorRef> found(operands.size());
  const auto is_input = [&](const Variable& wanted) {
    return std::any_of(operands.begin(), operands.begin() + inputs, [&](const Resolved& x) {
      bool is = false;
      x.version->each_variable([&](const Variable& v) { is = is || v.get() == wanted.get(); });
      return is;
    });
  };
  for (std::size_t i = 0; i < found.size(); ++i) {
    operands[i].version->each_variable([&](const Variable& v) {
      if (i < inputs || operands[i].update) {
        if (!found[i]) found[i] = context.error(v);
      } else if (is_input(v)) {
        context.heal(v);  // the two accesses are one update, which would leave the poison
      }
    });
  }
  return found;
}

void ArrayCall::run(Context& context) {
  if (context.stream()) [[unlikely]]
    return issue(context);
  constexpr std::size_t kFew = 6;
  if (packs || sees_poison || operands.size() > kFew) [[unlikely]]
    return run_special(context);
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

DeviceCall& ArrayCall::on_stream(Context& context) {
  try {
    device = std::make_unique<DeviceCall>(*this, context);
  } catch (...) {
    if (!torn_unissued) context.wrote_nothing();
    throw;
  }
  return *device;
}

void ArrayCall::issue(Context& context) { on_stream(context).issue(context); }

}  // namespace sluice
