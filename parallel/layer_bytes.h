// What the functions of a net hold in memory, by what their tapes keep. Internal to plan.h's measurement, which calls
// them layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "sluice/parallel/net_functions.h"
#include "sluice/parallel/plan.h"

namespace sluice::parallel::detail {

/// A net that is tried out, layer by layer, with values of its own (NetFunctions::trial()).
class TrialNet {
 public:
  explicit TrialNet(NetFunctions net) : net_(std::move(net)) {}

  const NetFunctions& functions() const { return net_; }
  int size() const { return net_.size(); }
  /// On the device of its values, which to() sets.
  nn::Arrays call(int layer, const nn::Arrays& x) const;
  void to(Device device) const;
  /// Those of its parameters that are trained.
  std::vector<NDArray> leaves(int layer) const;
  void wait_for_gradients(int layer) const;
  void drop_gradients() const;

 private:
  NetFunctions net_;
};

/// Each layer's bytes for a microbatch of so many rows, without times: a forward pass layer by layer, all of whose
/// values stay, and a backward pass in halves, on one device. Moves the net there. Blocks. The peak of the device's
/// pool begins anew.
std::vector<LayerSample> layer_bytes(const TrialNet& net, const Batch& batch, std::int64_t rows, Device device,
                                     const Loss& loss);

}  // namespace sluice::parallel::detail
