// The threads of lanes: oneTBB arenas, kept for the life of the process.
#include "sluice/engine/detail/policy.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>

#include <memory>
#include <vector>

#include "sluice/engine/detail/slot.h"
#include "sluice/engine/detail/tsan.h"

namespace sluice::detail {
/// A lane's arena. Another takes its place when it has lost a task.
struct SystemPolicy::Workers::Pool {
  std::mutex mutex;
  int width = 1;
  std::unique_ptr<tbb::task_arena> arena;
  std::atomic<bool> guest{false};  ///< a waiter that helps is in it, for a loop
  /// With a place more, which only a guest can have.
  static std::unique_ptr<tbb::task_arena> make(int width) { return std::make_unique<tbb::task_arena>(width + 1, 1); }
  std::shared_ptr<Pool> next;  ///< of those that no lane has now
};

/// oneTBB gives a machine of n cores n - 1 threads unless told otherwise, and a lane whose thread is blocked must not
/// keep another lane from running: so the limit is far above the cores, and what actually runs is bounded by the lanes'
/// widths.
struct SystemPolicy::Workers::Arenas {
  static Arenas& get() {
    arenas_made.store(true, std::memory_order_relaxed);
    static Arenas* const all = new Arenas;  // workers may still be leaving an arena when static objects go
    return *all;
  }
  std::mutex mutex;
  std::shared_ptr<Pool> idle;  ///< a list
  /// Each may still hold the task that it lost, and with it what that task is to start: named here, because a leak
  /// checker does not look into oneTBB's memory.
  struct Abandoned {
    std::unique_ptr<tbb::task_arena> arena;
    const Start* lost;
  };
  std::vector<Abandoned> abandoned;
  tbb::global_control threads{tbb::global_control::max_allowed_parallelism, 256};
};

/// A drainer on its way: the arena's thread or the watch runs it, whoever is first.
struct SystemPolicy::Workers::Start {
  std::atomic<bool> taken{false};
  std::function<void()> drainer;
  std::shared_ptr<Pool> pool;
  std::shared_ptr<Start> self;
  std::shared_ptr<Start> next;  ///< in the watch's list, as the next, under its mutex
  bool listed = false;
  std::chrono::steady_clock::time_point at;
  bool take() { return !taken.exchange(true, std::memory_order_acq_rel); }
};

/// oneTBB 2021.8 loses a task now and then: enqueued into an arena whose last thread is about to leave, it stays there
/// with every thread asleep (measured here: about one in 25,000; of the kind of tbb#2136). So somebody looks whether
/// each drainer arrived, runs it where it did not, and leaves that arena alone from then on.
class SystemPolicy::Workers::Watch {
 public:
  static Watch& get() {
    static Watch* const watch = new Watch;
    return *watch;
  }
  /// Throws where the watch itself cannot be started; else takes no memory.
  void add(std::shared_ptr<Start> start) {
    std::lock_guard lock(mutex_);
    if (!running_) std::thread([this] { run(); }).detach();
    running_ = true;
    list(std::move(start));
  }
  /// Back on its way: whoever took it had no thread for it.
  void put_back(const std::shared_ptr<Start>& start) {
    std::lock_guard lock(mutex_);
    start->taken.store(false, std::memory_order_release);
    if (!start->listed) list(start);
  }

 private:
  static constexpr std::chrono::milliseconds kPatience{20};

  void list(std::shared_ptr<Start> start) {
    start->listed = true;
    start->next = std::move(first_);
    first_ = std::move(start);
    if (std::exchange(asleep_, false)) changed_.notify_one();
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      asleep_ = !first_;
      if (asleep_) {
        changed_.wait(lock, [&] { return !asleep_; });
      }
      changed_.wait_for(lock, kPatience / 2, [] { return false; });
      const auto late = std::chrono::steady_clock::now() - kPatience;
      std::shared_ptr<Start> lost;  // and still to come, in a list
      for (std::shared_ptr<Start>* at = &first_; *at;) {
        Start& s = **at;
        const bool taken = s.taken.load(std::memory_order_acquire);
        if (!taken && (s.at > late || !s.take())) {
          at = &s.next;
          continue;
        }
        std::shared_ptr<Start> gone = std::exchange(*at, std::move(s.next));
        gone->listed = false;
        if (!taken) {
          gone->next = std::move(lost);
          lost = std::move(gone);
        }
      }
      lock.unlock();
      std::shared_ptr<Start> again;
      while (lost) {
        std::shared_ptr<Start> one = std::exchange(lost, std::move(lost->next));
        if (!rescue(one)) one->next = std::exchange(again, one);
      }
      lock.lock();
      while (again) {  // there was no memory or no thread for it
        std::shared_ptr<Start> one = std::exchange(again, std::move(again->next));
        one->taken.store(false, std::memory_order_release);
        list(std::move(one));
      }
    }
  }

