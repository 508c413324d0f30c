#include "sluice/resources/providers/null.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <typeinfo>

namespace sluice {
namespace {

using std::memory_order_acquire, std::memory_order_relaxed, std::memory_order_release;

/// A count that one thread at a time raises, nearly always.
struct Count {
  std::atomic<std::uint64_t> value{0};
  void rise() { value.fetch_add(1, memory_order_relaxed); }
  std::uint64_t get() const { return value.load(memory_order_relaxed); }
};

class NullStream;

/// What the streams of a provider share. It may outlive the provider with a control.
struct Shared {
  std::atomic<std::uint64_t> progress{0};
  std::atomic<int> waiting{0};  ///< threads in await
  std::atomic<bool> held{false};
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<NullStream*> streams;  ///< with the mutex, as the next
  NullCounts gone;                   ///< counted by streams that are no more
  Count copies, fills, allocations, frees;

  void advance() {
    progress.fetch_add(1);
    if (waiting.load() == 0) return;
    { std::lock_guard lock(mutex); }
    changed.notify_all();
  }
  template <class Condition>
  void await(std::chrono::nanoseconds limit, Condition condition) {
    std::unique_lock lock(mutex);
    waiting.fetch_add(1);
    changed.wait_for(lock, std::min<std::chrono::nanoseconds>(limit, std::chrono::hours(1)), condition);
    waiting.fetch_sub(1);
  }
};

class NullStream final : public Stream {
 public:
  explicit NullStream(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
    std::lock_guard lock(shared_->mutex);
    shared_->streams.push_back(this);
  }
  ~NullStream() override {
    std::lock_guard lock(shared_->mutex);
    std::erase(shared_->streams, this);
    add_to(shared_->gone);
  }

  bool record(std::uint64_t point) noexcept override {
    points_.rise();
    recorded_.store(point);
    // Both sides order their store before their load: either this one sees the hold, or poke() sees the point.
    if (!shared_->held.load() && pass()) shared_->advance();
    return true;
  }
  std::uint64_t reached() const noexcept override { return reached_.load(memory_order_acquire); }
  bool wait(const StreamEvent& event) override {
    if (!event.stream || event.stream == this) return true;
    if (typeid(*event.stream) != typeid(NullStream)) return false;
    if (static_cast<NullStream*>(event.stream)->shared_ != shared_) return false;
    waits_.rise();
    return true;
  }
  void await(std::uint64_t point, std::chrono::nanoseconds limit) noexcept override {
    if (reached() < point) shared_->await(limit, [&] { return reached() >= point; });
  }
  void launch(std::function<void()>, std::span<const MemoryUse>) override { launches_.rise(); }

  /// Passes what is recorded; whether that is more than before.
  bool pass() {
    const std::uint64_t point = recorded_.load();
    std::uint64_t before = reached_.load(memory_order_relaxed);
    while (before < point && !reached_.compare_exchange_weak(before, point, memory_order_release)) {
    }
    return before < point;
  }
  void add_to(NullCounts& counts) const {
    counts.launches += launches_.get();
    counts.points += points_.get();
    counts.waits += waits_.get();
  }

 private:
  const std::shared_ptr<Shared> shared_;
  Count launches_, points_, waits_;
  std::atomic<std::uint64_t> recorded_{0}, reached_{0};
};

class NullProvider final : public Provider {
 public:
  NullProvider(int count, std::shared_ptr<Shared> shared) : count_(count), shared_(std::move(shared)) {}
  DeviceKind kind() const override { return DeviceKind::null; }
  int devices() const override { return count_; }
  std::unique_ptr<Stream> make_stream(int, LaneKind) override { return std::make_unique<NullStream>(shared_); }

  std::uint64_t progress() const noexcept override { return shared_->progress.load(memory_order_acquire); }
  void await_progress(std::uint64_t seen, std::chrono::nanoseconds limit) noexcept override {
    if (progress() == seen) shared_->await(limit, [&] { return progress() != seen; });
  }

  void* allocate(int, std::size_t bytes, Stream*) noexcept override {
    shared_->allocations.rise();
    return ::operator new (bytes, std::align_val_t{64}, std::nothrow);
  }
  void free(int, void* block, std::size_t, Stream*) noexcept override {
    shared_->frees.rise();
    ::operator delete (block, std::align_val_t{64});
  }
  void copy(void*, const void*, std::size_t, Stream*) override { shared_->copies.rise(); }
  void fill(void*, std::byte, std::size_t, Stream*) override { shared_->fills.rise(); }

 private:
  const int count_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace

struct NullControl::State {
  std::mutex mutex;
  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  bool taken = false;

  std::shared_ptr<Shared> get() {
    std::lock_guard lock(mutex);
    return shared;
  }
  std::shared_ptr<Shared> take() {
    std::lock_guard lock(mutex);
    if (taken) {
      const bool held = shared->held.load();
      shared = std::make_shared<Shared>();
      shared->held.store(held);
    }
    taken = true;
    return shared;
  }
};

NullControl::NullControl() : state_(std::make_unique<State>()) {}
NullControl::~NullControl() = default;

void NullControl::hold() { state_->get()->held.store(true); }

void NullControl::poke() {
  const auto shared = state_->get();
  bool passed = false;
  {
    std::lock_guard lock(shared->mutex);
    for (NullStream* stream : shared->streams) passed |= stream->pass();
  }
  if (passed) shared->advance();
}

void NullControl::release() {
  state_->get()->held.store(false);
  poke();
}

NullCounts NullControl::counts() const {
  const auto shared = state_->get();
  std::lock_guard lock(shared->mutex);
  NullCounts counts = shared->gone;
  for (const NullStream* stream : shared->streams) stream->add_to(counts);
  counts.copies = shared->copies.get();
  counts.fills = shared->fills.get();
  counts.allocations = shared->allocations.get();
  counts.frees = shared->frees.get();
  return counts;
}

ProviderFactory null_devices(int count, std::shared_ptr<NullControl> control) {
  return [count, control = std::move(control)] {
    return std::make_shared<NullProvider>(count, control ? control->state_->take() : std::make_shared<Shared>());
  };
}

}  // namespace sluice
