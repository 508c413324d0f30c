// The threads of lanes: oneTBB arenas, kept for the life of the process.
#include "sluice/engine/detail/policy.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>

#include <map>
#include <memory>
#include <vector>

#include "sluice/engine/detail/slot.h"
#include "sluice/engine/detail/tsan.h"

namespace sluice::detail {
namespace {

/// Arenas that no lane has now, by width. oneTBB gives a machine of n cores n - 1 threads unless told otherwise, and a
/// lane whose thread is blocked must not keep another lane from running: so the limit is far above the cores, and what
/// actually runs is bounded by the lanes' widths.
struct Arenas {
  std::mutex mutex;
  std::multimap<int, std::unique_ptr<tbb::task_arena>> idle;
  std::vector<std::unique_ptr<tbb::task_arena>> abandoned;  ///< each may still hold the task that it lost
  tbb::global_control threads{tbb::global_control::max_allowed_parallelism, 256};
};
Arenas& arenas() {
  static Arenas* const all = new Arenas;  // workers may still be leaving an arena when static objects go
  return *all;
}

}  // namespace

/// A lane's arena. Another takes its place when it has lost a task.
struct SystemPolicy::Workers::Pool {
  std::mutex mutex;
  int width = 1;
  std::unique_ptr<tbb::task_arena> arena;
};

/// A drainer on its way: the arena's thread or the watch runs it, whoever is first.
struct SystemPolicy::Workers::Start {
  std::atomic<bool> taken{false};
  std::function<void()> drainer;
  std::shared_ptr<Pool> pool;
  std::shared_ptr<Start> self;
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
  void add(std::shared_ptr<Start> start) {
    std::lock_guard lock(mutex_);
    if (!running_) std::thread([this] { run(); }).detach();
    running_ = true;
    starts_.push_back(std::move(start));
    if (std::exchange(asleep_, false)) changed_.notify_one();
  }

 private:
  static constexpr std::chrono::milliseconds kPatience{20};

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      asleep_ = starts_.empty();
      if (asleep_) {
        changed_.wait(lock, [&] { return !asleep_; });
      }
      changed_.wait_for(lock, kPatience / 2, [] { return false; });
      std::vector<std::shared_ptr<Start>> lost;
      const auto late = std::chrono::steady_clock::now() - kPatience;
      std::erase_if(starts_, [&](const std::shared_ptr<Start>& s) {
        if (s->taken.load(std::memory_order_acquire)) return true;
        if (s->at > late || !s->take()) return false;
        lost.push_back(s);
        return true;
      });
      lock.unlock();
      for (auto& s : lost) rescue(*s);
      lost.clear();
      lock.lock();
    }
  }

  static void rescue(Start& start) {
    {
      Arenas& all = arenas();
      std::scoped_lock lock(start.pool->mutex, all.mutex);
      all.abandoned.push_back(std::move(start.pool->arena));
      start.pool->arena = std::make_unique<tbb::task_arena>(start.pool->width, 0);
    }
    std::thread(std::move(start.drainer)).detach();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Start>> starts_;
  bool running_ = false, asleep_ = false;
};

SystemPolicy::Workers::Workers(int width) : pool_(std::make_shared<Pool>()) {
  pool_->width = width;
  Arenas& all = arenas();
  std::lock_guard lock(all.mutex);
  if (auto it = all.idle.find(width); it != all.idle.end()) {
    pool_->arena = std::move(it->second);
    all.idle.erase(it);
  } else {
    pool_->arena = std::make_unique<tbb::task_arena>(width, 0);
  }
}

SystemPolicy::Workers::~Workers() {
  std::unique_ptr<tbb::task_arena> arena;
  {
    std::lock_guard lock(pool_->mutex);
    arena = std::move(pool_->arena);
  }
  Arenas& all = arenas();
  std::lock_guard lock(all.mutex);
  all.idle.emplace(pool_->width, std::move(arena));
}

void SystemPolicy::Workers::start(std::function<void()> drainer) {
  auto start = std::make_shared<Start>();
  start->drainer = std::move(drainer);
  start->pool = pool_;
  start->at = std::chrono::steady_clock::now();
  start->self = start;  // the task's own share, without another allocation
  Watch::get().add(start);
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
  std::function<void()> drainer = std::move(start->drainer);
  // oneTBB may find a task while a body waits for a loop of its own; no op runs on another op's stack.
  if (thread_state().operation) return std::thread(std::move(drainer)).detach();
  drainer();
}

}  // namespace sluice::detail
