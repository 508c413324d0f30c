// The explorer's memory: what each memory order of C++20 permits a load to see, and nothing that x86 adds to it.
//
// Each atomic keeps its last stores in modification order, which is the order in which the run made them. Each strand
// (a controlled thread) has a vector clock. A store that happens before a load, or was seen by something that happens
// before it, hides all older stores from that load; of the others the load may see any. A load that acquires joins the
// clock that the store released; a read-modify-write sees the last store and passes its released clock on. Sequential
// consistency is C++20's ([atomics.order]): the order S is the order of the run; an S access sees no less than what an
// earlier S access of the same atomic wrote or saw, or what happens before an earlier fence; what follows a fence sees
// no less than what an earlier S access wrote or saw, or what happens before an earlier fence.
//
// Stronger than C++20 in three ways, so a bug that needs one of them does not show: stores take their place in the
// modification order when they run (no weak outcome of 2+2W), a load sees no store that runs later (no load
// buffering), and a store that kHistory others have followed is forgotten.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace sluice::detail {

inline constexpr int kStrands = 32;  ///< at one time with clocks of their own; in a longer run later ones share
inline constexpr int kHistory = 8;

/// How far into each strand's life something knows. One cache line, so that joining is a few instructions.
struct alignas(64) Clock {
  std::array<std::int16_t, kStrands> at{};
  void join(const Clock& other) {
    for (std::size_t i = 0; i < kStrands; ++i) at[i] = at[i] < other.at[i] ? other.at[i] : at[i];
  }
};
inline constexpr std::int16_t kNever = std::numeric_limits<std::int16_t>::max();

/// What a strand or a release knows: the clock, and the last fence before it in S.
struct View {
  Clock clock;
  std::uint32_t fence = 0;
  void join(const View& other) {
    clock.join(other.clock);
    fence = fence < other.fence ? other.fence : fence;
  }
};

struct StoreRecord {
  std::uint64_t value;
  std::uint32_t change;  ///< how often the value had changed by then
  std::uint32_t s;       ///< place in S of the first S access that wrote or saw it
  std::uint32_t origin;  ///< who stored, and which of its steps: for the hash
  View released;         ///< what a load that acquires learns
  Clock seen;            ///< when each strand first saw it; kNever: not yet

  /// Happens something that wrote or saw it before a strand that knows `clock`?
  bool known(const Clock& clock) const {
    int found = 0;
    for (std::size_t i = 0; i < kStrands; ++i) found |= seen.at[i] <= clock.at[i];
    return found != 0;
  }
};

/// What the run knows of one atomic, mutex, queue or parker.
struct Location {
  std::uint32_t number;    ///< in this run
  std::uint32_t newest;    ///< number of its last store; store n is in records[n % kHistory]
  std::uint32_t oldest;    ///< of those kept
  std::uint32_t watchers;  ///< strands that pause until something is stored here
  View handed;             ///< of a mutex, a parker: what who lets go of it knows
  StoreRecord records[kHistory];

  StoreRecord& record(std::uint32_t n) { return records[n % kHistory]; }
  StoreRecord& last() { return record(newest); }
};

/// What strands told each other by other means than the policy's.
struct Told {
  std::uint32_t run = 0;
  View view;
};

/// A strand's part of the memory.
struct Sight {
  int strand = 0;
  View view;
  View fenced;   ///< what its last fence releases with every later relaxed store
  View pending;  ///< what its relaxed loads would have acquired; a fence acquires it
  std::uint32_t steps = 0;

  /// What it does between two steps counts with the later one: the earlier may have released already.
  std::int16_t epoch() const {
    const std::int16_t at = view.clock.at[static_cast<std::size_t>(strand)];
    return at < kNever - 2 ? static_cast<std::int16_t>(at + 1) : std::int16_t{0};
  }
  bool knows(int other, std::int16_t step) const {
    return other < 0 || other == strand || step <= view.clock.at[static_cast<std::size_t>(other)];
  }
};
/// The strand that is running; null outside of the explorer's runs.
inline constinit thread_local const Sight* running_sight = nullptr;
inline constinit std::uint32_t present_run = 0;

