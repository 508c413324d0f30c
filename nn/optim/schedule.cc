#include "sluice/nn/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "sluice/engine/errors.h"

namespace sluice::nn {
namespace {

void require_steps(const char* function, std::int64_t steps) {
  if (steps > 0) return;
  throw UsageError("[nn::" + std::string(function) + "] " + std::to_string(steps) + " steps: at least 1 is wanted");
}

/// How much of `steps` is over.
double part(std::int64_t step, std::int64_t steps) {
  return static_cast<double>(std::clamp<std::int64_t>(step, 0, steps)) / static_cast<double>(steps);
}

}  // namespace

Schedule linear(double begin, double end, std::int64_t steps) {
  require_steps("linear", steps);
  return [=](std::int64_t step) { return begin + (end - begin) * part(step, steps); };
}

Schedule cosine(double peak, std::int64_t steps, double floor) {
  require_steps("cosine", steps);
  return [=](std::int64_t step) {
    return floor + (peak - floor) * 0.5 * (1 + std::cos(std::numbers::pi * part(step, steps)));
  };
}

Schedule step_decay(double begin, double factor, std::int64_t every) {
  require_steps("step_decay", every);
  return [=](std::int64_t step) {
    return begin * std::pow(factor, static_cast<double>(std::max<std::int64_t>(0, step) / every));
  };
}

Schedule exponential(double begin, double factor) { return step_decay(begin, factor, 1); }

Schedule warmup(std::int64_t steps, Schedule after) {
  require_steps("warmup", steps);
  return [=](std::int64_t step) { return after(step) * part(step + 1, steps); };
}

Schedule warmup_cosine(double peak, std::int64_t warm, std::int64_t total, double floor) {
  require_steps("warmup_cosine", warm);
  require_steps("warmup_cosine", total - warm);
  return [=, down = cosine(peak, total - warm, floor)](std::int64_t step) {
    return step < warm ? peak * part(step + 1, warm) : down(step - warm);
  };
}

Schedule join(std::vector<SchedulePart> parts) {
  if (parts.empty()) throw UsageError("[nn::join] no schedules");
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) require_steps("join", parts[i].steps);
  return [parts = std::move(parts)](std::int64_t step) {
    std::size_t i = 0;
    for (; i + 1 < parts.size() && step >= parts[i].steps; ++i) step -= parts[i].steps;
    return parts[i].schedule(step);
  };
}

}  // namespace sluice::nn
