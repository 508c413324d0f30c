// Weights that several stages of a pipeline hold: found when it is made, brought to every device that uses them in each
// step, and their gradients added use by use. Internal to parallel/.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "sluice/ndarray/nd_array.h"
#include "sluice/parallel/gradient_sum.h"
#include "sluice/parallel/pipeline.h"
#include "sluice/schedule/action_lists.h"

namespace sluice::parallel::detail {

/// Between two calls of the pipeline all of its handles are the array that the owner's device has.
struct SharedWeight {
  struct Holder {
    int stage;
    NDArray* handle;
  };
  TiedWeight tied;
  std::vector<Holder> holders = {};  ///< stage by stage

  const NDArray& value() const { return *holders.front().handle; }
  bool is_in(int stage) const;
  /// " '0.weight' of the stages 0 and 3", for errors.
  std::string in_words() const;
};

struct SharedWeights {
  std::vector<SharedWeight> list;
};

/// Moves each stage's module to its device, and returns the weights that several stages hold. Throws UsageError for one
/// that two stages show in two ways.
SharedWeights move_stages(const std::vector<Stage>& stages);

/// The weights by which a schedule for these stages runs, with the trees that it has for their uses; sets its list of
/// tied weights. Throws std::invalid_argument where it has others than the stages.
SharedWeights weights_of(Schedule& schedule, const SharedWeights& shared, const std::vector<Stage>& stages);

/// Parameters of the stage that no earlier stage has.
std::vector<NamedParameter> owned_parameters(const std::vector<Stage>& stages, int stage);

/// Those of the stage's parameters that want gradients and whose gradients backward() adds up itself.
std::vector<NDArray> untied_leaves(const SharedWeights& weights, const Stage& stage, int number);

/// The weights' values on all devices that use them, as they are when it is made: leaves, where the weight is one and
/// gradients are recorded.
class Copies {
 public:
  /// Pushes the transfers. Throws UsageError where handles are no longer one array.
  Copies(const SharedWeights& weights, const std::vector<Stage>& stages);

  /// What the stage uses for a weight of the list.
  const NDArray& of(std::size_t weight, int stage) const;

  /// While it lives, the handles of a stage's module are those of its device.
  class InStage {
   public:
    InStage(const Copies& copies, int stage);
    ~InStage();
    InStage(const InStage&) = delete;
    InStage& operator=(const InStage&) = delete;

   private:
    std::vector<std::pair<NDArray*, NDArray>> before_;
  };

 private:
  struct Copy {
    std::size_t weight;
    Device device;
    NDArray value;
  };
  const SharedWeights& weights_;
  const std::vector<Stage>& stages_;
  std::vector<Copy> copies_;
};

/// The sums of the weights' gradients in one step. Sums run on the owner's device as transfers do: no action's, and as
/// soon as all terms are there.
class TiedSums {
 public:
  TiedSums(const SharedWeights& weights, const Copies& copies, const Schedule& schedule);

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
  /// std::invalid_argument where the weight's tree is for another number of uses.
  void arrive(int stage, int microbatch);

 private:
  using Terms = std::vector<NDArray>;
  struct Sum {
    std::vector<std::vector<Terms>> terms;  ///< of each microbatch, those of each stage
    std::vector<std::size_t> left;          ///< of each microbatch, how many stages have not come
    std::optional<GradientSum> apart;       ///< where microbatches do not come in the order of their sum
  };
  void add(std::size_t weight, int microbatch);

  const SharedWeights& weights_;
  const Copies& copies_;
  std::vector<Sum> sums_;
  std::vector<Terms> came_;  ///< of each weight, from the stage whose backward runs
};

/// While it lives, an update of one stage finds no gradients of the weights that another stage owns.
class OthersHidden {
 public:
  OthersHidden(const SharedWeights& weights, int stage);
  ~OthersHidden();
  OthersHidden(const OthersHidden&) = delete;
  OthersHidden& operator=(const OthersHidden&) = delete;

 private:
  std::vector<std::pair<NDArray, NDArray>> hidden_;
};

/// What errors and traces call the part of the model that a microbatch goes through in a stage.
std::string layer_of(int stage, int microbatch);

}  // namespace sluice::parallel::detail