  static bool rescue(const std::shared_ptr<Start>& start) try {
    {
      Arenas& all = Arenas::get();
      std::scoped_lock lock(start->pool->mutex, all.mutex);
      auto fresh = Pool::make(start->pool->width);
      all.abandoned.reserve(all.abandoned.size() + 1);
      all.abandoned.push_back({std::exchange(start->pool->arena, std::move(fresh)), start.get()});
    }
    detach(start);
    return true;
  } catch (...) {
    return false;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Start> first_;  ///< on their way, or taken since the last look
  bool running_ = false, asleep_ = false;
};

bool SystemPolicy::may_be_of_a_body() { return tbb::this_task_arena::current_thread_index() > 0; }

void SystemPolicy::forked() {
  if (arenas_made.load(std::memory_order_relaxed)) plain_threads.store(true, std::memory_order_relaxed);
}

SystemPolicy::Workers::Workers(int width) {
  if (plain_threads.load(std::memory_order_relaxed)) return;
  Arenas& all = Arenas::get();
  std::lock_guard lock(all.mutex);
  for (std::shared_ptr<Pool>* at = &all.idle; *at; at = &(*at)->next)
    if ((*at)->width == width) {
      pool_ = std::exchange(*at, std::move((*at)->next));
      return;
    }
  pool_ = std::make_shared<Pool>();
  pool_->width = width;
  pool_->arena = Pool::make(width);
}

SystemPolicy::Workers::~Workers() {
  if (!pool_) return;
  Arenas& all = Arenas::get();
  std::lock_guard lock(all.mutex);
  pool_->next = std::exchange(all.idle, pool_);
}

bool SystemPolicy::Workers::run_inside(void* arena, void (*body)(void*), void* data) {
  Pool& pool = *static_cast<Pool*>(arena);
  if (pool.guest.exchange(true, std::memory_order_acquire)) return false;
  struct Leaves {
    Pool& pool;
    ~Leaves() { pool.guest.store(false, std::memory_order_release); }
  } const leaves{pool};
  tbb::task_arena* at = nullptr;  // the one that takes its place leaves it where it is
  {
    std::lock_guard lock(pool.mutex);
    at = pool.arena.get();
  }
  at->execute([=] { body(data); });
  return true;
}

/// A thread of its own for a drainer that was taken. Throws, and the drainer is still there.
void SystemPolicy::Workers::detach(std::shared_ptr<Start> start) {
  std::thread([start = std::move(start)] { std::exchange(start->drainer, nullptr)(); }).detach();
}

void SystemPolicy::start_substitute(std::function<void()> drainer) {
  if (const auto hook = before_start.load(std::memory_order_relaxed)) hook();
  std::thread(std::move(drainer)).detach();
}

void SystemPolicy::Workers::start(std::function<void()> drainer) {
  if (const auto hook = before_start.load(std::memory_order_relaxed)) hook();
  if (!pool_) return std::thread(std::move(drainer)).detach();
  auto start = std::make_shared<Start>();
  start->drainer = std::move(drainer);
  start->pool = pool_;
  start->at = std::chrono::steady_clock::now();
  Watch::get().add(start);
  start->self = start;  // the task's own share, without another allocation
  Start* const task = start.get();
  SLUICE_HANDS_OVER(task);
  try {
    std::lock_guard lock(pool_->mutex);
    pool_->arena->enqueue([task]() SLUICE_UNSEEN { arrive(task); });
  } catch (...) {
    start->self.reset();
    if (start->take()) throw;
  }
}

/// On a thread of the arena.
void SystemPolicy::Workers::arrive(Start* task) {
  SLUICE_TAKES_OVER(task);
  const std::shared_ptr<Start> start = std::move(task->self);
  if (!start->take()) return;
  if (!thread_state().operation) return std::exchange(start->drainer, nullptr)();
  // oneTBB may find a task while a body waits for a loop of its own; no op runs on another op's stack.
  try {
    detach(start);
  } catch (...) {
    Watch::get().put_back(start);
  }
}

}  // namespace sluice::detail
