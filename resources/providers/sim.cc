#include "sluice/resources/providers/sim.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <typeinfo>
#include <utility>

#include "sluice/engine/errors.h"
#include "sluice/engine/order_observer.h"
#include "sluice/resources/providers/detail/sim_stream.h"

namespace sluice {
namespace detail {
namespace {

/// The device that the calling thread entered last, and whose.
struct Entered {
  std::uint64_t provider = 0;
  int device = -1;
};
thread_local Entered entered_here;

constexpr std::align_val_t kPinnedAlignment{64};

std::string name_of(int device) { return to_string(sim(device)); }

}  // namespace

void SimErrorRing::add(LateError error) noexcept {
  std::lock_guard lock(mutex_);
  const std::uint64_t number = count_.load(std::memory_order_relaxed);
  entries_[number % kEntries] = std::move(error);
  count_.store(number + 1, std::memory_order_release);
}

std::vector<LateError> SimErrorRing::from(std::uint64_t number) const {
  std::lock_guard lock(mutex_);
  const std::uint64_t end = count_.load(std::memory_order_relaxed);
  std::vector<LateError> errors;
  for (std::uint64_t i = std::max(number, end - std::min(end, kEntries)); i < end; ++i) {
    errors.push_back(entries_[i % kEntries]);
  }
  return errors;
}

SimCore::SimCore(int count, const SimOptions& given)
    : options(given), control(given.control ? given.control : std::make_shared<SimControl>()), number([] {
        static std::atomic<std::uint64_t> made{0};
        return made.fetch_add(1) + 1;
      }()) {
  for (int i = 0; i < count; ++i) {
    devices.push_back(std::make_unique<SimDevice>(SimMemory::Options{given.limits.memory, given.poison}));
  }
  if (given.observer) observer = given.observer([c = control.get()](std::string line) { c->report(std::move(line)); });
}

void SimCore::advance() noexcept {
  // Those who wait count themselves before they look, and this rises before it looks for them: one sees the other.
  progress.fetch_add(1);
  if (waiting_.load() == 0) return;
  { std::lock_guard lock(mutex_); }
  changed_.notify_all();
}

void SimCore::report_error(int device, LateError error) noexcept {
  devices[static_cast<std::size_t>(device)]->errors.add(std::move(error));
  advance();
}

int SimCore::owner(const void* address) const {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (devices[i]->memory.holds(address)) return static_cast<int>(i);
  }
  return -1;
}

void* SimCore::reach(const void* address, std::size_t bytes, bool at_once) {
  const int device = owner(address);
  if (device < 0) {
    if (options.pinned_only && !at_once && !is_pinned(address, bytes)) {
      misuse(options.label(), "a copy on a stream from or to memory of the host that is not pinned");
    }
    return const_cast<void*>(address);
  }
  const SimMemory& memory = devices[static_cast<std::size_t>(device)]->memory;
  if (!memory.covers(address, bytes)) {
    misuse(options.label(),
           "a copy of " + std::to_string(bytes) + " bytes is not inside of a block of " + name_of(device));
  }
  return memory.kernel_address(address);
}

void* SimCore::allocate_pinned(std::size_t bytes) noexcept {
  void* const block = ::operator new(bytes, kPinnedAlignment, std::nothrow);
  if (!block) return nullptr;
  try {
    std::lock_guard lock(pinned_mutex_);
    pinned_[static_cast<const std::byte*>(block)] = bytes;
  } catch (const std::bad_alloc&) {
    ::operator delete(block, kPinnedAlignment);
    return nullptr;
  }
  if (observer) observer->allocated(block, bytes);
  return block;
}

void SimCore::free_pinned(void* block) noexcept {
  if (!block) return;
  if (observer && !control->broken()) observer->freed(block, caller());
  {
    std::lock_guard lock(pinned_mutex_);
    pinned_.erase(static_cast<const std::byte*>(block));
  }
  ::operator delete(block, kPinnedAlignment);
}

bool SimCore::is_pinned(const void* address, std::size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(address);
  std::lock_guard lock(pinned_mutex_);
  const auto next = pinned_.upper_bound(begin);
  if (next == pinned_.begin()) return bytes == 0;
  const auto& [block, size] = *std::prev(next);
  return begin + bytes <= block + size;
}

void SimCore::misuse(const OpLabel& label, const std::string& what) {
  const std::string line =
      label.name ? "[" + std::string(label.name) + "] " + to_string(label.where) + ": " + what : what;
  control->report(line);
  throw UsageError(line);
}

void SimCore::enter(int device) noexcept { entered_here = {number, device}; }

void SimCore::check_entered(int device) {
  if (entered_here.provider != number || entered_here.device == device) return;
  misuse(options.label(), "a kernel given the wrong device: a launch on a stream of " + name_of(device) +
                              " by a thread that entered " + name_of(entered_here.device));
}

void SimCore::end_free(int device, void* block, std::uint64_t ticket) noexcept {
  if (devices[static_cast<std::size_t>(device)]->memory.end_free(block, ticket)) return;
  control->report("something was written behind the end of a block of " + name_of(device));
}

namespace {

class SimProvider : public Provider {
 public:
  SimProvider(int count, const SimOptions& options) : core_(std::make_shared<SimCore>(count, options)) {
    core_->control->attach(core_);
  }
  DeviceKind kind() const override { return DeviceKind::sim; }
  int devices() const override { return static_cast<int>(core_->devices.size()); }
  std::unique_ptr<Stream> make_stream(int device, LaneKind lane) override {
    return std::make_unique<SimStream>(core_, device, lane);
  }
  void enter(int device) noexcept override { core_->enter(device); }

