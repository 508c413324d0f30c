#include "grid.h"

#include <algorithm>
#include <numeric>

#include "names.h"

namespace cuda_double {

constinit thread_local Running* running_here = nullptr;

/// A stack on which a thread of a block runs, or all of them in turn.
class Running::Worker {
 public:
  Worker() : fiber(&Worker::begin, this) {}
  sluice::detail::Fiber fiber;
  const void* top = nullptr;  ///< of its stack, about; null before it ran

 private:
  static void begin(void* argument) {
    auto& self = *static_cast<Worker*>(argument);
    self.top = __builtin_frame_address(0);
    running_here->accesses.set_stack(self.top);
    for (;;) {
      Running& running = *running_here;
      try {
        if (running.grid.launch.barriers) {
          running.grid.launch.thread(running.grid.launch.arguments.get());
        } else {
          running.run_loop();
        }
      } catch (...) {
        running.report("an exception", "an exception leaves the kernel");
        running.ended_ = true;
      }
      if (running.grid.launch.barriers) running.threads_[running.number].state = State::done;
      sluice::detail::Fiber::switch_to(self.fiber, running_here->main_);
    }
  }
};

struct Running::Workers {
  // The first fiber makes what keeps the stacks, which so outlives the fibers here.
  Workers() {
    sluice::detail::Fiber first([](void*) {}, nullptr);
  }
  std::vector<std::unique_ptr<Worker>> all;
  Worker& at(unsigned place) {
    while (all.size() <= place) all.push_back(nullptr);
    if (!all[place]) all[place] = std::make_unique<Worker>();
    return *all[place];
  }
};

Running::Workers& Running::workers() {
  thread_local Workers made;
  return made;
}

Running::Running(const Grid& g)
    : grid(g),
      accesses(*this),
      random_(static_cast<std::minstd_rand::result_type>(g.seed * 2654435761u + 17)),
      dynamic_(g.launch.shared_bytes) {}

void Grid::run() {
  Running running(*this);
  running_here = &running;
  running.run();
  running_here = nullptr;
}

std::string Grid::name() const { return name_of_kernel(launch.kernel); }

/// The blocks in an order drawn from the seed: a step that has no divisor in common with their number.
void Running::run() {
  const dim3& g = grid.launch.grid;
  const std::uint64_t blocks = std::uint64_t{g.x} * g.y * g.z;
  const std::uint64_t offset = random_() % blocks;
  std::uint64_t step = blocks > 2 ? random_() % blocks : 1;
  while (std::gcd(step, blocks) != 1) ++step;
  for (std::uint64_t i = 0, at = offset; i < blocks && !ended_; ++i, at = (at + step) % blocks) {
    block = {static_cast<unsigned>(at % g.x), static_cast<unsigned>(at / g.x % g.y),
             static_cast<unsigned>(at / g.x / g.y)};
    accesses.begin_block();
    if (grid.launch.barriers) {
      run_fibers();
    } else {
      go(0);
    }
  }
}

void Running::set(unsigned n) {
  const dim3& b = grid.launch.block;
  number = n;
  thread = {n % b.x, n / b.x % b.y, n / b.x / b.y};
}

/// On a worker's stack, so that a thread can be left.
void Running::run_loop() {
  const dim3& b = grid.launch.block;
  const unsigned threads = b.x * b.y * b.z;
  const bool backwards = random_() % 2;
  const void* const arguments = grid.launch.arguments.get();
  for (unsigned i = 0; i < threads; ++i) {
    set(backwards ? threads - 1 - i : i);
    grid.launch.thread(arguments);
  }
}

/// Goes on with a thread until it waits or is done.
void Running::go(unsigned n) {
  set(n);
  Worker& worker = workers().at(n);
  if (worker.top) accesses.set_stack(worker.top);
  sluice::detail::Fiber::switch_to(main_, worker.fiber);
  if (!ended_) return;
  for (unsigned i = 0; i < std::max<std::size_t>(threads_.size(), 1); ++i) {
    if (i < workers().all.size()) workers().all[i].reset();  // where they stopped nobody goes on
  }
}

void Running::run_fibers() {
  const dim3& b = grid.launch.block;
  threads_.assign(b.x * b.y * b.z, {});
  for (Thread& each : threads_) each.state = State::ready;
  ready_.resize(threads_.size());
  std::iota(ready_.begin(), ready_.end(), 0u);
  alive_ = static_cast<unsigned>(threads_.size());
  while (alive_ > 0) {
    while (!ready_.empty()) {
      const std::size_t pick = random_() % ready_.size();
      const unsigned n = ready_[pick];
      ready_[pick] = ready_.back();
      ready_.pop_back();
      go(n);
      if (ended_) return;
      alive_ -= threads_[n].state == State::done;
    }
    if (alive_ == 0) return;
    if (release()) continue;
    report("threads that do not meet",
           "threads of a block wait for each other at different places, or for some that are done");
    ended_ = true;
    for (auto& worker : workers().all) worker.reset();
    return;
  }
}

/// All wait: lets a warp's lanes go on that have met, or else the block.
bool Running::release() {
  bool any = false;
  for (unsigned first = 0; first < threads_.size(); first += 32) any |= release_warp(first);
  if (any) return true;
  const Thread* one = nullptr;
  for (const Thread& each : threads_) {
    if (each.state == State::at_warp) return false;
    if (each.state != State::at_barrier) continue;
    if (one && (one->site.line() != each.site.line() || one->site.column() != each.site.column())) return false;
    one = &each;
  }
  accesses.meet_block();
  for (unsigned n = 0; n < threads_.size(); ++n) {
    if (threads_[n].state != State::at_barrier) continue;
    threads_[n].state = State::ready;
    ready_.push_back(n);
  }
  return true;
}

bool Running::release_warp(unsigned first) {
  const unsigned lanes = std::min<unsigned>(32, static_cast<unsigned>(threads_.size()) - first);
  const unsigned whole = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1;
  bool any = false;
  for (unsigned lane = 0; lane < lanes; ++lane) {
    const Thread& one = threads_[first + lane];
    if (one.state != State::at_warp) continue;
    // A mask that names lanes which the block does not have counts as one of those that it has.
    const unsigned mask = one.mask & whole;
    bool met = (mask >> lane & 1) != 0;
    for (unsigned other = 0; other < lanes && met; ++other) {
      if (!(mask >> other & 1)) continue;
      const Thread& that = threads_[first + other];
      met = that.state == State::at_warp && (that.mask & whole) == mask && that.kind == one.kind &&
            that.site.line() == one.site.line() && that.site.column() == one.site.column();
    }
    if (!met) continue;
    exchange(first, mask);
    if (one.kind == Shuffle::sync) accesses.meet_warp(first / 32);
    for (unsigned other = 0; other < lanes; ++other) {
      if (!(mask >> other & 1)) continue;
      threads_[first + other].state = State::ready;
      ready_.push_back(first + other);
    }
    any = true;
  }
  return any;
}

void Running::exchange(unsigned first, unsigned lanes) {
  std::array<std::uint64_t, 32> brought{}, taken{};
  std::uint64_t ballot = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    brought[lane] = threads_[first + lane].value;
    ballot |= (brought[lane] & 1) << lane;
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    const Thread& t = threads_[first + lane];
    const auto width = static_cast<unsigned>(t.width);
    const unsigned segment = lane / width * width;
    unsigned from = lane;
    switch (t.kind) {
      case Shuffle::down:
        from = lane + t.parameter < segment + width ? lane + t.parameter : lane;
        break;
      case Shuffle::up:
        from = lane >= segment + t.parameter ? lane - t.parameter : lane;
        break;
      case Shuffle::exclusive_or:
        from = (lane ^ t.parameter) < segment + width ? lane ^ t.parameter : lane;
        break;
      case Shuffle::index:
        from = segment + t.parameter % width;
        break;
      case Shuffle::sync:
      case Shuffle::ballot:
        break;
    }
    if (from < 32 && (lanes >> from & 1)) {
      taken[lane] = t.kind == Shuffle::ballot ? ballot : brought[from];
    } else {
      taken[lane] = ~std::uint64_t{0};  // what a lane brings that does not take part is not defined
    }
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (lanes >> lane & 1) threads_[first + lane].value = taken[lane];
  }
}

