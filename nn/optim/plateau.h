// Plateau: a learning rate that falls when a number does not get better any more.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "sluice/engine/errors.h"
#include "sluice/engine/number_text.h"
#include "sluice/nn/optim/schedule.h"

namespace sluice::nn {

/// Scales a schedule by `factor` whenever a number, such as a loss on held-out data, was no better than the best before
/// more than `patience` times in a row:
///
///   nn::Plateau plateau{.lr = 0.1, .factor = 0.5, .patience = 3};
///   nn::Optimizer opt(net, nn::Sgd{.lr = plateau, .momentum = 0.9});    // refers to it
///   ...
///   plateau.report(loss);                                               // once an epoch
///   nn::save("run.safetensors", {{"net", net}, {"opt", opt}, {"scale", plateau.scale}, {"best", plateau.best},
///                                {"tries", plateau.tries}, {"cooling", plateau.cooling}});
///
/// The rule of PyTorch's ReduceLROnPlateau, without its `eps`; a relative threshold is a part of the best number's
/// size, which differs where that is below 0. It must outlive the rules that refer to it, and stay where it is. Used by
/// one thread at a time, that of Optimizer::step(); report() reads no array, so it does not wait.
struct Plateau {
  Schedule lr = 0.1;
  double factor = 0.1;
  std::int64_t patience = 10;  ///< reports in a row that are no better and change nothing
  double threshold = 1e-4;     ///< what counts as better is so by more than this part of the best,
  bool absolute = false;       ///< or by more than this
  std::int64_t cooldown = 0;   ///< reports behind a fall that are not counted
  double least = 0;            ///< the rate does not fall below it
  bool higher = false;         ///< higher numbers are better, such as accuracies

  double scale = 1;                                        ///< of the schedule, now
  double best = std::numeric_limits<double>::quiet_NaN();  ///< NaN: nothing yet
  std::int64_t tries = 0;                                  ///< in a row that were no better
  std::int64_t cooling = 0;                                ///< what is left of the cooldown

  /// Whether the rate falls now. A number that is not finite is never better. Throws UsageError for a factor that is
  /// not between 0 and 1, which it may not be.
  bool report(double number) {
    if (!(factor > 0 && factor < 1)) {
      throw UsageError("[nn::Plateau] the factor is " + general_text(factor, 6) + ": one between 0 and 1 is wanted");
    }
    const double gain = absolute ? threshold : threshold * std::abs(best);
    const bool first = best != best;
    if (std::isfinite(number) && (first || (higher ? number > best + gain : number < best - gain))) {
      best = number;
      tries = 0;
    } else {
      ++tries;
    }
    if (cooling > 0) {
      --cooling;
      tries = 0;
    }
    if (tries <= patience) return false;
    scale *= factor;
    cooling = cooldown;
    tries = 0;
    return true;
  }
  double rate(std::int64_t step) const {
    const double full = lr(step);
    return std::min(full, std::max(least, scale * full));
  }
  operator Schedule() const& {  // NOLINT: .lr = plateau
    return [this](std::int64_t step) { return rate(step); };
  }
  operator Schedule() const&& = delete;  // nobody could report to it
};

}  // namespace sluice::nn
