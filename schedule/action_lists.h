// Pipeline schedules as data: which device runs which action (action.h), in which order.
//
// The same list is proved (verify.h), timed (simulate.h), drawn (render.h) and run by the engine (pipeline.h).
// generators.h has the known schedules; schedule_text.h reads and writes a user's own.
// Everything in this header is a pure function of its arguments: thread-safe, and never blocks.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sluice/schedule/action.h"
#include "sluice/schedule/sum_tree.h"

namespace sluice::parallel {

/// How far a stage may run ahead of itself: two rings of slots. F(s,k) takes a slot of each, and so waits until the
/// action that frees it is over for microbatch k - slots. 0: without bound.
struct Rings {
  int saved = 0;  ///< from F to B or I: so many microbatches have `saved` values at once, at most
  int kept = 0;   ///< from F to B or W: so many microbatches are begun and lack weight gradients, at most
  friend bool operator==(const Rings&, const Rings&) = default;
};

/// A weight that several stages use, as a head that is the embedding again (docs/semantics.md, 22). The first of the
/// stages owns it: there it is stepped, and there the gradients of its uses are added. For each microbatch these are
/// first added to one another, use by use; the microbatches' sums then as those of any other weight.
struct TiedWeight {
  std::string name;         ///< its first path in the net, one word: "blocks.0.weight"
  std::vector<int> stages;  ///< that use it, in the order of the tape: ascending
  /// How the gradients of a microbatch's uses are added, which are counted from 0 in the order of the tape: first those
  /// of the first stage. Empty: as backward() adds them (autograd/gradients.h).
  SumTree uses = {};
  friend bool operator==(const TiedWeight&, const TiedWeight&) = default;
};

/// A pipeline's plan for one batch. Stages are the parts of the model in their order ("virtual stages"): a device may
/// have several.
struct Schedule {
  int stages = 0;
  int microbatches = 0;
  std::string name = {};
  /// For each device its actions in order. A device owns the stages that its actions name.
  std::vector<std::vector<Action>> per_device = {};
  /// false: a device runs whatever is ready, and its list only says what it has to do, and in which order two actions
  /// are preferred where both could run.
  bool fixed_order = true;
  /// For each stage; empty: none has a bound.
  std::vector<Rings> rings = {};
  /// How the microbatches' gradients of a weight are added. Empty: in index order. What the gradient was before is
  /// added to the first.
  SumTree sum = {};
  /// A pipeline adds those that its stages hold and that are not listed here.
  std::vector<TiedWeight> tied = {};

  int devices() const { return static_cast<int>(per_device.size()); }
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

/// A number in [0, action_count(schedule)), different for each action: for tables of something per action.
int index_of(const Schedule& schedule, const Action& action);

/// kActionKinds x stages x microbatches: more than the schedule lists.
int action_count(const Schedule& schedule);

/// Where each action stands, and so what it waits for. The schedule must outlive it, and must have passed the prover's
/// first part (check_actions, verify.h): each action is of a known kind, stage and microbatch.
class Order {
 public:
  explicit Order(const Schedule& schedule);

  /// False where the schedule does not list it.
  bool has(const Action& action) const { return at(action).device >= 0; }
  int device(const Action& action) const { return at(action).device; }
  /// Its place in the device's list.
  int place(const Action& action) const { return at(action).place; }
  /// The device that has the stage; -1 for none.
  int device_of_stage(int stage) const { return device_of_stage_[static_cast<std::size_t>(stage)]; }
  /// The action of the list that gives the stage's result for the microbatch; microbatch -1 where there is none.
  Action giver(Result result, int stage, int microbatch) const;
  /// True if the stage recomputes the microbatch: an R is listed.
  bool recomputes(int stage, int microbatch) const { return has({ActionKind::recompute, stage, microbatch}); }

  /// The actions whose results this one needs, in the order of its row, for a step those of every microbatch.
  std::vector<Action> needs(const Action& action) const;
  /// For an F: the actions that free the slots which it takes.
  std::vector<Action> frees_slots_for(const Action& action) const;
  /// For a U of a stage that owns tied weights: the actions that give the gradients of their uses in other stages.
  std::vector<Action> tied_uses_for(const Action& action) const;
  /// All that must be over before the action starts: needs, slots, uses of tied weights, the sum's order (a weight
  /// gradient that is added after another), and, in a fixed order, the action before it on its device.
  std::vector<Action> waits_for(const Action& action) const;

 private:
  struct At {
    int device = -1, place = -1;
  };
  const At& at(const Action& action) const { return at_[static_cast<std::size_t>(index_of(schedule_, action))]; }

  const Schedule& schedule_;
  std::vector<At> at_;
  std::vector<int> device_of_stage_;
  std::vector<std::pair<int, std::size_t>> tied_;  ///< owner and place of each tied weight, ascending
};

}  // namespace sluice::parallel
