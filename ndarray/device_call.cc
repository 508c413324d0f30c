#include "sluice/ndarray/device_call.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>

#include "sluice/ndarray/device_kernels.h"
#include "sluice/ndarray/strided_copy.h"
#include "sluice/ndarray/windows.h"
#include "sluice/resources/host_kernel.h"

namespace sluice {
namespace {

/// Where a kernel finds a window. One without an address stays so.
TensorView touchable(TensorView view) {
  if (view.data) view.data = kernel_pointer(view.data);
  return view;
}

std::int64_t item(const TensorView& view) { return static_cast<std::int64_t>(size_of(view.dtype)); }

std::array<std::atomic<const DeviceKernels*>, kDeviceKinds> kernels_of;

}  // namespace

void set_device_kernels(DeviceKind kind, const DeviceKernels* kernels) {
  kernels_of[static_cast<std::size_t>(kind)].store(kernels, std::memory_order_release);
}
const DeviceKernels* device_kernels(DeviceKind kind) {
  return kernels_of[static_cast<std::size_t>(kind)].load(std::memory_order_acquire);
}

MemoryUse use_of(const TensorView& view, bool writes) {
  const auto [low, high] = extent(view.shape, view.strides, 0);
  return {view.data + low * item(view), static_cast<std::size_t>((high - low) * item(view)), writes};
}

void touch_pinned(const Buffer& buffer, const TensorView& view, bool writes) {
  const MemoryUse use = use_of(view, writes);
  if (OrderObserver* const observer = buffer.pool()->observer()) observer->host_touches({&use, 1});
}

DeviceCall::DeviceCall(ArrayCall& call, Context& context) : call_(call), context_(context) {
  // One of the operands is on a device of this kind, or is host memory that belongs to one.
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    DevicePool* const pool = call.operands[i].version->buffer().pool();
    if (pool && (!pool_ || pool->device() == context.device())) pool_ = pool;
  }
  if (!pool_) throw UsageError("an operation on " + to_string(context.device()) + " without an array there");
  keeps_ = pool_->shared_from_this();
  progress_ = pool_->progress(*context.stream(), context.device());
}

DeviceCall::~DeviceCall() {
  if (point_ != 0) progress_->passed(point_);
}

void DeviceCall::issue(Context& context, const std::shared_ptr<detail::PendingCall>* pending) {
  Stream& stream = *context.stream();
  answers_later_ = pending != nullptr;
  const bool observed = pool_->observer();
  // A body that runs on the host and issues nothing is a kernel, where the device has such kernels.
  const bool issues = call_.issues || device_kernels(context.device().kind);
  const std::size_t count = call_.operands.size();
  bool began = false;  // something that writes an output may have been issued
  try {
    if (call_.sees_poison) {
      context.await_issued();  // of an op that is not confirmed nobody knows yet whether it fails, or heals
      errors_ = call_.errors(context);
    }
    // What takes memory comes first, so that nothing is issued where there is none.
    for (std::size_t i = 0; i < count; ++i) {
      const Resolved& operand = call_.operands[i];
      TensorView view = call_.window(i);
      if (!errors_.empty() && errors_[i]) {  // it gets no address
        if (call_.packs) windows_.emplace_back(view);
        views_.emplace_back(view);
        continue;
      }
      view.data = operand.version->buffer().data_for(context) + operand.offset * item(view);
      if (call_.packs) windows_.emplace_back(view);
      if (observed) uses_.push_back(use_of(view, i >= call_.inputs));
      if (operand.pack) {
        view.strides = row_major(view.shape);
        view.data = static_cast<std::byte*>(scratch(static_cast<std::size_t>(view.count() * item(view))));
      }
      views_.emplace_back(view);
    }
    if (observed) declared_.emplace(uses_);
    if (call_.preserves) {
      for (const Preserve& p : *call_.preserves) {
        std::byte* const from = p.from->buffer().data_for(context);
        provider().copy(p.to->buffer().data_for(context) + p.begin, from + p.begin, p.bytes, &stream);
      }
    }
    for (std::size_t i = 0; i < count; ++i) {
      const Resolved& operand = call_.operands[i];
      if (operand.pack && views_[i].data && (i < call_.inputs || operand.preload)) copy_window(i, false);
    }
    if (issues && call_.body) {
      began = true;
      const std::span<const TensorView> views(views_.begin(), count);
      const ArrayContext::Extra extra{errors_, pending};
      ArrayContext arguments(views.first(call_.inputs), views.subspan(call_.inputs), call_.attributes.data(), &context,
                             this, &extra);
      issued = refused = false;  // packing goes to memory of this op's own
      call_.body(arguments);
      refused = false;
    } else if (call_.body) {
      std::vector<MemoryUse> uses;
      if (observed) {
        uses.reserve(count);
        for (std::size_t i = 0; i < count; ++i) {
          if (views_[i].data) uses.push_back(use_of(views_[i], i >= call_.inputs));
        }
      }
      launch([this] { run_body(); }, uses);
    }
    began = true;
    for (std::size_t i = call_.inputs; i < count; ++i) {
      if (call_.operands[i].pack && views_[i].data) copy_window(i, true);
    }
  } catch (...) {
    declared_.reset();
    if ((!began || (refused && !issued)) && !call_.torn_unissued) context.wrote_nothing();
    let_go();
    throw;
  }
  declared_.reset();
  let_go();
}