  std::uint64_t progress() const noexcept override { return core_->progress.load(); }
  void await_progress(std::uint64_t seen, std::chrono::nanoseconds limit) noexcept override {
    if (progress() == seen) core_->await(limit, [&] { return progress() != seen; });
  }

  std::uint64_t errors(int device) const noexcept override { return at(device).errors.count(); }
  std::vector<LateError> late_errors(int device, std::uint64_t from) override { return at(device).errors.from(from); }
  /// Who is told frees what the device's kernels use: so not before the last of them is over.
  std::exception_ptr lost(int device) const noexcept override {
    std::exception_ptr why = core_->control->loss(device);
    return why && at(device).running.load() == 0 ? why : nullptr;
  }
  void give_up(int device) noexcept override {
    core_->control->lose(device);
    core_->await([&] { return at(device).running.load() == 0; });
  }

  DeviceLimits limits(int) const override {
    DeviceLimits limits = core_->options.limits;
    limits.alignment = std::max(limits.alignment, SimMemory::kAlignment);
    return limits;
  }
  void* allocate(int device, std::size_t bytes, Stream* stream) noexcept override {
    if (core_->control->counts(SimFault::allocation)) return nullptr;
    if (stream) return ours(stream).allocate(device, bytes);
    void* const block = at(device).memory.allocate(bytes, nullptr);
    if (block && core_->observer) core_->observer->allocated(block, bytes);
    return block;
  }
  void free(int device, void* block, std::size_t, Stream* stream) noexcept override {
    if (!block) return;
    if (stream) {
      if (!ours(stream).free(block, device)) not_a_block(device);
    } else if (const auto ticket = at(device).memory.begin_free(block, nullptr)) {
      // A device that does not answer passes nothing, and touches nothing more.
      if (core_->observer && !core_->control->broken()) core_->observer->freed(block, core_->caller());
      core_->end_free(device, block, ticket);
    } else {
      not_a_block(device);
    }
  }
  void* allocate_pinned(std::size_t bytes) noexcept override { return core_->allocate_pinned(bytes); }
  void free_pinned(void* block, std::size_t) noexcept override { core_->free_pinned(block); }
  void copy(void* to, const void* from, std::size_t bytes, Stream* stream) override {
    if (stream) return ours(stream).copy(to, from, bytes);
    if (core_->control->counts(SimFault::copy)) throw SimError("planted: a copy");
    void* const target = core_->reach(to, bytes, true);
    const void* const source = core_->reach(from, bytes, true);
    if (core_->observer) core_->observer->host_touches({{{from, bytes, false}, {to, bytes, true}}}, core_->caller());
    if (bytes > 0) std::memcpy(target, source, bytes);
  }
  void fill(void* to, std::byte value, std::size_t bytes, Stream* stream) override {
    if (stream) return ours(stream).fill(to, value, bytes);
    if (core_->control->counts(SimFault::copy)) throw SimError("planted: a fill");
    void* const target = core_->reach(to, bytes, true);
    if (core_->observer) core_->observer->host_touches({{{to, bytes, true}}}, core_->caller());
    if (bytes > 0) std::memset(target, std::to_integer<int>(value), bytes);
  }

