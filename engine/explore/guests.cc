// Real threads that hand a baton.
#include "sluice/engine/explore/guests.h"

#include <algorithm>
#include <thread>

#include "sluice/engine/detail/core_records.h"
#include "sluice/engine/detail/thread_object.h"
#include "sluice/engine/explore/search.h"

namespace sluice::detail {

namespace {
constexpr std::chrono::milliseconds kPatience{50};
}

std::weak_ptr<Guests::Thread>& Guests::current() { return ThreadObject<Place>::get().thread; }

Guests& Guests::get() {
  static Guests* const guests = new Guests;  // controlled threads may outlive static objects
  return *guests;
}

void Guests::reset(std::uint64_t seed) {
  std::lock_guard lock(mutex_);
  random_ = seed;
  random_ = draw();  // neighbouring seeds must not draw the same numbers one step apart
  constexpr std::uint64_t stays[] = {1, 4, 16, 64};
  stay_ = stays[draw() % 4];
  clock_ = 0;
  std::erase_if(threads_, [](const auto& t) { return t->state == Thread::ended; });
}

std::uint64_t Guests::draw() {
  Draw next(random_);
  random_ += 0x9e3779b97f4a7c15u;
  return next();
}

Guests::Place::~Place() {
  if (auto t = thread.lock(); t && t->guest) {
    std::lock_guard lock(Guests::get().mutex_);
    Guests::get().end(t.get());
  }
}

/// The caller among the controlled; it joins them if there are any.
std::shared_ptr<Guests::Thread> Guests::self() {
  if (auto t = current().lock(); t && t->state != Thread::ended) return t;
  const bool others = std::any_of(threads_.begin(), threads_.end(), [](auto& t) { return t->state != Thread::ended; });
  if (!others) return nullptr;
  auto t = std::make_shared<Thread>();
  t->guest = true;
  threads_.push_back(t);
  current() = t;
  return t;
}

/// Draws the next holder among the runnable; with none, virtual time jumps to the first deadline. Null: nobody is left.
Guests::Thread* Guests::choose() {
  std::vector<Thread*> able;
  for (auto& t : threads_)
    if (t->state == Thread::runnable) able.push_back(t.get());
  if (able.empty()) {
    Thread* first = nullptr;
    for (auto& t : threads_)
      if (t->state == Thread::parked && (!first || t->deadline < first->deadline)) first = t.get();
    if (!first) return nullptr;
    clock_ = std::max(clock_, first->deadline);
    first->state = Thread::runnable;
    able.push_back(first);
  }
  if (holder_ && holder_->state == Thread::runnable && draw() % stay_ != 0) return holder_;
  return able[able.size() == 1 ? 0 : draw() % able.size()];
}

void Guests::wait_turn(std::unique_lock<std::mutex>& lock, Thread* me) {
  while (holder_ != me) {
    me->wake.wait_for(lock, kPatience);
    if (holder_ == me) break;
    // Taken for absent although it only had not woken up yet.
    if (me->state == Thread::away) me->state = Thread::runnable;
    if (std::chrono::steady_clock::now() - last_step_ < kPatience) continue;
    // The holder blocks somewhere outside, or there is none: go on without it.
    if (holder_) holder_->state = Thread::away;
    holder_ = choose();
    last_step_ = std::chrono::steady_clock::now();
    if (holder_ && holder_ != me) holder_->wake.notify_one();
  }
}

/// Gives the baton on (me may be drawn again) and waits for it.
void Guests::schedule(std::unique_lock<std::mutex>& lock, Thread* me) {
  if (holder_ == me || holder_ == nullptr) {
    last_step_ = std::chrono::steady_clock::now();
    holder_ = choose();
    if (holder_ == me) return;
    if (holder_) holder_->wake.notify_one();
  }
  wait_turn(lock, me);
}

void Guests::point() {
  std::unique_lock lock(mutex_);
  const auto me = self();
  if (!me) return;
  me->state = Thread::runnable;  // it may have been away
  schedule(lock, me.get());
}

void Guests::park(bool* signalled, std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  const auto me = self();
  if (!me) {
    // Alone: nobody is there to signal, and time passes.
    clock_ += std::min(limit, std::chrono::nanoseconds(std::chrono::milliseconds(200))).count();
    *signalled = false;
    return;
  }
  if (!*signalled) {
    const auto longest = std::chrono::nanoseconds(std::chrono::milliseconds(200));
    me->state = Thread::parked;
    me->signalled = signalled;
    me->deadline = clock_ + std::min(limit, longest).count();
    schedule(lock, me.get());
    me->signalled = nullptr;
    me->state = Thread::runnable;
  }
  *signalled = false;
}

void Guests::unpark(bool* signalled) {
  {
    std::lock_guard lock(mutex_);
    *signalled = true;
    for (auto& t : threads_)
      if (t->state == Thread::parked && t->signalled == signalled) t->state = Thread::runnable;
  }
  point();
}

std::int64_t Guests::now() {
  std::lock_guard lock(mutex_);
  return clock_ += 1000;
}

void Guests::end(Thread* me) {
  me->state = Thread::ended;
  if (holder_ != me) return;
  holder_ = choose();
  last_step_ = std::chrono::steady_clock::now();
  if (holder_) holder_->wake.notify_one();
}

void Guests::start(std::function<void()> body) {
  auto thread = std::make_shared<Thread>();
  {
    std::lock_guard lock(mutex_);
    threads_.push_back(thread);
    if (!holder_) last_step_ = std::chrono::steady_clock::now();
  }
  std::thread([this, thread, body = std::move(body)]() mutable {
    current() = thread;
    {
      std::unique_lock lock(mutex_);
      wait_turn(lock, thread.get());
    }
    body();
    // Whatever this thread lets go of, under control and not some time later.
    body = nullptr;
    ThreadObject<SlotCache>::drop();
    std::lock_guard lock(mutex_);
    end(thread.get());
  }).detach();
  point();
}

}  // namespace sluice::detail