void Running::wait(State state) {
  Worker& worker = workers().at(number);
  threads_[number].state = state;
  sluice::detail::Fiber::switch_to(worker.fiber, main_);
}

void Running::meet_block(const Site& site) {
  if (!grid.launch.barriers) end("a barrier in a kernel that is launched without barriers", site);
  threads_[number].site = site;
  wait(State::at_barrier);
}

std::uint64_t Running::meet_warp(Shuffle kind, unsigned mask, std::uint64_t value, unsigned parameter, int width,
                                 const Site& site) {
  if (!grid.launch.barriers) end("a barrier of a warp in a kernel that is launched without barriers", site);
  if (!(mask >> number % 32 & 1)) end("a lane is not in the mask that it names", site);
  if (width < 1 || width > 32 || (width & (width - 1)) != 0) end("a shuffle whose width is no power of two", site);
  Thread& me = threads_[number];
  me.kind = kind;
  me.mask = mask;
  me.value = value;
  me.parameter = parameter;
  me.width = width;
  me.site = site;
  wait(State::at_warp);
  return threads_[number].value;
}

std::string Running::where() const {
  const auto in_words = [](const uint3& v) {
    return "(" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z) + ")";
  };
  return "the kernel " + grid.name() + ", thread " + in_words(thread) + " of block " + in_words(block) + ": ";
}

void Running::report(const char* kind, const std::string& what) {
  if (std::find(reported_.begin(), reported_.end(), kind) != reported_.end()) return;
  reported_.push_back(kind);
  grid.world.report(grid.caller, where() + what);
}

void Running::end(const char* what, const Site& site) {
  report(what, std::string(what) + " (" + site.file_name() + ":" + std::to_string(site.line()) + ")");
  end();
}

void Running::end() {
  ended_ = true;
  Worker& worker = workers().at(grid.launch.barriers ? number : 0);
  sluice::detail::Fiber::switch_to(worker.fiber, main_, true);
  std::abort();
}

void* dynamic_shared() noexcept { return running_here ? running_here->dynamic_shared() : nullptr; }
uint3 thread_index() noexcept { return running_here ? running_here->thread : uint3{}; }
uint3 block_index() noexcept { return running_here ? running_here->block : uint3{}; }
dim3 block_size() noexcept { return running_here ? running_here->grid.launch.block : dim3(); }
dim3 grid_size() noexcept { return running_here ? running_here->grid.launch.grid : dim3(); }

void meet_block(const Site& site) {
  if (running_here) running_here->meet_block(site);
}
std::uint64_t meet_warp(Shuffle kind, unsigned mask, std::uint64_t value, unsigned parameter, int width,
                        const Site& site) {
  return running_here ? running_here->meet_warp(kind, mask, value, parameter, width, site) : value;
}

}  // namespace cuda_double