 protected:
  static SimStream& ours(Stream* stream) { return static_cast<SimStream&>(*stream); }
  const std::shared_ptr<SimCore> core_;

 private:
  SimDevice& at(int device) const { return *core_->devices[static_cast<std::size_t>(device)]; }
  void not_a_block(int device) { core_->control->report("a free of what is no block of " + name_of(device)); }
};

/// The provider where there is an observer.
class ObservedSimProvider final : public SimProvider, public OrderObserver {
 public:
  using SimProvider::SimProvider;
  void stream_after(Stream& stream, std::span<const StreamEvent> passed) noexcept override {
    ours(&stream).ordered_after(passed);
  }
  void host_after(std::span<const StreamEvent> passed, bool afresh) noexcept override {
    try {
      std::vector<std::pair<AccessObserver::Stream, std::uint64_t>> points;
      for (const StreamEvent& event : passed) {
        if (const SimStream* const stream = mine(event.stream)) points.emplace_back(stream->observed_as(), event.point);
      }
      core_->observer->host_after(points, afresh);
    } catch (const std::bad_alloc&) {
      core_->observer->forget();
    }
  }
  void host_returns() noexcept override { core_->observer->host_returns(); }
  void host_touches(std::span<const MemoryUse> uses) noexcept override {
    core_->observer->host_touches(uses, core_->caller());
  }
  void block_reused(const void* block) noexcept override { core_->observer->block_reused(block); }

 private:
  const SimStream* mine(const Stream* stream) const {
    if (!stream || typeid(*stream) != typeid(SimStream)) return nullptr;
    const auto* const own = static_cast<const SimStream*>(stream);
    return own->core() == core_.get() ? own : nullptr;
  }
};

}  // namespace
}  // namespace detail

ProviderFactory sim_devices(int count, SimOptions options) {
  return [count, options = std::move(options)]() -> std::shared_ptr<Provider> {
    if (options.observer) return std::make_shared<detail::ObservedSimProvider>(count, options);
    return std::make_shared<detail::SimProvider>(count, options);
  };
}

void* kernel_address(const void* handle) {
  const detail::KernelContext* const kernel = detail::current_kernel();
  if (!kernel) throw UsageError("kernel_address() outside of a kernel");
  const int owner = kernel->core->owner(handle);
  if (owner < 0) return const_cast<void*>(handle);
  if (owner != kernel->device) {
    kernel->core->misuse(kernel->caller.label, "a kernel given the wrong device: memory of " + to_string(sim(owner)) +
                                                   " in a kernel of " + to_string(sim(kernel->device)));
  }
  const detail::SimMemory& memory = kernel->core->devices[static_cast<std::size_t>(owner)]->memory;
  if (kernel->core->observer && std::none_of(kernel->uses.begin(), kernel->uses.end(), [&](const MemoryUse& use) {
        return memory.same_block(use.begin, handle);
      })) {
    kernel->core->observer->undeclared(kernel->caller);
  }
  return memory.kernel_address(handle);
}

void report_late_error(std::exception_ptr what, bool wrote_nothing) {
  const detail::KernelContext* const kernel = detail::current_kernel();
  if (!kernel) throw UsageError("report_late_error() outside of a kernel");
  kernel->core->report_error(kernel->device, {kernel->caller.op, std::move(what), wrote_nothing});
}

}  // namespace sluice
