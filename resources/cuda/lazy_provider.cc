#include "sluice/resources/cuda/lazy_provider.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <typeinfo>
#include <utility>
#include <vector>

#include "sluice/engine/errors.h"
#include "sluice/resources/cuda/library.h"

namespace sluice::cuda {
namespace {

/// What a provider and its streams share.
class Cards {
 public:
  Cards(int count, MakeProvider make) : count_(count), make_(std::move(make)) {}

  /// The provider that does the work; null before the first use, and where it could not be made.
  Provider* made() const noexcept { return made_.load(std::memory_order_acquire); }

  /// The same, made at the first call. Throws what make() threw.
  Provider& start() {
    if (Provider* const known = made()) [[likely]]
      return *known;
    const std::lock_guard lock(mutex_);
    if (why_) std::rethrow_exception(why_);
    if (!owner_) {
      std::shared_ptr<Provider> made;
      try {
        made = make_();
      } catch (const UsageError&) {
        why_ = std::current_exception();  // for good; what passes, as want of memory, is tried again
        throw;
      }
      const int there = made->devices();
      if (there < count_) {
        missing_ = std::make_exception_ptr(
            std::runtime_error("CUDA has " + std::to_string(there) + (there == 1 ? " device" : " devices") +
                               " here, and the driver's files name " + std::to_string(count_)));
      }
      there_.store(there, std::memory_order_relaxed);
      owner_ = std::move(made);
      made_.store(owner_.get(), std::memory_order_release);
    }
    return *owner_;
  }
  Provider& start(int device) {
    Provider& provider = start();
    if (device < there_.load(std::memory_order_relaxed)) return provider;
    if (!wanted_[static_cast<std::size_t>(device)].exchange(true, std::memory_order_acq_rel)) ++missing_wanted_;
    std::rethrow_exception(missing_);
  }
  /// Null where it cannot be.
  Provider* try_to_start(int device) noexcept try { return &start(device); } catch (...) {
    return nullptr;
  }

  /// As made(), where that has the device.
  Provider* made(int device) const noexcept {
    Provider* const known = made();
    return known && device < there_.load(std::memory_order_relaxed) ? known : nullptr;
  }
  /// Devices that were used and turned out not to be there. Others are nobody's concern.
  int missing() const noexcept { return missing_wanted_.load(std::memory_order_acquire); }
  bool is_missing(int device) const noexcept {
    return wanted_[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
  }
  std::exception_ptr why_missing() const noexcept { return missing_; }

  int count() const { return count_; }
  std::atomic<std::uint64_t> idle{0};  ///< points that were recorded before there was a stream

 private:
  const int count_;
  const MakeProvider make_;
  std::mutex mutex_;
  std::shared_ptr<Provider> owner_;
  std::exception_ptr why_, missing_;
  std::atomic<int> there_{0}, missing_wanted_{0};
  std::vector<std::atomic<bool>> wanted_ = std::vector<std::atomic<bool>>(static_cast<std::size_t>(count_));
  std::atomic<Provider*> made_{nullptr};
};

class LazyStream final : public Stream {
 public:
  LazyStream(std::shared_ptr<Cards> cards, int device, LaneKind lane)
      : cards_(std::move(cards)), device_(device), lane_(lane) {}

  bool record(std::uint64_t point) noexcept override {
    if (Stream* const stream = made()) return stream->record(point);
    idle_.store(point, std::memory_order_release);
    cards_->idle.fetch_add(1, std::memory_order_release);
    return true;
  }
  std::uint64_t reached() const noexcept override {
    const Stream* const stream = made();
    return std::max(idle_.load(std::memory_order_acquire), stream ? stream->reached() : 0);
  }
  bool wait(const StreamEvent& event) override {
    if (!event.stream || event.stream == this) return true;
    if (typeid(*event.stream) != typeid(LazyStream)) return false;
    const auto& other = static_cast<const LazyStream&>(*event.stream);
    if (other.cards_ != cards_) return false;
    Stream* const theirs = other.made();
    if (!theirs || other.idle_.load(std::memory_order_acquire) >= event.point) return true;  // nothing was issued there
    return start().wait({theirs, event.point});
  }
  void await(std::uint64_t point, std::chrono::nanoseconds limit) noexcept override {
    if (Stream* const stream = made(); stream && reached() < point) stream->await(point, limit);
  }
  std::uint64_t begin_times() noexcept override try { return start().begin_times(); } catch (...) {
    return 0;
  }
  void end_times(std::uint64_t span) noexcept override {
    if (Stream* const stream = made()) stream->end_times(span);
  }
  bool take_times(std::uint64_t span, DeviceTimes& times) noexcept override {
    Stream* const stream = made();
    return stream && stream->take_times(span, times);
  }
  void* native() const override { return start().native(); }

  Stream* made() const noexcept { return stream_.load(std::memory_order_acquire); }
  /// The stream that does the work. Throws where there is none.
  Stream& start() const {
    if (Stream* const known = made()) [[likely]]
      return *known;
    Provider& provider = cards_->start(device_);
    const std::lock_guard lock(mutex_);
    if (!owner_) {
      owner_ = provider.make_stream(device_, lane_);
      stream_.store(owner_.get(), std::memory_order_release);
    }
    return *owner_;
  }

