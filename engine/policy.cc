// The threads of lanes: oneTBB arenas, kept for the life of the process.
#include "sluice/engine/detail/policy.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/tbb_allocator.h>
#include <oneapi/tbb/version.h>

#include <algorithm>
#include <memory>
#include <new>
#include <optional>

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/detail/slot.h"
#include "sluice/engine/detail/tsan.h"

namespace sluice::detail {
namespace {

/// oneTBB and the C library do not stand it everywhere that there is no memory: here and there it ends the process. So
/// before they take much there is to be that much: else this throws, and may be tried again. Not so much that malloc
/// would take it from the system, and learn from that.
void find_memory() { ::operator delete(::operator new (std::size_t{100} << 10)); }

/// Before any other use of oneTBB: at its first it looks for libraries and counts the cores. Where it finds no memory
/// to count, whoever asks it again waits for ever, so that lanes do without it then.
void begin_tbb() {
  once_in_process([] {
    find_memory();
    static constinit OverFork over_forks{.in_child = SystemPolicy::forked};
    over_fork(over_forks);
    try {
      static_cast<void>(tbb::tbb_allocator<char>::allocator_type());
      static_cast<void>(tbb::info::default_concurrency());
#if TBB_INTERFACE_VERSION >= 12110
      // What its arenas have in common it makes with the first of them and gives up with the last. Since 2021.11 it
      // holds a lock meanwhile which it takes again to throw, so that without memory it waits for ever: so it has that
      // here, right after the look for memory, and until the process ends.
      static tbb::task_arena* const kept = new tbb::task_arena(1, 1);
      kept->initialize();
#endif
    } catch (...) {
      SystemPolicy::tbb_failed();
    }
  });
}

}  // namespace

/// A lane's arena. Another takes its place when it has lost a task.
struct SystemPolicy::Workers::Pool {
  std::mutex mutex;
  int width = 1;
  std::unique_ptr<tbb::task_arena> arena;
  std::atomic<bool> guest{false};  ///< a waiter that helps is in it, for a loop
  /// With a place more, which only a guest can have.
  static std::unique_ptr<tbb::task_arena> make(int width) { return std::make_unique<tbb::task_arena>(width + 1, 1); }
  /// The arena, with all that it needs. Under the mutex. An arena that found no memory at its first use would wait for
  /// ever at the next; one that is told its width here tries again.
  tbb::task_arena& ready() {
    static constinit thread_local bool has_arena = false;  // oneTBB makes one for each thread, too
    if (!std::exchange(has_arena, true) || !arena->is_active()) find_memory();
    // With the first one of the process oneTBB looks for libraries, which a child must not find half loaded.
    static constinit std::atomic<bool> any{false};
    std::optional<InFirstUse> first;
    if (!any.load(std::memory_order_acquire)) first.emplace();
    arena->initialize(width + 1, 1);
    any.store(true, std::memory_order_release);
    return *arena;
  }
  std::shared_ptr<Pool> next;  ///< of those that no lane has now
};

/// oneTBB gives a machine of n cores n - 1 threads unless told otherwise, and a lane whose thread is blocked must not
/// keep another lane from running: so the limit is far above the cores, and what actually runs is bounded by the lanes'
/// widths.
struct SystemPolicy::Workers::Arenas {
  static Arenas& get() {
    return first_use([] { return new Arenas; });  // workers may still be leaving an arena when static objects go
  }
  std::mutex mutex;
  std::shared_ptr<Pool> idle;  ///< a list
  /// Starts whose task an arena may still hold, a list: named here, because a leak checker does not look into oneTBB's
  /// memory.
  std::shared_ptr<Start> lost;
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
  std::shared_ptr<Start> lost_before;          ///< the next in the list of the lost, under the mutex of the arenas
  std::unique_ptr<tbb::task_arena> abandoned;  ///< by its lane, because it lost the task
  bool lost = false;
  std::atomic<bool> rescued{false};  ///< the watch took it
  std::chrono::steady_clock::time_point at;
  bool take() { return !taken.exchange(true, std::memory_order_acq_rel); }
  /// Keeps it for an arena that may come back to it. Under the mutex of the arenas.
  static void keep(const std::shared_ptr<Start>& start, Arenas& all) {
    if (std::exchange(start->lost, true)) return;
    start->lost_before = std::exchange(all.lost, start);
  }
};

/// What an arena is given. Says so: from then on oneTBB may call it, even though it throws.
class SystemPolicy::Workers::Task {
 public:
  Task(Start* start, bool& given) : start_(start), given_(&given) {}
  Task(const Task& other) : start_(other.start_) {
    if (other.given_) *other.given_ = true;
  }
  Task& operator=(const Task&) = delete;
  SLUICE_UNSEEN void operator()() const { arrive(start_); }

