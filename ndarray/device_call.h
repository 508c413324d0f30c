// DeviceCall: an operation on arrays as it is issued to a stream.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sluice/ndarray/array_call.h"

namespace sluice {

/// On simulated devices host functions are launched as kernels, and launch() gives them the windows at addresses that
/// kernels can touch. Outside of kernels all addresses are handles, and functions that issue get these.
class DeviceCall final : public Issuing, public Pooled<DeviceCall> {
 public:
  DeviceCall(ArrayCall& call, Context& context);
  /// Called when the device has confirmed the op.
  ~DeviceCall();
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;

  /// Takes memory, issues the steps to the stream, and returns. `pending`: of a body that answers later, else null.
  /// Throws what allocation and the stream throw.
  void issue(Context& context, const std::shared_ptr<detail::PendingCall>* pending = nullptr);
  /// What the body sees.
  std::span<const TensorView> views() const { return {views_.begin(), views_.size()}; }

  // For bodies that issue.
  Stream& stream() override { return *context_.stream(); }
  Provider& provider() override { return pool_->provider(); }
  void* scratch(std::size_t bytes) override;
  std::uint64_t settled_errors(Device device) override { return context_.settled_errors(device); }
  bool again(int failures) override;

 private:
  /// A step on the stream: a host function as a kernel, with what it reads and writes.
  void launch(const std::function<void()>& kernel, std::span<const MemoryUse> uses);
  void copy_window(std::size_t operand, bool out);
  void run_body();
  void let_go() noexcept;

  ArrayCall& call_;
  Context context_;  ///< used while the op is issued, and by kernels that ask it something
  DevicePool* pool_ = nullptr;
  ShortList<TensorView, 4> windows_;  ///< the windows of the operands, where some are packed
  ShortList<TensorView, 4> views_;    ///< what the body sees: the windows, or packed copies
  std::vector<ErrorRef> errors_;      ///< by operand; empty where the body does not see poison
  struct Block {
    void* memory = nullptr;
    std::size_t bytes = 0;
    DevicePool::Holder holder = 0;
  };
  ShortList<Block, 2> blocks_;          ///< packed copies and scratch
  std::vector<MemoryUse> uses_;         ///< operands, packed copies and scratch; empty where no record is kept
  std::optional<MemoryUses> declared_;  ///< tells them to the provider, while the op is issued
  std::shared_ptr<DevicePool> keeps_;
  std::shared_ptr<StreamProgress> progress_;
  std::uint64_t point_ = 0;  ///< what was issued for the op comes before it
  bool answers_later_ = false;
};

}  // namespace sluice