/// What was issued comes before whatever the stream gets from here on: the op's memory is no longer the op's. Whoever
/// answers later may still look at the operands; and pinned memory the host may use as soon as it has it.
void DeviceCall::let_go() noexcept {
  point_ = context_.issued_point().point;
  for (const Block& block : blocks_) {
    if (!block.memory) continue;
    BlockUses uses;
    uses.add(progress_, point_);
    pool_->deallocate(DevicePool::device_memory, block.memory, block.bytes, block.holder, std::move(uses));
  }
  if (answers_later_) return;
  const auto drop = [&](Ref<Version>& version) {
    if (!version) return;
    Buffer& buffer = version->buffer();
    if (!buffer.pool() || buffer.pinned()) return;
    try {
      buffer.used(progress_, point_);
    } catch (const std::bad_alloc&) {
      return;  // it goes with the closure, when the device is over with the op
    }
    version = {};
  };
  for (Resolved& operand : call_.operands) drop(operand.version);
  if (!call_.preserves) return;
  for (Preserve& p : *call_.preserves) {
    drop(p.from);
    drop(p.to);
  }
}

void* DeviceCall::scratch(std::size_t bytes) {
  Block& kept = blocks_.emplace_back();  // before there is something to lose
  DevicePool::Holder holder = 0;
  void* const block = allocate_block(*pool_, DevicePool::device_memory, bytes, &context_, holder);
  kept = {block, bytes, holder};
  if (pool_->observer()) {
    declared_.reset();
    uses_.push_back({block, bytes, true});
    declared_.emplace(uses_);
  }
  return block;
}

void DeviceCall::launch(const std::function<void()>& kernel, std::span<const MemoryUse> uses) {
  for (int left = call_.tries;; --left) {
    try {
      return context_.stream()->launch(kernel, uses);
    } catch (const UsageError&) {
      throw;
    } catch (...) {
      if (left <= 1) throw;
    }
    context_.await_issued();
  }
}

bool DeviceCall::again(int failures) {
  if (failures >= call_.tries) return false;
  context_.await_issued();
  return true;
}

void DeviceCall::copy_window(std::size_t operand, bool out) {
  if (const DeviceKernels* const kernels = device_kernels(context_.device().kind)) {
    const TensorView &window = windows_[operand], &packed = views_[operand];
    return out ? kernels->strided_copy(*this, packed, window) : kernels->strided_copy(*this, window, packed);
  }
  const MemoryUse uses[] = {use_of(windows_[operand], out), use_of(views_[operand], !out)};
  launch(
      [this, operand, out] {
        const TensorView window = touchable(windows_[operand]), packed = touchable(views_[operand]);
        out ? strided_copy(packed, window) : strided_copy(window, packed);
      },
      uses);
}

/// The kernel.
void DeviceCall::run_body() {
  std::vector<TensorView> views(views_.size());
  std::transform(views_.begin(), views_.end(), views.begin(), touchable);
  const std::span<const TensorView> seen(views);
  Context context = context_;
  try {
    const ArrayContext::Extra extra{errors_, nullptr};
    ArrayContext arguments(seen.first(call_.inputs), seen.subspan(call_.inputs), call_.attributes.data(), &context,
                           nullptr, &extra);
    call_.body(arguments);
  } catch (...) {
    report_late_error(std::current_exception(), context.says_wrote_nothing());
  }
}

}  // namespace sluice
