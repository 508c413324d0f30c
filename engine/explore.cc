// The controlled scheduler behind EngineMode::explore.
#include "sluice/engine/detail/explore.h"

#include <algorithm>

#include "sluice/engine/detail/core.h"
#include "sluice/engine/detail/core_setup.h"
#include "sluice/engine/detail/thread_object.h"

namespace sluice::detail {

template class Core<ExplorePolicy>;

namespace {
constexpr std::chrono::milliseconds kPatience{50};
}

/// The calling thread's place among the controlled ones; kept to the thread's very end.
std::weak_ptr<Explorer::Thread>& Explorer::current() { return ThreadObject<Guest>::get().thread; }

Explorer& Explorer::get() {
  static Explorer* const explorer = new Explorer;  // controlled threads may outlive static objects
  return *explorer;
}

void Explorer::reset(std::uint64_t seed) {
  std::lock_guard lock(mutex_);
  random_ = seed;
  random_ = draw();  // neighbouring seeds must not draw the same numbers one step apart
  // A fair scheduler keeps all threads abreast; some bugs want one far behind.
  constexpr std::uint64_t stays[] = {1, 4, 16, 64};
  stay_ = stays[draw() % 4];
  hash_ = 0xcbf29ce484222325u;
  points_ = 0;
  clock_ = 0;
  free_running_ = false;
  max_points_ = ~std::uint64_t{0};
  std::erase_if(threads_, [](const auto& t) { return t->state == Thread::ended; });
}

std::uint64_t Explorer::draw() {  // splitmix64
  std::uint64_t z = random_ += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

Explorer::Guest::~Guest() {
  if (auto t = thread.lock(); t && t->guest) {
    std::unique_lock lock(Explorer::get().mutex_);
    Explorer::get().end(lock, t.get());
  }
}

std::shared_ptr<Explorer::Thread> Explorer::self(bool join) {
  if (auto t = current().lock(); t && t->state != Thread::ended) return t;
  const bool others = std::any_of(threads_.begin(), threads_.end(), [](auto& t) { return t->state != Thread::ended; });
  if (!join || !others) return nullptr;
  auto t = std::make_shared<Thread>();
  t->guest = true;
  threads_.push_back(t);
  current() = t;
  return t;
}

/// Draws the next holder among the runnable; with none, virtual time jumps to the first deadline. Null: nobody is left.
Explorer::Thread* Explorer::choose() {
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
  Thread* chosen = nullptr;
  if (holder_ && holder_->state == Thread::runnable && draw() % stay_ != 0) {
    chosen = holder_;
  } else {
    chosen = able[able.size() == 1 ? 0 : draw() % able.size()];
  }
  const auto index = static_cast<std::uint64_t>(
      std::find_if(threads_.begin(), threads_.end(), [&](auto& t) { return t.get() == chosen; }) - threads_.begin());
  hash_ = (hash_ ^ index) * 0x100000001b3u;
  return chosen;
}

void Explorer::wait_turn(std::unique_lock<std::mutex>& lock, Thread* me) {
  while (holder_ != me && !free_running_) {
    me->wake.wait_for(lock, kPatience);
    if (holder_ == me || free_running_) break;
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
void Explorer::schedule(std::unique_lock<std::mutex>& lock, Thread* me) {
  if (holder_ == me || holder_ == nullptr) {
    last_step_ = std::chrono::steady_clock::now();
    holder_ = choose();
    if (holder_ == me) return;
    if (holder_) holder_->wake.notify_one();
  }
  wait_turn(lock, me);
}

void Explorer::point() {
  std::unique_lock lock(mutex_);
  if (free_running_) return;
  const auto me = self(true);
  if (!me) return;
  if (++points_ > max_points_) {
    free_running_ = true;
    for (auto& t : threads_) t->wake.notify_one();
    finished_.notify_all();
    return;
  }
  me->state = Thread::runnable;  // it may have been away
  schedule(lock, me.get());
}

void Explorer::park(bool* signalled, std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  const auto me = self(true);
  if (!me || free_running_) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
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

void Explorer::unpark(bool* signalled) {
  {
    std::lock_guard lock(mutex_);
    *signalled = true;
    for (auto& t : threads_)
      if (t->state == Thread::parked && t->signalled == signalled) t->state = Thread::runnable;
  }
  point();
}

std::int64_t Explorer::now() {
  std::lock_guard lock(mutex_);
  return clock_ += 1000;
}

void Explorer::end(std::unique_lock<std::mutex>&, Thread* me) {
  me->state = Thread::ended;
  if (holder_ == me) {
    holder_ = choose();
    last_step_ = std::chrono::steady_clock::now();
    if (holder_) holder_->wake.notify_one();
  }
  finished_.notify_all();
}

void Explorer::start(std::function<void()> body) {
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
    std::unique_lock lock(mutex_);
    end(lock, thread.get());
  }).detach();
  point();
}

bool Explorer::run(std::vector<std::function<void()>> bodies, std::uint64_t max_points) {
  {
    std::lock_guard lock(mutex_);
    max_points_ = points_ + max_points;
  }
  {
    std::lock_guard lock(mutex_);
    for (auto& body : bodies) {
      auto thread = std::make_shared<Thread>();
      threads_.push_back(thread);
      std::thread([this, thread, body = std::move(body)]() mutable {
        current() = thread;
        {
          std::unique_lock turn(mutex_);
          wait_turn(turn, thread.get());
        }
        body();
        body = nullptr;
        ThreadObject<SlotCache>::drop();
        std::unique_lock turn(mutex_);
        end(turn, thread.get());
      }).detach();
    }
    last_step_ = std::chrono::steady_clock::now();
    holder_ = choose();
    if (holder_) holder_->wake.notify_one();
  }
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] {
    return std::all_of(threads_.begin(), threads_.end(), [](auto& t) { return t->state == Thread::ended; });
  });
  const bool finished = !free_running_;
  threads_.clear();
  holder_ = nullptr;
  max_points_ = ~std::uint64_t{0};
  return finished;
}

std::shared_ptr<CoreBase> make_exploring_core(const CoreOptions& options, std::uint64_t seed) {
  Explorer::get().reset(seed);
  return std::make_shared<Core<ExplorePolicy>>(options);
}

}  // namespace sluice::detail
