// What providers and streams have in common, and the CPU's provider.
#include "sluice/engine/provider.h"

#include <cstring>
#include <new>

#include "sluice/engine/detail/slot.h"
#include "sluice/engine/engine.h"
#include "sluice/engine/order_observer.h"

namespace sluice {
namespace {

thread_local std::span<const MemoryUse> uses_here;

/// CPU devices: their ops are over when their bodies return, and memory is the process's.
class CpuProvider final : public Provider {
 public:
  explicit CpuProvider(int devices) : devices_(devices) {}
  DeviceKind kind() const override { return DeviceKind::cpu; }
  int devices() const override { return devices_; }
  std::unique_ptr<Stream> make_stream(int, LaneKind) override { return nullptr; }
  std::uint64_t progress() const noexcept override { return 0; }
  void await_progress(std::uint64_t, std::chrono::nanoseconds) noexcept override {}
  void* allocate(int, std::size_t bytes, Stream*) noexcept override {
    return ::operator new (bytes, std::align_val_t{DeviceLimits{}.alignment}, std::nothrow);
  }
  void free(int, void* block, std::size_t, Stream*) noexcept override {
    ::operator delete (block, std::align_val_t{DeviceLimits{}.alignment});
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream*) override { std::memcpy(to, from, bytes); }
  void fill(void* to, std::byte value, std::size_t bytes, Stream*) override {
    std::memset(to, static_cast<int>(value), bytes);
  }

 private:
  const int devices_;
};

}  // namespace

std::shared_ptr<Provider> detail::make_cpu_provider(int devices) { return std::make_shared<CpuProvider>(devices); }

std::span<const MemoryUse> current_memory_uses() noexcept { return uses_here; }

MemoryUses::MemoryUses(std::span<const MemoryUse> uses) noexcept : before_(uses_here) {
  static constexpr MemoryUse kNone;
  uses_here = uses.data() ? uses : std::span<const MemoryUse>(&kNone, 0);  // "none" is not "nobody said"
}

MemoryUses::~MemoryUses() { uses_here = before_; }

OpLabel current_op_label() noexcept {
  const detail::Operation* const op = detail::thread_state().operation;
  return op ? OpLabel{op->name, op->where} : OpLabel{};
}

const char* current_op_layer() noexcept {
  const detail::ThreadState& state = detail::thread_state();
  return state.core ? state.core->layer_path(state.operation) : "";
}

DeviceOp current_device_op() noexcept {
  const detail::ThreadState& state = detail::thread_state();
  return state.core ? state.core->device_op(state.operation) : DeviceOp{};
}

}  // namespace sluice
