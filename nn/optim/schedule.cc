#include "sluice/nn/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include "sluice/engine/errors.h"
#include "sluice/engine/number_text.h"

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

/// From `begin` to `end` along half a cosine, of which `part` is over.
double half_cosine(double begin, double end, double part) {
  return end + (begin - end) * 0.5 * (1 + std::cos(std::numbers::pi * part));
}

}  // namespace

Schedule linear(double begin, double end, std::int64_t steps) {
  require_steps("linear", steps);
  return [=](std::int64_t step) { return begin + (end - begin) * part(step, steps); };
}

Schedule cosine(double peak, std::int64_t steps, double floor) {
  require_steps("cosine", steps);
  return [=](std::int64_t step) { return half_cosine(peak, floor, part(step, steps)); };
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
  return [=](std::int64_t step) { return after(step) * part(std::min(step, steps) + 1, steps); };
}

Schedule warmup_cosine(double peak, std::int64_t warm, std::int64_t total, double floor) {
  require_steps("warmup_cosine", warm);
  require_steps("warmup_cosine", total - warm);
  return [=, down = cosine(peak, total - warm, floor)](std::int64_t step) {
    return step < warm ? peak * part(step + 1, warm) : down(step - warm);
  };
}

Schedule polynomial(double begin, double end, std::int64_t steps, double power) {
  require_steps("polynomial", steps);
  if (!(power > 0)) {
    throw UsageError("[nn::polynomial] the power is " + general_text(power, 6) + ": one above 0 is wanted");
  }
  return [=](std::int64_t step) { return end + (begin - end) * std::pow(1 - part(step, steps), power); };
}

Schedule restarts(double peak, std::int64_t first, std::int64_t times, double floor) {
  require_steps("restarts", first);
  if (times < 1) {
    throw UsageError("[nn::restarts] periods grow " + std::to_string(times) + " times: at least 1 is wanted");
  }
  return [=](std::int64_t step) {
    std::int64_t period = first, at = std::max<std::int64_t>(0, step);
    if (times == 1) at %= period;
    while (at >= period) {
      at -= period;
      if (period > std::numeric_limits<std::int64_t>::max() / times) break;  // it has no end
      period *= times;
    }
    return half_cosine(peak, floor, part(at, period));
  };
}

Schedule one_cycle(double peak, std::int64_t total, const OneCycle& options) {
  require_steps("one_cycle", total);
  const auto [warm, divide, divide_end] = options;
  if (!(warm >= 0 && warm <= 1)) {
    throw UsageError("[nn::one_cycle] warm is " + general_text(warm, 6) + ": a part of the steps, 0 to 1, is wanted");
  }
  if (!(divide > 0 && divide_end > 0)) {
    throw UsageError("[nn::one_cycle] the divisors are " + general_text(divide, 6) + " and " +
                     general_text(divide_end, 6) + ": numbers above 0 are wanted");
  }
  const double last = static_cast<double>(total - 1);
  const double top = std::clamp(warm * static_cast<double>(total) - 1, 0.0, last);
  const double begin = peak / divide, end = begin / divide_end;
  return [=](std::int64_t step) {
    const double at = std::clamp(static_cast<double>(step), 0.0, last);
    if (at < top) return half_cosine(begin, peak, at / top);
    return at == top ? peak : half_cosine(peak, end, (at - top) / (last - top));
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
