// Gradients that are accumulated when a file is written, so that a run can be cut between two backward passes of a
// step.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sluice/nn/files/saved_array.h"
#include "sluice/nn/net/net.h"

namespace sluice::nn {

/// An item of nn::save and nn::load: the gradients of a net's parameters. Name it behind the net.
///   nn::Gradients gradients(net);
///   nn::save(path, {{"net", net}, {"gradients", gradients}, ...});
class Gradients {
 public:
  /// `net` must live as long as this object.
  template <class Net>
  explicit Gradients(const Net& net) : contents_([&net] { return contents(net); }) {}
  std::vector<SavedArray> saved_arrays() const;
  std::vector<std::string> load_arrays(const std::vector<SavedArray>& arrays, bool check_only);
  /// {"gradients", how many there are}.
  std::map<std::string, std::int64_t> counts() const;
  void set_counts(const std::map<std::string, std::int64_t>&) {}

 private:
  std::function<Contents()> contents_;
};

}  // namespace sluice::nn
