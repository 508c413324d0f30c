// How the explorer chooses: who goes on, and what a load sees.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sluice/engine/explore/memory.h"

namespace sluice::detail {

/// Who can go on. Strands are bits and numbers.
struct Choice {
  std::uint32_t able = 0;
  std::uint32_t paused = 0;  ///< in a poll of a spin loop, and nothing that it read has changed
  int last = -1;             ///< who made the last step
};

class Decider {
 public:
  virtual ~Decider() = default;
  virtual int next(const Choice& choice) = 0;
  /// One of `count` possibilities; 0 is what a machine without weak memory would do.
  virtual int value(int count) = 0;
  /// For a search that looks at what depends on what. `shared`: of a read that other reads do not disturb.
  virtual void event(int /*strand*/, std::uint32_t /*location*/, bool /*shared*/) {}
  /// The strand polls: it gives way.
  virtual void polled(int /*strand*/) {}
  virtual void born(int /*parent*/, int /*child*/) {}
};

/// splitmix64.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t n) { return (*this)() % n; }

 private:
  std::uint64_t state_;
};

/// From a seed: half of the seeds a random walk, half PCT (Burckhardt et al., "A randomized scheduler with
/// probabilistic guarantees of finding bugs", 2010: strands have priorities, which change at a few steps drawn
/// beforehand).
std::unique_ptr<Decider> make_random_decider(std::uint64_t seed);

/// Every schedule with at most `budget` deviations, a schedule for each class of those that differ in the order of
/// independent steps only. A deviation is a preemption of a strand that could go on, a load that does not see the
/// newest store, a weak compare-exchange that fails for no reason, a poll that goes on although nothing changed.
/// Dynamic partial-order reduction (Flanagan and Godefroid, 2005), made to fit a budget as Coons, Musuvathi and
/// McKinley do ("Bounded partial-order reduction", 2013): where two steps race, the other strand is tried before the
/// first of them, and also where the block of steps began that the first is part of, because a switch there may cost
/// less.
class Exhaustive final : public Decider {
 public:
  /// Without `reduced`: all schedules, those too that differ in the order of independent steps only.
  explicit Exhaustive(int budget, bool reduced = true) : budget_(budget), reduced_(reduced) {}
  /// To call before each run. False: all are done.
  bool next_schedule();
  /// The decisions of the last run that were not the first choice: "index:choice,...".
  std::string decisions() const;
  /// The run went another way than the same decisions did before: something in it does not come from the explorer.
  bool unsteady() const { return unsteady_; }

  int next(const Choice& choice) override;
  int value(int count) override;
  void event(int strand, std::uint32_t location, bool shared) override;
  void born(int parent, int child) override { knows_[at(child)] = knows_[at(parent)]; }

 private:
  struct Node {
    std::uint32_t able = 0, paused = 0, wanted = 0, done = 0;
    std::uint32_t block = 0;                                   ///< where the stretch of steps began that `chosen` makes
    std::int16_t last = -1, chosen = 0, usual = 0, count = 0;  ///< count: of values; 0 for strands
    std::int16_t spent = 0;                                    ///< deviations before it
  };
  struct Access {
    std::int16_t strand, step;
    std::uint32_t node;
    bool shared;
  };
  struct Use {
    std::uint32_t run = 0;
    Clock after_write, after_reads;
    std::vector<Access> accesses;
  };
  static std::size_t at(int strand) { return static_cast<std::size_t>(strand); }
  static int cost(const Node& n, int chosen);
  void choose(std::size_t index, int chosen);
  void race(const Access& first, int strand);
  void want(std::uint32_t node, int strand);
  int spent_after(std::size_t count) const;

  const int budget_;
  const bool reduced_;
  bool begun_ = false, unsteady_ = false;
  std::vector<Node> nodes_;
  std::size_t depth_ = 0;
  std::uint32_t step_node_ = 0;  ///< the last choice of a strand
  std::uint32_t run_ = 0;
  std::vector<Use> uses_;
  std::array<Clock, kStrands> knows_{};
};

/// Makes given decisions again, and the usual ones between them.
class Replay final : public Decider {
 public:
  explicit Replay(const std::string& decisions);
  int next(const Choice& choice) override;
  int value(int count) override;

 private:
  std::map<std::uint64_t, int> decisions_;
  std::uint64_t index_ = 0;
};

/// The usual choice: whoever made the last step goes on; else the next one in turn, and a paused one only where nobody
/// else can.
int usual_choice(const Choice& choice);

}  // namespace sluice::detail
