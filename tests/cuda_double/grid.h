// A grid while it runs on its stream's thread: blocks one after the other, their threads as fibers or as a loop.
#pragma once

#include <optional>
#include <random>

#include "accesses.h"
#include "cuda_double/kernel.h"
#include "double.h"
#include "sluice/engine/explore/fiber.h"

namespace cuda_double {

/// A launch that was accepted.
struct Grid {
  Grid(World& w, detail::Launch l, int d, std::vector<sluice::MemoryUse> u, const Caller& c, std::uint64_t s)
      : world(w), launch(std::move(l)), device(d), uses(std::move(u)), caller(c), seed(s) {}
  World& world;
  const detail::Launch launch;
  const int device;
  const std::vector<sluice::MemoryUse> uses;  ///< by addresses as the program has them
  const Caller caller;
  const std::uint64_t seed;

  void run();
  std::string name() const;
};

/// The run of a grid.
class Running {
 public:
  explicit Running(const Grid& grid);
  void run();

  /// For the calling thread of the grid.
  void meet_block(const Site& site);
  std::uint64_t meet_warp(Shuffle kind, unsigned mask, std::uint64_t value, unsigned parameter, int width,
                          const Site& site);
  /// The block's dynamic shared memory; null where the launch asked for none.
  std::byte* dynamic_shared() { return dynamic_.data(); }
  std::size_t dynamic_bytes() const { return grid.launch.shared_bytes; }
  /// One report for each kind of mistake and launch.
  void report(const char* kind, const std::string& what);
  /// Leaves the kernel for ever: what it would do next is of no use. No destructor runs of what is on its stack.
  [[noreturn]] void end();
  [[noreturn]] void end(const char* what, const Site& site);

  const Grid& grid;
  Accesses accesses;
  uint3 block{}, thread{};
  unsigned number = 0;  ///< of the thread, in its block

 private:
  enum class State : std::uint8_t { ready, at_barrier, at_warp, done };
  struct Thread {
    State state = State::done;
    Shuffle kind = Shuffle::sync;
    unsigned mask = 0, parameter = 0;
    int width = 32;
    std::uint64_t value = 0;
    Site site;
  };
  class Worker;
  struct Workers;
  static Workers& workers();

  void run_loop();
  void run_fibers();
  void wait(State state);
  void go(unsigned number);
  bool release();
  bool release_warp(unsigned first);
  void exchange(unsigned first, unsigned lanes);
  void set(unsigned number);
  std::string where() const;

  sluice::detail::Fiber main_;
  std::minstd_rand random_;
  std::vector<Thread> threads_;
  std::vector<unsigned> ready_;
  unsigned alive_ = 0;
  bool ended_ = false;
  std::vector<const char*> reported_;
  std::vector<std::byte> dynamic_;
};

/// The run that the calling thread of the host is in; null outside of kernels.
extern constinit thread_local Running* running_here;

}  // namespace cuda_double
