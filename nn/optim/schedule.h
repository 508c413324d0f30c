// Learning rates and other numbers of a rule as functions of the step.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace sluice::nn {

/// A number, or a function of the step (Optimizer::steps(), from 0): .lr = 0.1, .lr = nn::cosine(0.1, 1000),
/// .lr = [](std::int64_t step) { return ...; }. Nothing has to be told about steps, and nothing of it is in a file.
class Schedule {
 public:
  Schedule(double value) : f_([value](std::int64_t) { return value; }) {}  // NOLINT: .lr = 0.1
  template <class F>
  requires(std::is_invocable_r_v<double, const F&, std::int64_t> && !std::same_as<F, Schedule>) Schedule(F function)
      : f_(std::move(function)) {}  // NOLINT: .lr = nn::cosine(0.1, 1000)
  double operator()(std::int64_t step) const { return f_(step); }

 private:
  std::function<double(std::int64_t)> f_;
};

// Steps outside of the range that a schedule speaks of have its nearest value. Each throws UsageError for a number of
// steps that is not above 0.

/// From `begin` to `end` in equal steps: `begin` at step 0, `end` from step `steps` on.
Schedule linear(double begin, double end, std::int64_t steps);
/// From `peak` at step 0 to `floor` from step `steps` on, along half a cosine (Loshchilov and Hutter, SGDR, 2016).
Schedule cosine(double peak, std::int64_t steps, double floor = 0);
/// begin * factor^(step / every), by whole numbers of `every`.
Schedule step_decay(double begin, double factor, std::int64_t every);
/// begin * factor^step.
Schedule exponential(double begin, double factor);
/// `after`, whose first `steps` values are scaled by (step + 1) / steps. Its own step goes on meanwhile.
Schedule warmup(std::int64_t steps, Schedule after);
/// peak (step + 1) / warm for `warm` steps, then half a cosine down to `floor` at step `total`.
Schedule warmup_cosine(double peak, std::int64_t warm, std::int64_t total, double floor = 0);
/// end + (begin - end) (1 - step / steps)^power: from `begin` at step 0 to `end` from step `steps` on. With an
/// `end` of 0 it is PyTorch's PolynomialLR. Throws UsageError also for a power that is not above 0.
Schedule polynomial(double begin, double end, std::int64_t steps, double power);
/// Half cosines from `peak` to `floor`, each begun anew at the peak: the first takes `first` steps, each later one
/// `times` as many as the one before it (Loshchilov and Hutter, SGDR, 2016; PyTorch's CosineAnnealingWarmRestarts).
/// Throws UsageError also for `times` below 1.
Schedule restarts(double peak, std::int64_t first, std::int64_t times = 1, double floor = 0);
struct OneCycle {
  double warm = 0.3;        ///< the part of the steps in which the rate grows
  double divide = 25;       ///< it begins at peak / divide,
  double divide_end = 1e4;  ///< and ends at a divide_end-th of that
};
/// Up to `peak` along half a cosine, and down along another, to the end at step `total` - 1 (Smith and Topin,
/// Super-convergence, 2017; the rates of PyTorch's OneCycleLR, which turns momentum round too: here it stays). The peak
/// is at step warm total - 1, and at step 0 where that is not above 0. Throws UsageError also for a `warm` outside of
/// [0, 1] and divisors that are not above 0.
Schedule one_cycle(double peak, std::int64_t total, const OneCycle& options = {});
struct SchedulePart {
  Schedule schedule;
  std::int64_t steps;  ///< how long it lasts; the last part lasts for ever, whatever it says
};
/// One after the other; each begins at its own step 0.
Schedule join(std::vector<SchedulePart> parts);

}  // namespace sluice::nn
