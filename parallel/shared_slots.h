// Where the slots of a net lie in a pipeline: which stage owns each, what stages share, the arrays that stages read in
// a step, and the gradients of shared parameters, added use by use. Internal to parallel/.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "sluice/ndarray/nd_array.h"
#include "sluice/nn/optim/optimizer.h"
#include "sluice/parallel/gradient_sum.h"
#include "sluice/parallel/net_functions.h"
#include "sluice/schedule/action_lists.h"

namespace sluice::parallel::detail {

/// A parameter that several stages read; in a schedule with trees for uses also one of a single stage.
struct SharedSlot {
  TiedWeight tied;
  std::size_t slot;
  std::shared_ptr<nn::State> state;

  const NDArray& value() const { return state->value; }
  bool is_in(int stage) const;
  /// " '0.weight' of the stages 0 and 3", for errors.
  std::string in_words() const;
};

struct StageSlots {
  std::vector<std::size_t> reads = {};               ///< places in NetFunctions::slots(), ascending
  std::vector<std::size_t> owns = {};                ///< those that no earlier stage reads
  std::unordered_set<const nn::State*> states = {};  ///< of the owned parameters
};

struct SharedSlots {
  std::vector<StageSlots> stages;
  std::vector<SharedSlot> list;
};

/// `first`: the first function of each stage, and the number of functions. Throws ArrayError for a parameter that is
/// trained and that no stage reads, and for a statistic that several stages read.
SharedSlots slots_of_stages(const NetFunctions& net, const std::vector<int>& first, std::source_location where);

/// The shared slots by which a schedule for these stages runs, with the trees that it has for their uses; sets its list
/// of tied weights. Throws std::invalid_argument where it has others than the stages.
SharedSlots shared_in(Schedule& schedule, const SharedSlots& shared, const NetFunctions& net);

/// Those parameters of a stage that want gradients and whose gradients backward() adds up itself.
std::vector<NDArray> untied_leaves(const SharedSlots& shared, const NetFunctions& net, int stage);

/// What stages read in one step: the slots' arrays where they are on the stage's device, else copies there, as they are
/// when it is made: leaves, where the slot is one. Where a step `writes`, statistics are copies too, which it writes.
class StepArrays {
 public:
  /// Moves slots that were moved away back, and pushes the transfers.
  StepArrays(std::shared_ptr<const SharedSlots> shared, std::shared_ptr<const NetFunctions> net,
             const std::vector<Device>& devices, bool writes, std::source_location where);

  /// What the stage reads for a slot that is among its own.
  const NDArray& of(std::size_t slot, int stage) const;
  /// While it lives, the functions of a stage read these.
  ReadsOf in_stage(int stage) const;
  /// What the step has written of a stage's statistics, or of all stages', and where it belongs.
  std::vector<nn::detail::StepPart::Commit> written(std::optional<int> stage = std::nullopt) const;

 private:
  std::shared_ptr<const SharedSlots> shared_;
  std::shared_ptr<const NetFunctions> net_;
  std::vector<std::vector<NDArray>> values_;  ///< for each stage, for each slot that it reads
  struct Written {
    int stage;
    nn::detail::StepPart::Commit commit;
  };
  std::vector<Written> statistics_;
};

/// The sums of the shared parameters' gradients in one step. Sums run on the owner's device as transfers do: no
/// action's, and as soon as all terms are there.
class TiedSums {
 public:
  TiedSums(const SharedSlots& shared, const StepArrays& arrays, const Schedule& schedule);

  /// While it lives, backward hands the gradients of the uses in a stage to the sums.
  class Listen {
   public:
    Listen(TiedSums& sums, int stage);
    ~Listen();
    Listen(const Listen&) = delete;
    Listen& operator=(const Listen&) = delete;

   private:
    Listen() = default;
    std::vector<NDArray> leaves_;
  };
  /// What came from a stage since the last call are the gradients of a microbatch, all that there are. Throws
  /// std::invalid_argument where the parameter's tree is for another number of uses.
  void arrive(int stage, int microbatch);

 private:
  using Terms = std::vector<NDArray>;
  struct Sum {
    std::vector<std::vector<Terms>> terms;  ///< of each microbatch, those of each stage
    std::vector<std::size_t> left;          ///< of each microbatch, how many stages have not come
    std::optional<GradientSum> apart;       ///< where microbatches do not come in the order of their sum
  };
  void add(std::size_t weight, int microbatch);

  const SharedSlots& shared_;
  const StepArrays& arrays_;
  std::vector<Sum> sums_;
  std::vector<Terms> came_;  ///< of each parameter, from the stage whose backward runs
};

}  // namespace sluice::parallel::detail
