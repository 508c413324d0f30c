#include "sluice/resources/random.h"

#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "sluice/resources/draw_notes.h"
#include "sluice/resources/microbatch_draws.h"

namespace sluice {
namespace {

constinit thread_local DrawNotes::Scope* noting = nullptr;
constinit thread_local const MicrobatchDraws::Scope* dividing = nullptr;

const void* this_thread() {
  thread_local const char address = 0;
  return &address;
}

}  // namespace

RandomStream::Hold::Hold(const RandomStream& stream) : stream_(stream), outermost_(true) {
  const void* holder = nullptr;
  if (stream_.holder_.compare_exchange_strong(holder, this_thread(), std::memory_order_acquire)) return;
  if (holder != this_thread()) {
    throw std::logic_error(
        "[RandomStream] one stream is used by two threads at once; give each thread a stream of its own (derive)");
  }
  outermost_ = false;
}

RandomStream::Hold::~Hold() {
  if (outermost_) stream_.holder_.store(nullptr, std::memory_order_release);
}

DrawNotes::Scope::Scope(DrawNotes* notes, bool again)
    : outer_(noting), notes_(notes), again_(again), still_(!notes || (outer_ && outer_->still_)) {
  noting = this;
}
DrawNotes::Scope::~Scope() { noting = outer_; }
bool DrawNotes::again() noexcept { return noting && noting->again_; }
bool DrawNotes::still() noexcept { return noting && noting->still_; }

MicrobatchDraws::MicrobatchDraws() {
  static constinit std::atomic<std::uint64_t> numbers{0};
  number_ = numbers.fetch_add(1, std::memory_order_relaxed);
}

MicrobatchDraws::Scope::Scope(const MicrobatchDraws& step, std::int64_t microbatch)
    : outer_(dividing), step_(step.number_), microbatch_(static_cast<std::size_t>(microbatch)) {
  if (microbatch < 0) throw std::invalid_argument("[MicrobatchDraws] microbatch " + std::to_string(microbatch));
  dividing = this;
}
MicrobatchDraws::Scope::~Scope() { dividing = outer_; }

RandomStream::Microbatches& RandomStream::microbatches(std::uint64_t step, std::size_t microbatch) {
  if (!microbatches_) microbatches_ = std::make_unique<Microbatches>(Microbatches{step, state_.draw, {}});
  Microbatches& m = *microbatches_;
  if (m.step != step) {
    m.step = step;
    m.first = state_.draw;
    m.drawn.clear();
  }
  if (m.drawn.size() <= microbatch) m.drawn.resize(microbatch + 1);
  return m;
}

RandomKey RandomStream::next() {
  const Hold hold(*this);
  if (noting && noting->again_) [[unlikely]] {
    if (noting->next_ < noting->notes_->keys_.size()) return noting->notes_->keys_[noting->next_++];
    throw std::logic_error("[RandomStream] a function that is computed again draws more often than the first time");
  }
  RandomKey key = state_;
  std::uint64_t* drawn = nullptr;
  if (dividing && divided_) [[unlikely]] {
    Microbatches& step = microbatches(dividing->step_, dividing->microbatch_);
    drawn = &step.drawn[dividing->microbatch_];
    // The number is turned so that nobody's derive(microbatch) has the same.
    if (dividing->microbatch_ > 0) key.stream = derive(~dividing->microbatch_, step.first).state_.stream;
    key.draw = (dividing->microbatch_ > 0 ? 0 : step.first) + *drawn;
  }
  if (noting) [[unlikely]] {
    if (noting->notes_) noting->notes_->keys_.push_back(key);
    if (noting->still_) return key;
  }
  if (drawn) ++*drawn;
  ++state_.draw;
  return key;
}

RandomStream RandomStream::derive(std::uint64_t a, std::uint64_t b) const {
  const Uint32x4 w = philox(state().stream, a, b);
  return RandomStream(state().seed, std::uint64_t{w.word[1]} << 32 | w.word[0]);
}

RandomStream::State RandomStream::state() const {
  const Hold hold(*this);
  return state_;
}

void RandomStream::restore(const State& state) {
  const Hold hold(*this);
  state_ = state;
  microbatches_.reset();
}

std::vector<std::int64_t> permutation(const RandomKey& key, std::int64_t n) {
  if (n < 0) throw std::invalid_argument("[permutation] of " + std::to_string(n) + " numbers");
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const ElementKey elements(key);
  for (std::int64_t i = n - 1; i > 0; --i) {
    const std::int64_t j = uniform_int(elements, static_cast<std::uint64_t>(i), 0, i + 1);
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(j)]);
  }
  return order;
}

}  // namespace sluice
