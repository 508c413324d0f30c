// The controlled scheduler behind EngineMode::explore.
//
// Explorer::run runs its bodies, and all threads that the engine starts meanwhile, as fibers of the calling thread
// ("strands"). At each operation of the policy a Decider says who goes on and what a load sees (search.h); the
// memory is that of C++20 (memory.h). So the same decisions give the same run, and a switch costs some
// nanoseconds. Bodies must not block outside of the engine, and no other thread may call an exploring engine meanwhile.
// Outside of run, real threads hand a baton (guests.h): that is for ordinary programs, where bodies may block.
// Both choose at the same places, in the policy, and the protocol cannot tell them apart.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sluice/engine/explore/memory.h"
#include "sluice/engine/explore/search.h"

namespace sluice::detail {

class Explorer {
 public:
  static Explorer& get();

  /// Begins a new schedule, drawn from the seed, unless `use` has said who decides.
  void reset(std::uint64_t seed);
  /// From now on this one decides, whatever the seeds; null: the seeds again.
  void use(Decider* decider) { given_ = decider; }
  /// Runs the bodies as controlled threads, and returns when they and all that they started have ended. False if that
  /// took more than `max_points` steps, or can never end: a hang. Then the strands are left where they stand, and what
  /// they hold is never freed.
  bool run(std::vector<std::function<void()>> bodies, std::uint64_t max_points = 30'000);
  /// A fingerprint of what the run since reset was: who read what from whom, and the order of the stores. Runs that
  /// differ only in the order of independent steps have the same one.
  std::uint64_t trace_hash() const { return hash_; }
  std::uint64_t points() const { return points_; }
  /// How often nobody could go on until some time limit passed. Where no wait is meant to run out, each is a wake-up
  /// that was lost.
  std::uint64_t stalls() const { return stalls_; }
  /// The first data race since reset: what was read or written, by whom nothing orders with another access; or null.
  const char* race() const { return race_.empty() ? nullptr : race_.c_str(); }
  /// From now on until reset, a parked thread may go on before its time limit for no reason, as Parker::wait allows;
  /// and so find that nothing moved since it last looked, while others do.
  void park_loosely() { loosely_ = true; }
  /// Prints each step from now on; null: no more.
  void print_to(std::FILE* file) { print_ = file; }

  // For the policy. Is the caller a strand?
  static bool inside() { return current_ != nullptr; }
  void point();  ///< somebody else may go on here
  void start(std::function<void()> body);
  std::int64_t now() { return clock_ += 1000; }
  void pause();
  std::uint64_t load(const Trail& trail, std::uint64_t value, std::memory_order order);
  void store(const Trail& trail, std::uint64_t before, std::uint64_t value, std::memory_order order);
  /// The first half of a read-modify-write; the second is write(), with nothing between.
  void read_last(const Trail& trail, std::uint64_t value, std::memory_order order);
  void write(const Trail& trail, std::uint64_t value, std::memory_order order);
  /// Does a compare-exchange succeed? If so it has read; write() is to follow. If not, *expected is what it saw.
  bool compare(const Trail& trail, std::uint64_t value, std::uint64_t* expected, std::memory_order success,
               std::memory_order failure, bool weak);
  void fence();
  void light_fence();
  void heavy_fence();
  /// Was it locked in a run that hung, by a strand that will never unlock it?
  bool abandoned(const Trail& trail) const { return hung_ && trail.run == memory_.run(); }
  void lock(const Trail& trail, const std::atomic<bool>* held);
  void try_lock(const Trail& trail, const std::atomic<bool>* held);
  void unlock(const Trail& trail, std::atomic<bool>* held);
  void park(const Trail& trail, bool* signalled, std::chrono::nanoseconds limit);
  void signal(const Trail& trail, bool* signalled);
  /// After a point(), a step of a queue: one that changes it, or one that only looks.
  Sight& change(const Trail& trail);
  Sight& look(const Trail& trail);
  std::uint32_t run_number() const { return memory_.run(); }
  int value(int count) { return count > 1 ? decider_->value(count) : 0; }
  void note(std::uint64_t what) { hash_ += Draw(what ^ stamp())(); }
  /// The caller releases, and acquires, by something that the explorer does not see. No step: whoever may learn can
  /// only come after those that told.
  void tell(Told& told);
  void learn(const Told& told);
  /// A read or a write of a field that is no atomic.
  void plain(Cell& cell, bool writes, const char* what) {
    if (!(writes ? cell.write(*running_sight) : cell.read(*running_sight))) [[unlikely]]
      race(what);
  }

 private:
  struct Strand;
  struct Locals;
  static void enter(void* strand);
  void end(Strand& me);
  void make(std::function<void()> body, const Strand* parent);
  Location& begin(const Trail& trail, std::uint64_t value, bool shared, const char* what);
  void seen_in_order(Location& x, std::uint32_t store);
  /// What a Decider knows it by; 0 are the fences.
  static std::uint32_t place_of(const Location& x) { return 2 * x.number + 2; }
  void leave();
  int next_able();
  void switch_to(Strand& to, bool for_ever);
  [[noreturn]] void give_up(const char* why);
  void wake_watchers(Location& x);
  void race(const char* what);
  void use_made(const Trail& trail) {
    if (!trail.known_to(*running_sight)) [[unlikely]]
      race("an atomic that is still being made");
  }
  std::uint64_t stamp() const;
  void print(const char* what, std::uint32_t location, std::uint64_t value);

  static inline constinit thread_local Strand* current_ = nullptr;

  Memory memory_;
  Decider* decider_ = nullptr;
  Decider* given_ = nullptr;
  std::unique_ptr<Decider> own_;
  std::vector<std::unique_ptr<Strand>> strands_;  ///< by number
  std::unique_ptr<Strand> runner_;                ///< run's caller
  std::uint32_t able_ = 0, paused_ = 0, alive_ = 0;
  bool hung_ = false;
  std::uint64_t seed_ = 0, hash_ = 0, points_ = 0, max_points_ = 0, stalls_ = 0;
  std::int64_t clock_ = 0;
  std::string race_;
  bool loosely_ = false;
  std::FILE* print_ = nullptr;
};

}  // namespace sluice::detail
