// A net as functions, with the slots that each of them reads. Internal to parallel/.
#pragma once

#include <cstddef>
#include <memory>
#include <source_location>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sluice/nn/net/net.h"
#include "sluice/nn/net/stages.h"

namespace sluice::parallel::detail {

/// Copies refer to the same functions and slots.
class NetFunctions {
 public:
  /// Runs all functions dry, once in training and once in evaluation, on arrays of these specs, and notes what they
  /// read. Throws UsageError for a net without functions, for a slot without a value, for one that is not a part of the
  /// net, and what the functions throw. `who` is for errors.
  NetFunctions(nn::Contents net, nn::Stages functions, const std::vector<Spec>& input, const char* who,
               std::source_location where);

  int size() const { return static_cast<int>(functions_.size()); }
  const std::string& name(int function) const { return functions_.name(static_cast<std::size_t>(function)); }
  nn::Arrays call(int function, const nn::Arrays& x) const {
    return functions_.call(static_cast<std::size_t>(function), x);
  }
  /// Functions [range.first, range.second), one after the other.
  nn::Arrays call(std::pair<int, int> range, nn::Arrays x) const {
    for (int i = range.first; i < range.second; ++i) x = call(i, x);
    return x;
  }
  /// Of functions [begin, end): places in slots(), ascending.
  std::vector<std::size_t> reads(int begin, int end) const;
  /// All of the net.
  const std::vector<nn::Named>& slots() const { return slots_; }
  const nn::State& state(std::size_t slot) const { return *slots_[slot].state; }
  /// The place of what a function asks for; slots().size() for a part of another net.
  std::size_t place_of(const nn::State& asked) const;

  /// The same functions, with slots that have copies of the values: a pipeline of it leaves the net alone. Pushes.
  NetFunctions trial() const;

 private:
  nn::Stages functions_;
  std::vector<nn::Named> slots_;
  std::unordered_map<const nn::State*, std::size_t> places_;  ///< by what functions ask for, which trial() keeps
  std::vector<std::shared_ptr<nn::State>> asked_;             ///< keeps the keys alive
  std::vector<std::vector<bool>> reads_;                      ///< of each function, for each slot
};

/// Slots of a net: to be moved or clipped.
nn::Contents contents_of(const NetFunctions& net, const std::vector<std::size_t>& slots);

/// While it lives, functions of the net read these arrays: `values[i]` for the slot `slots[i]`, which ascend. Layers of
/// parts are below the present layer. Throws UsageError for a slot that is not among them; `who` is for errors.
class ReadsOf final : public nn::Reads {
 public:
  ReadsOf(const NetFunctions& net, const std::vector<std::size_t>& slots, const std::vector<NDArray>& values,
          std::string who);
  const NDArray& read(const std::shared_ptr<nn::State>& state) override;
  const sluice::detail::Layer* above() const override { return above_; }

 private:
  const NetFunctions& net_;
  const std::vector<std::size_t>& slots_;
  const std::vector<NDArray>& values_;
  std::string who_;
  const sluice::detail::Layer* above_;
  nn::Reads::Scope scope_;
};

}  // namespace sluice::parallel::detail
