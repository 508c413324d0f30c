// Patience: when a run does not get better any more.
#pragma once

#include <cstdint>
#include <limits>

namespace sluice::nn {

/// Counts how often a number, such as a loss on held-out data, was no better than the best before:
///
///   nn::Patience patience{.most = 5};
///   ...
///   if (patience.better(loss)) nn::save("best.safetensors", {{"net", net}});
///   if (patience.over()) break;
///   nn::save("run.safetensors", {{"net", net}, {"best", patience.best}, {"tries", patience.tries}});
struct Patience {
  std::int64_t most = 5;  ///< tries that are no better before it is over
  double least_gain = 0;  ///< what counts as better is so by more than this
  bool higher = false;    ///< higher numbers are better, such as accuracies

  double best = std::numeric_limits<double>::quiet_NaN();  ///< NaN: nothing yet
  std::int64_t tries = 0;                                  ///< since the best

  /// Whether the number is better than the best before, and is the best from now on. NaN never is.
  bool better(double number) {
    const bool first = best != best;
    if (number == number && (first || (higher ? number > best + least_gain : number < best - least_gain))) {
      best = number;
      tries = 0;
      return true;
    }
    ++tries;
    return false;
  }
  bool over() const { return tries >= most; }
};

}  // namespace sluice::nn
