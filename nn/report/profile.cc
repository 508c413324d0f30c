#include "sluice/nn/report/profile.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/number_text.h"
#include "sluice/ndarray/interpreter.h"
#include "sluice/ndarray/nd_array.h"
#include "sluice/operators/infer.h"

namespace sluice::nn {
namespace {

using Clock = std::chrono::steady_clock;

/// Adds up what calls ask for, by layer.
class Costs final : public Interpreter {
 public:
  void apply(Call& call, Next next) override {
    const Cost cost = cost_of(call);
    {
      const std::lock_guard lock(mutex_);
      Cost& sum = by_layer_[call.layer()];
      sum.flops += cost.flops;
      sum.bytes += cost.bytes;
    }
    next(call);
  }
  std::map<std::string, Cost> take() {
    const std::lock_guard lock(mutex_);
    return std::move(by_layer_);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Cost> by_layer_;
};

/// What failed is not the profile's to say.
void wait_all() {
  try {
    default_engine().wait_all();
  } catch (const Error&) {
  }
}

std::int64_t nanoseconds_of(const TraceEvent& event) {
  if (event.device_end > event.device_start) return event.device_end - event.device_start;
  return event.end - event.start;
}

/// At the right of a column.
std::string column(const std::string& text, std::size_t width) {
  return std::string(2 + (text.size() < width ? width - text.size() : 0), ' ') + text;
}

std::string line_of(const LayerProfile& row, double all, std::size_t width) {
  const double seconds = row.milliseconds / 1e3;
  return row.layer + std::string(width - row.layer.size(), ' ') + column(fixed_text(row.milliseconds, 3), 10) +
         column(fixed_text(all > 0 ? 100 * row.milliseconds / all : 0, 1), 5) +
         column(fixed_text(row.operations, 1), 8) + column(fixed_text(row.flops / 1e6, 3), 12) +
         column(fixed_text(row.bytes / 1e6, 3), 10) +
         column(fixed_text(seconds > 0 ? row.bytes / seconds / 1e9 : 0, 1), 8) + "\n";
}

}  // namespace

struct Profile::State {
  explicit State(ProfileOptions with) : options(with) {}
  const ProfileOptions options;
  std::int64_t begun = 0;  ///< steps
  Clock::time_point begin;
  std::shared_ptr<Costs> costs;
  std::optional<InterpreterScope> scope;
  std::vector<LayerProfile> layers;
  double step_milliseconds = 0;
  bool done = false;

  void start() {
    wait_all();
    default_engine().stop_trace();  // one that was on has other steps
    default_engine().start_trace();
    costs = std::make_shared<Costs>();
    scope.emplace(costs);
    begin = Clock::now();
  }
  void stop();
};

void Profile::State::stop() {
  scope.reset();
  wait_all();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const auto events = default_engine().stop_trace();
  const auto n = static_cast<double>(options.steps);
  std::map<std::string, LayerProfile> by_layer;
  for (const TraceEvent& event : events) {
    LayerProfile& row = by_layer[event.layer];
    row.milliseconds += static_cast<double>(nanoseconds_of(event)) / 1e6;
    row.operations += 1;
  }
  for (const auto& [layer, cost] : costs->take()) {
    by_layer[layer].flops = cost.flops / n;
    by_layer[layer].bytes = cost.bytes / n;
  }
  for (auto& [layer, row] : by_layer) {
    row.layer = layer;
    row.milliseconds /= n;
    row.operations /= n;
    layers.push_back(row);
  }
  std::sort(layers.begin(), layers.end(), [](const LayerProfile& a, const LayerProfile& b) {
    return a.milliseconds != b.milliseconds ? a.milliseconds > b.milliseconds : a.layer < b.layer;
  });
  step_milliseconds = seconds * 1e3 / n;
  costs.reset();
  done = true;
}

Profile::Profile(bool on, ProfileOptions options) {
  if (options.skip < 0 || options.steps < 1) {
    throw UsageError("[nn::Profile] skip " + std::to_string(options.skip) + ", steps " + std::to_string(options.steps));
  }
  if (on) state_ = std::make_unique<State>(options);
}

Profile::~Profile() {
  if (!state_ || !state_->scope) return;
  state_->scope.reset();
  default_engine().stop_trace();
}

void Profile::step() {
  if (!state_ || done()) return;
  if (state_->begun == state_->options.skip) state_->start();
  if (state_->begun == state_->options.skip + state_->options.steps) state_->stop();
  ++state_->begun;
}

bool Profile::done() const { return state_ && state_->done; }

const std::vector<LayerProfile>& Profile::layers() const {
  const std::vector<LayerProfile>& none = sluice::detail::first_use([] { return new std::vector<LayerProfile>; });
  return state_ ? state_->layers : none;
}

double Profile::step_milliseconds() const { return state_ ? state_->step_milliseconds : 0; }

std::string Profile::table() const {
  if (!state_) return {};
  if (!done()) {
    return "no profile: it takes " + std::to_string(state_->options.skip + state_->options.steps) + " steps, and " +
           std::to_string(std::max<std::int64_t>(1, state_->begun) - 1) + " were made\n";
  }
  double all = 0;
  std::size_t width = 16;
  for (const LayerProfile& row : layers()) all += row.milliseconds;
  LayerProfile others{.layer = "(others)"}, sum{.layer = "(all)"};
  std::vector<LayerProfile> rows;
  for (LayerProfile row : layers()) {
    for (LayerProfile* into : {&sum, row.milliseconds < all / 100 ? &others : nullptr}) {
      if (!into) continue;
      into->milliseconds += row.milliseconds;
      into->operations += row.operations;
      into->flops += row.flops;
      into->bytes += row.bytes;
    }
    if (row.milliseconds < all / 100) continue;
    if (row.layer.empty()) row.layer = "(no layer)";
    rows.push_back(row);
  }
  if (others.operations > 0) rows.push_back(others);
  rows.push_back(sum);
  for (const LayerProfile& row : rows) width = std::max(width, row.layer.size());
  std::string text = "layer" + std::string(width - 5, ' ') + column("ms/step", 10) + column("%", 5) +
                     column("ops/step", 8) + column("Mflop/step", 12) + column("MB/step", 10) + column("GB/s", 8) +
                     "\n";
  for (const LayerProfile& row : rows) text += line_of(row, all, width);
  return text + "a step takes " + fixed_text(step_milliseconds(), 3) + " ms; the times above are added over threads (" +
         std::to_string(state_->options.steps) + " steps)\n";
}

}  // namespace sluice::nn