 private:
  Start* const start_;
  bool* const given_ = nullptr;
};

/// oneTBB 2021.8 loses a task now and then: enqueued into an arena whose last thread is about to leave, it stays there
/// with every thread asleep (measured here: about one in 25,000; of the kind of tbb#2136). So somebody looks whether
/// each drainer arrived, runs it where it did not, and leaves that arena alone from then on. On a machine where threads
/// wait long for a core a task may be late and not lost. Another thread for it makes all of that worse, so each that
/// comes after all doubles the patience, up to a second; it shrinks again in some ten seconds.
class SystemPolicy::Workers::Watch {
 public:
  static Watch& get() {
    return first_use([] { return new Watch; });
  }
  /// Throws where the watch itself cannot be started; else takes no memory.
  void add(std::shared_ptr<Start> start) {
    std::lock_guard lock(mutex_);
    if (!running_) std::thread([this] { run(); }).detach();
    running_ = true;
    list(std::move(start));
  }
  /// A task came that was taken for lost.
  void came_after_all() {
    std::lock_guard lock(mutex_);
    if (std::exchange(grew_, true)) return;  // once in a look: those of one look were late together
    patience_ = std::min(2 * patience_, kMostPatience);
  }
  /// Back on its way: whoever took it had no thread for it.
  void put_back(const std::shared_ptr<Start>& start) {
    std::lock_guard lock(mutex_);
    start->taken.store(false, std::memory_order_release);
    if (!start->listed) list(start);
  }

 private:
  static constexpr std::chrono::microseconds kPatience{20'000}, kMostPatience{1'280'000};

  /// It halves in each two seconds.
  std::chrono::microseconds patience() {
    const auto now = std::chrono::steady_clock::now();
    for (; patience_ > kPatience && now - shrunk_ > std::chrono::seconds(2); shrunk_ += std::chrono::seconds(2)) {
      patience_ /= 2;
    }
    if (patience_ <= kPatience) {
      patience_ = kPatience;
      shrunk_ = now;
    }
    grew_ = false;
    return patience_;
  }

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
      const auto late = std::chrono::steady_clock::now() - patience();
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
          gone->rescued.store(true, std::memory_order_relaxed);
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
      if (!start->lost && !plain_threads.load(std::memory_order_relaxed)) {
        auto fresh = Pool::make(start->pool->width);
        start->abandoned = std::exchange(start->pool->arena, std::move(fresh));
      }
      Start::keep(start, all);
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
  std::chrono::microseconds patience_ = kPatience;
  std::chrono::steady_clock::time_point shrunk_{};
  bool grew_ = false;  ///< since the last look
};

bool SystemPolicy::may_be_of_a_body() { return tbb::this_task_arena::current_thread_index() > 0; }

void SystemPolicy::forked() { plain_threads.store(true, std::memory_order_relaxed); }

void SystemPolicy::tbb_failed() { plain_threads.store(true, std::memory_order_relaxed); }

SystemPolicy::Workers::Workers(int width) {
  begin_tbb();
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
  try {
    std::lock_guard lock(pool.mutex);
    at = &pool.ready();
  } catch (const std::bad_alloc&) {
    return false;
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
  const auto plain = [&] { return !pool_ || plain_threads.load(std::memory_order_relaxed); };
  if (plain()) return std::thread(std::move(drainer)).detach();
  auto start = std::make_shared<Start>();
  start->drainer = std::move(drainer);
  start->pool = pool_;
  start->at = std::chrono::steady_clock::now();
  Watch::get().add(start);
  start->self = start;  // the task's own share, without another allocation
  SLUICE_HANDS_OVER(start.get());
  bool given = false;
  try {
    std::lock_guard lock(pool_->mutex);
    try {
      if (!plain()) return pool_->ready().enqueue(Task(start.get(), given));
    } catch (...) {
      // oneTBB threw when it had the task: it wakes or makes threads for it then. The arena may run it or not, and
      // hangs where it next counts its threads; so it gets no more work, nor does any other.
      if (!given) throw;
      tbb_failed();
    }
  } catch (...) {
    start->self.reset();
    if (start->take()) throw;
    return;  // the watch was quicker
  }
  if (given) {
    Arenas& all = Arenas::get();
    std::lock_guard lock(all.mutex);
    Start::keep(start, all);
  } else {
    start->self.reset();
  }
  if (!start->take()) return;
  try {
    detach(start);
  } catch (...) {
    start->drainer = nullptr;
    throw;
  }
}

/// On a thread of the arena.
void SystemPolicy::Workers::arrive(Start* task) {
  SLUICE_TAKES_OVER(task);
  const std::shared_ptr<Start> start = std::move(task->self);
  if (!start->take()) {
    if (start->rescued.load(std::memory_order_relaxed)) Watch::get().came_after_all();
    return;
  }
  if (!thread_state().operation) return std::exchange(start->drainer, nullptr)();
  // oneTBB may find a task while a body waits for a loop of its own; no op runs on another op's stack.
  try {
    detach(start);
  } catch (...) {
    Watch::get().put_back(start);
  }
}

}  // namespace sluice::detail
