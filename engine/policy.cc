// The threads of lanes: oneTBB arenas, kept for the life of the process.
#include "sluice/engine/detail/policy.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>

#include <map>
#include <memory>
#include <vector>

namespace sluice::detail {
namespace {

/// Arenas that no lane has now, by width. oneTBB gives a machine of n cores n - 1 threads unless told otherwise, and a
/// lane whose thread is blocked must not keep another lane from running: so the limit is far above the cores, and what
/// actually runs is bounded by the lanes' widths.
struct Arenas {
  std::mutex mutex;
  std::multimap<int, std::unique_ptr<tbb::task_arena>> idle;
  tbb::global_control threads{tbb::global_control::max_allowed_parallelism, 256};
};
Arenas& arenas() {
  static Arenas* const all = new Arenas;  // workers may still be leaving an arena when static objects go
  return *all;
}

}  // namespace

SystemPolicy::Workers::Workers(int width) : width_(width), arena_(nullptr) {
  Arenas& all = arenas();
  std::lock_guard lock(all.mutex);
  if (auto it = all.idle.find(width); it != all.idle.end()) {
    arena_ = it->second.release();
    all.idle.erase(it);
  } else {
    arena_ = new tbb::task_arena(width, 0);
  }
}

SystemPolicy::Workers::~Workers() {
  Arenas& all = arenas();
  std::lock_guard lock(all.mutex);
  all.idle.emplace(width_, std::unique_ptr<tbb::task_arena>(static_cast<tbb::task_arena*>(arena_)));
}

void SystemPolicy::Workers::start(std::function<void()> drainer) {
  static_cast<tbb::task_arena*>(arena_)->enqueue(std::move(drainer));
}

}  // namespace sluice::detail