 private:
  const std::shared_ptr<Cards> cards_;
  const int device_;
  const LaneKind lane_;
  std::atomic<std::uint64_t> idle_{0};  ///< the last point that was recorded before there was a stream
  mutable std::mutex mutex_;
  mutable std::unique_ptr<Stream> owner_;
  mutable std::atomic<Stream*> stream_{nullptr};
};

class LazyProvider final : public Provider {
 public:
  LazyProvider(int count, const CudaOptions& options, MakeProvider make)
      : cards_(std::make_shared<Cards>(count, std::move(make))), options_(options) {}

  DeviceKind kind() const override { return DeviceKind::gpu; }
  int devices() const override { return cards_->count(); }
  std::string unavailable() const override try {
    cards_->start();
    return {};
  } catch (const std::exception& e) {
    return e.what();
  }
  std::unique_ptr<Stream> make_stream(int device, LaneKind lane) override {
    return std::make_unique<LazyStream>(cards_, device, lane);
  }
  void enter(int device) noexcept override {
    if (Provider* const p = cards_->try_to_start(device)) p->enter(device);
  }

  std::uint64_t progress() const noexcept override {
    const Provider* const p = cards_->made();
    return cards_->idle.load(std::memory_order_acquire) + static_cast<std::uint64_t>(cards_->missing()) +
           (p ? p->progress() : 0);
  }
  void await_progress(std::uint64_t seen, std::chrono::nanoseconds limit) noexcept override {
    if (progress() != seen) return;
    Provider* const p = cards_->made();
    if (!p)
      return std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(limit, std::chrono::microseconds(200)));
    // All of the time, because a card is looked after in the middle of a wait. What is idle wakes nobody, and need not:
    // the thread that records such a point finds it passed.
    const std::uint64_t others =
        cards_->idle.load(std::memory_order_acquire) + static_cast<std::uint64_t>(cards_->missing());
    p->await_progress(seen - others, limit);
  }

  bool wants_ranges() const noexcept override { return options_.nvtx; }
  void range_begins(const char* name) noexcept override {
    if (Provider* const p = cards_->made()) p->range_begins(name);
  }
  void range_ends() noexcept override {
    if (Provider* const p = cards_->made()) p->range_ends();
  }

  std::uint64_t errors(int device) const noexcept override {
    if (cards_->is_missing(device)) return 1;
    const Provider* const p = cards_->made(device);
    return p ? p->errors(device) : 0;
  }
  std::vector<LateError> late_errors(int device, std::uint64_t from) override {
    if (cards_->is_missing(device) && from == 0) return {{{}, cards_->why_missing(), false}};
    Provider* const p = cards_->made(device);
    return p ? p->late_errors(device, from) : std::vector<LateError>();
  }
  std::exception_ptr lost(int device) const noexcept override {
    if (cards_->is_missing(device)) return cards_->why_missing();
    const Provider* const p = cards_->made(device);
    return p ? p->lost(device) : nullptr;
  }
  void give_up(int device) noexcept override {
    if (Provider* const p = cards_->made(device)) p->give_up(device);
  }

  DeviceLimits limits(int device) const override {
    const Provider* const p = cards_->made(device);
    return p ? p->limits(device) : limits_of_cards(options_.memory);
  }
  void* allocate(int device, std::size_t bytes, Stream* stream) noexcept override try {
    Provider& provider = cards_->start(device);
    return provider.allocate(device, bytes, working_stream(stream));
  } catch (...) {
    return nullptr;
  }
  void free(int device, void* block, std::size_t bytes, Stream* stream) noexcept override try {
    if (Provider* const p = cards_->made()) p->free(device, block, bytes, working_stream(stream));
  } catch (...) {
    // The stream could not be made, so nothing was issued to it.
    cards_->made()->free(device, block, bytes, nullptr);
  }
  void* allocate_pinned(std::size_t bytes) noexcept override {
    Provider* const p = cards_->try_to_start(0);
    return p ? p->allocate_pinned(bytes) : nullptr;
  }
  void free_pinned(void* block, std::size_t bytes) noexcept override {
    if (Provider* const p = cards_->made()) p->free_pinned(block, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream* stream) override {
    Provider& provider = cards_->start();
    provider.copy(to, from, bytes, working_stream(stream));
  }
  void fill(void* to, std::byte value, std::size_t bytes, Stream* stream) override {
    Provider& provider = cards_->start();
    provider.fill(to, value, bytes, working_stream(stream));
  }

  Provider& start() { return cards_->start(); }

 private:
  static Stream* working_stream(Stream* stream) { return stream ? &working(*stream) : nullptr; }

  const std::shared_ptr<Cards> cards_;
  const CudaOptions options_;
};

}  // namespace

std::shared_ptr<Provider> lazy_provider(int count, const CudaOptions& options, MakeProvider make) {
  return std::make_shared<LazyProvider>(count, options, std::move(make));
}

Provider& working(Provider& provider) {
  return typeid(provider) == typeid(LazyProvider) ? static_cast<LazyProvider&>(provider).start() : provider;
}

Stream& working(Stream& stream) {
  return typeid(stream) == typeid(LazyStream) ? static_cast<const LazyStream&>(stream).start() : stream;
}

}  // namespace sluice::cuda
