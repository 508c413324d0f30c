// The layers of a network while a planner tries them out: they can be moved and run, and are afterwards what they were.
// Internal to plan.h's measurement.
#pragma once

#include <string>
#include <vector>

#include "sluice/ndarray/rerun.h"
#include "sluice/nn/layers.h"

namespace sluice::parallel {

/// Used by one thread. Begins without gradients.
class WatchedLayers {
 public:
  /// `home` is where layers without parameters lie.
  WatchedLayers(const Sequential& network, Device home);
  /// Calls put_back(), whose error it drops: there is another on its way that says more.
  ~WatchedLayers();
  WatchedLayers(const WatchedLayers&) = delete;
  WatchedLayers& operator=(const WatchedLayers&) = delete;

  int size() const { return static_cast<int>(layers_.size()); }
  /// The layer, which does not move random streams and remembers what it writes.
  const ModulePtr& operator[](int i) const { return layers_[static_cast<std::size_t>(i)]; }
  /// Its number and type: "3 Conv2d".
  const std::string& name(int i) const { return names_[static_cast<std::size_t>(i)]; }

  void drop_gradients() const;
  void wait_for_gradients(int layer) const;
  /// Parameters are the arrays that they were, with their gradients; what forward passes wrote has the value that it
  /// had. Throws what pushes throw.
  void put_back();

 private:
  struct Before {
    std::vector<NDArray> values = {}, gradients = {};
  };

  Device home_;
  Rerun written_;
  std::vector<ModulePtr> layers_;
  std::vector<Before> before_;
  std::vector<std::string> names_;
  bool is_back_ = false;
};

}  // namespace sluice::parallel
