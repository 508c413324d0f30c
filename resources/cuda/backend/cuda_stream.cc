#include "sluice/resources/cuda/backend/cuda_stream.h"

#include <algorithm>
#include <thread>

#include "sluice/resources/cuda/backend/ends.h"

namespace sluice::cuda {

CudaStream* cuda_stream(Stream* stream) { return dynamic_cast<CudaStream*>(stream); }

std::vector<Passed> passed_points(std::span<const StreamEvent> events) {
  std::vector<Passed> points;
  for (const StreamEvent& event : events) {
    const CudaStream* const own = cuda_stream(event.stream);
    if (own && own->stream_if_made() && event.point > own->idle())
      points.emplace_back(own->stream_if_made(), event.point);
  }
  return points;
}

CudaStream::~CudaStream() {
  const cudaStream_t stream = stream_.load();
  if (!stream || core_->at(device_).lost.load()) return;  // nothing can be done on a card that is lost
  // A card that does not answer keeps the end of the process waiting for nobody else's handles.
  if (!Ending().allowed()) return;
  const OnCard on(card(), std::nothrow);
  cudaStreamSynchronize(stream);
  const Ending ending;
  if (!ending.allowed()) return;
  if (lane_ == LaneKind::compute) set_stream(*core_->at(device_).libraries, nullptr);
  cudaStreamSynchronize(stream);
  for (const Point& p : points_) cudaEventDestroy(p.event);
  for (const cudaEvent_t event : spare_) cudaEventDestroy(event);
  for (const Span& span : spans_) {
    if (span.begin) cudaEventDestroy(span.begin);
    if (span.end) cudaEventDestroy(span.end);
  }
  cudaStreamDestroy(stream);
}

cudaStream_t CudaStream::stream() const {
  if (const cudaStream_t made = stream_.load(std::memory_order_acquire)) [[likely]]
    return made;
  std::call_once(once_, [&] {
    core_->use(device_);
    core_->words();
    const OnCard on(card());
    cudaStream_t made = nullptr;
    core_->check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", card());
    try {
      if (lane_ == LaneKind::compute) set_stream(*core_->at(device_).libraries, made);
    } catch (...) {
      cudaStreamSynchronize(made);
      cudaStreamDestroy(made);
      throw;
    }
    std::lock_guard lock(mutex_);
    if (!owed_.empty()) cuda::ordered_after(made, owed_);
    stream_.store(made, std::memory_order_release);
  });
  return stream_.load(std::memory_order_acquire);
}

std::uint64_t CudaStream::reached() const noexcept {
  const Word* const words = core_->words_if_made();
  return std::max(words ? words[word_].read() : 0, core_->idle_points[word_].load(std::memory_order_acquire));
}

cudaEvent_t CudaStream::new_event() {
  if (!spare_.empty()) {
    const cudaEvent_t event = spare_.back();
    spare_.pop_back();
    return event;
  }
  cudaEvent_t event = nullptr;
  core_->check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags", card());
  return event;
}

void CudaStream::recycle() {
  const std::uint64_t passed = reached();
  // The event comes after the word in the stream. An event that is recorded anew while it is still pending would be a
  // wait's that was issued before, which keeps what it had.
  while (!points_.empty() && points_.front().point <= passed) {
    spare_.push_back(points_.front().event);
    points_.pop_front();
  }
}

bool CudaStream::record(std::uint64_t point) noexcept try {
  // Nothing can be in the way of an op that could not make the stream.
  if (!stream_if_made()) {
    core_->idle_points[word_].store(point, std::memory_order_release);
    last_.store(point, std::memory_order_release);
    return true;
  }
  const cudaStream_t to = stream();
  const OnCard on(card());
  std::lock_guard lock(mutex_);
  recycle();
  points_.push_back({point, nullptr});
  try {
    spare_.reserve(points_.size() + spare_.size());
    points_.back().event = new_event();
    core_->write(to, word(), point, card());
    core_->check(cudaEventRecord(points_.back().event, to), "cudaEventRecord", card());
  } catch (...) {
    if (points_.back().event) spare_.push_back(points_.back().event);
    points_.pop_back();
    throw;
  }
  last_.store(point, std::memory_order_release);
  failures_ = 0;
  return true;
} catch (const CudaError&) {
  // The engine asks again as it does for want of memory, but what is no want of memory does not pass.
  if (++failures_ >= kMostFailures) core_->lose(card(), std::current_exception());
  return core_->at(device_).lost.load(std::memory_order_acquire);
} catch (...) {
  // A lost device passes no point, and the engine must see that there is something to give up.
  return core_->at(device_).lost.load(std::memory_order_acquire);
}

bool CudaStream::wait(const StreamEvent& event) {
  if (!event.stream || event.stream == this) return true;
  CudaStream* const other = cuda_stream(event.stream);
  if (!other || &other->core() != core_.get()) return false;
  const cudaStream_t here = stream();
  if (other->reached() >= event.point) {
    if (keeps_order()) ordered_after({&event, 1});
    return true;
  }
  if (!other->stream_if_made()) return true;  // nothing was ever issued there
  cudaEvent_t until = nullptr;
  std::lock_guard lock(other->mutex_);
  const auto at = std::lower_bound(other->points_.begin(), other->points_.end(), event.point,
                                   [](const Point& p, std::uint64_t point) { return p.point < point; });
  if (at != other->points_.end()) {
    until = at->event;
  } else {
    // Not recorded, for want of memory: everything that was issued there so far.
    const OnCard on(other->card());
    other->spare_.reserve(other->spare_.size() + 1);
    until = other->new_event();
    other->spare_.push_back(until);
    core_->check(cudaEventRecord(until, other->stream()), "cudaEventRecord", other->card());
  }
  const OnCard on(card());
  core_->check(cudaStreamWaitEvent(here, until, 0), "cudaStreamWaitEvent", card());
  return true;
}

void CudaStream::ordered_after(std::span<const StreamEvent> passed) noexcept try {
  const std::vector<Passed> points = passed_points(passed);
  std::lock_guard lock(mutex_);
  if (const cudaStream_t made = stream_if_made()) return cuda::ordered_after(made, points);
  owed_.insert(owed_.end(), points.begin(), points.end());
} catch (...) {
  // Without memory the record knows less.
}

void CudaStream::look() noexcept {
  const cudaStream_t made = stream_.load(std::memory_order_acquire);
  if (!made || core_->at(device_).lost.load(std::memory_order_acquire)) return;
  core_->look(made, card());
}

std::uint64_t CudaStream::begin_times() noexcept try {
  const cudaStream_t to = stream();
  const std::shared_ptr<const CardTime> since = core_->clock(device_);
  const OnCard on(card());
  std::lock_guard lock(mutex_);
  if (spare_spans_.empty()) {
    spare_spans_.reserve(spans_.size() + 1);  // take_times() must not fail
    spans_.emplace_back();
    spare_spans_.push_back(spans_.size());
  }
  const std::uint64_t number = spare_spans_.back();
  Span& span = spans_[number - 1];
  for (cudaEvent_t* const event : {&span.begin, &span.end}) {
    if (!*event) core_->check(cudaEventCreateWithFlags(event, cudaEventDefault), "cudaEventCreateWithFlags", card());
  }
  core_->check(cudaEventRecord(span.begin, to), "cudaEventRecord", card());
  span.since = since;
  span.ended = false;
  spare_spans_.pop_back();
  return number;
} catch (...) {
  return 0;
}

void CudaStream::end_times(std::uint64_t number) noexcept try {
  const OnCard on(card());
  std::lock_guard lock(mutex_);
  Span& span = spans_[number - 1];
  core_->check(cudaEventRecord(span.end, stream()), "cudaEventRecord", card());
  span.ended = true;
} catch (...) {
  // It has no end.
}

bool CudaStream::take_times(std::uint64_t number, DeviceTimes& times) noexcept try {
  std::lock_guard lock(mutex_);
  Span& span = spans_[number - 1];
  const std::shared_ptr<const CardTime> since = std::move(span.since);
  spare_spans_.push_back(number);
  if (!span.ended || core_->at(device_).lost.load(std::memory_order_acquire)) return false;
  const OnCard on(card());
  float before = 0, length = 0;  // milliseconds
  core_->check(cudaEventElapsedTime(&before, since->event, span.begin), "cudaEventElapsedTime", card());
  core_->check(cudaEventElapsedTime(&length, span.begin, span.end), "cudaEventElapsedTime", card());
  times.begin = since->host + static_cast<std::int64_t>(static_cast<double>(before) * 1e6);
  times.end = times.begin + static_cast<std::int64_t>(static_cast<double>(length) * 1e6);
  return true;
} catch (...) {
  return false;
}

/// A blocking wait of CUDA has no time limit, so this one looks at the word: at first all the time, then with pauses.
void CudaStream::await(std::uint64_t point, std::chrono::nanoseconds limit) noexcept {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  auto next_look = std::chrono::nanoseconds(std::chrono::milliseconds(1));
  while (reached() < point && !core_->at(device_).lost.load(std::memory_order_acquire)) {
    const auto waited = Clock::now() - begin;
    if (waited >= limit) return;
    if (waited < std::chrono::microseconds(50)) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(waited / 8, std::chrono::microseconds(200)));
    if (waited < next_look) continue;
    look();
    next_look = waited + std::chrono::milliseconds(20);
  }
}

}  // namespace sluice::cuda