/// In each object of the policy: where its Location is, if it has one in this run; and if a strand made it, which, and
/// when. To make an atomic is no atomic operation: others must know of it by other means.
struct Trail {
  Trail() {
    if (!running_sight) return;
    made_in = present_run;
    maker = static_cast<std::int16_t>(running_sight->strand);
    made_at = running_sight->epoch();
  }
  bool known_to(const Sight& me) const { return made_in != present_run || me.knows(maker, made_at); }
  mutable std::uint32_t run = 0, index = 0;
  std::uint32_t made_in = 0;
  std::int16_t maker = -1, made_at = 0;
};

/// Who wrote and read a field that is no atomic, as far as it may still race.
class Cell {
 public:
  /// False: a race.
  bool read(const Sight& me) {
    begin();
    const bool good = me.knows(writer_, written_);
    if (reader_ == kMany) {
      (*reads_).at[at(me.strand)] = me.epoch();
    } else if (me.knows(reader_, read_)) {
      reader_ = static_cast<std::int16_t>(me.strand);
      read_ = me.epoch();
    } else {
      if (!reads_) reads_ = std::make_unique<Clock>();
      *reads_ = {};
      reads_->at[at(reader_)] = read_;
      reads_->at[at(me.strand)] = me.epoch();
      reader_ = kMany;
    }
    return good;
  }
  bool write(const Sight& me) {
    begin();
    bool good = me.knows(writer_, written_);
    if (reader_ == kMany) {
      for (int s = 0; s < kStrands; ++s) good = good && me.knows(s, reads_->at[at(s)]);
    } else {
      good = good && me.knows(reader_, read_);
    }
    writer_ = static_cast<std::int16_t>(me.strand);
    written_ = me.epoch();
    reader_ = -1;
    return good;
  }

 private:
  static constexpr std::int16_t kMany = -2;
  static std::size_t at(int strand) { return static_cast<std::size_t>(strand); }
  /// What was before the run, all know.
  void begin() {
    if (run_ == present_run) return;
    run_ = present_run;
    writer_ = reader_ = -1;
  }
  std::uint32_t run_ = 0;
  std::int16_t writer_ = -1, written_ = 0, reader_ = -1, read_ = 0;
  std::unique_ptr<Clock> reads_;  ///< by several strands of which none knows the others'
};

class Memory {
 public:
  /// Forgets everything; atomics keep their last values.
  void begin_run();
  /// The Location of a trail; made at its first use in a run, with `value` as what everybody knows.
  Location& at(const Trail& trail, std::uint64_t value);
  Location& numbered(std::uint32_t index) { return chunks_[index / kChunk][index % kChunk]; }

  /// The oldest store that a load may see, as its number.
  std::uint32_t lowest(Location& x, const Sight& me, std::memory_order order);
  /// Sees store `n`. Returns its value.
  std::uint64_t see(Location& x, std::uint32_t n, Sight& me, std::memory_order order);
  /// `after_read`: a read-modify-write, which passes on what the store before released.
  void store(Location& x, std::uint64_t value, Sight& me, std::memory_order order, bool after_read);
  void fence(Sight& me);
  /// Does seeing store `n` with a seq_cst load give it a place in S?
  static bool enters_order(Location& x, std::uint32_t n) { return n > x.oldest && x.record(n).s == kNotInS; }
  /// A mutex, a parker: what one lets go of, the other takes.
  static void release(Location& x, Sight& me) { x.handed.join(me.view); }
  static void acquire(Location& x, Sight& me) { me.view.join(x.handed); }
  std::uint32_t run() const { return run_; }
  static void step(Sight& me) {
    ++me.steps;
    if (me.view.clock.at[index(me)] < kNever - 1) ++me.view.clock.at[index(me)];
  }

 private:
  static constexpr std::uint32_t kChunk = 64;
  static constexpr std::uint32_t kNotInS = ~std::uint32_t{0};
  static std::size_t index(const Sight& me) { return static_cast<std::size_t>(me.strand); }
  static bool acquires(std::memory_order order) {
    return order == std::memory_order_acquire || order == std::memory_order_acq_rel ||
           order == std::memory_order_seq_cst || order == std::memory_order_consume;
  }
  static bool releases(std::memory_order order) {
    return order == std::memory_order_release || order == std::memory_order_acq_rel ||
           order == std::memory_order_seq_cst;
  }

  std::vector<std::unique_ptr<Location[]>> chunks_;
  std::uint32_t run_ = 0, used_ = 0;
  std::uint32_t s_ = 0;  ///< places taken in S
  View fences_;          ///< all that happens before some fence so far
};

}  // namespace sluice::detail
