// Pipeline schedules measured, beside what the simulator says: the quickstart's network in two stages on two devices.
//   bench_schedule_runs [ROUNDS] [MICROBATCHES]
// The first table has chained steps without an optimiser. The second has what a step of the weights costs: one
// optimiser whose gate waits for all gradients, the same behind a global clipping, and a step of each stage's own (U).
// All sides take turns.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "quickstart.h"

using namespace sluice;
using parallel::ActionKind, parallel::Schedule, parallel::StageCost;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int kSteps = 10, kRowsOfAMicrobatch = 16, kStages = 2;

double at(std::vector<double> values, double share) {
  if (values.empty()) throw std::runtime_error("too few rounds");
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

/// How long an action waited for what its neighbour computed, although its device had nothing else to do: from the end
/// of the neighbour's action to its start. A gradient comes before the end of a whole backward pass; that is negative.
struct Waits {
  std::vector<double> output = {}, gradient = {};
};

/// Of the boxes of a step.
void add_waits(std::vector<parallel::TimelineBox> boxes, Waits& waits) {
  std::ranges::sort(boxes, {}, &parallel::TimelineBox::start);
  double last[kStages] = {-1, -1};  // the end of the device's action before
  for (const parallel::TimelineBox& box : boxes) {
    const bool forward = box.kind == ActionKind::forward;
    const auto sender = std::ranges::find_if(boxes, [&](const parallel::TimelineBox& b) {
      return b.microbatch == box.microbatch &&
             (forward ? b.stage == box.stage - 1 && b.kind == ActionKind::forward
                      : b.stage == box.stage + 1 && b.kind == ActionKind::backward && b.kind == box.kind);
    });
    const double before = std::exchange(last[box.stage], box.end);
    // What is sent in the middle of an action may have come while the device was busy.
    if (sender == boxes.end() || before > (forward ? sender->end : sender->start)) continue;
    (forward ? waits.output : waits.gradient).push_back(box.start - sender->end);
  }
}

/// How the weights step.
enum class Update { none, gate, clip, own };

struct Side {
  std::string name;
  Schedule schedule;
  Update update = Update::none;
  std::vector<double> seconds = {}, ratios = {}, pushing = {};
  std::vector<parallel::TimelineBox> boxes = {};  ///< of all traced steps
  Waits waits = {};
  double bubble = 0;
  double peak[kStages] = {};  ///< bytes
  int rounds = 0;
};

/// What actions took, and how far single ones strayed from that: medians, because on a shared machine some actions take
/// ten times as long. The deviation is that of a normal distribution with the same median distance from the median.
struct Costs {
  std::vector<StageCost> of = std::vector<StageCost>(kStages);
  double deviation = 0;
};

Costs costs_of(const std::vector<parallel::TimelineBox>& boxes) {
  Costs costs;
  std::vector<double> off;
  for (int s = 0; s < kStages; ++s) {
    for (int k = 0; k < parallel::kActionKinds; ++k) {
      std::vector<double> lengths;
      for (const parallel::TimelineBox& box : boxes) {
        if (box.stage == s && box.kind == static_cast<ActionKind>(k)) lengths.push_back(box.end - box.start);
      }
      if (lengths.empty()) continue;
      const double median = at(lengths, 0.5);
      costs.of[static_cast<std::size_t>(s)].of(static_cast<ActionKind>(k)) = median;
      for (const double length : lengths) off.push_back(std::abs(length / median - 1));
    }
  }
  costs.deviation = 1.48 * at(off, 0.5);
  return costs;
}

/// The share of the devices' time in which none of their actions ran. In a free order boxes of a device overlap.
double bubble_of(std::vector<parallel::TimelineBox> boxes) {
  std::ranges::sort(boxes, {}, &parallel::TimelineBox::start);
  double until[kStages] = {}, busy = 0, end = 0;
  for (const parallel::TimelineBox& box : boxes) {
    double& to = until[box.stage];
    busy += std::max(0.0, box.end - std::max(box.start, to));
    to = std::max(to, box.end);
    end = std::max(end, box.end);
  }
  return 1 - busy / (kStages * (end - boxes.front().start));
}

/// So many steps one behind the other. In a free order the rings of slots go on from step to step, and nothing else
/// tells steps apart.
Schedule chain(const Schedule& step, int steps) {
  if (step.fixed_order) return parallel::chained(step, steps);
  return parallel::make_schedule(step.name, step.stages, step.microbatches * steps);
}

/// The mean time of a step over seeds of the deviation that was measured.
double simulated(const Schedule& schedule, const Costs& costs, int steps, parallel::SimulateOptions options) {
  constexpr int kSeeds = 20;
  const Schedule all = chain(schedule, steps);
  const double amount = std::min(costs.deviation, 0.99);
  double sum = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    options.jitter = {parallel::Jitter::Kind::normal, amount, seed};
    sum += parallel::simulate(all, costs.of, options).span;
  }
  return sum / kSeeds / steps;
}

class Bench {
 public:
  explicit Bench(int microbatches)
      : microbatches_(microbatches),
        engine_({.threads = kStages, .logical_cpus = kStages}),
        net_((set_default_engine(&engine_), bench::quickstart_net())),
        sgd_(net_, bench::quickstart_sgd()),
        batch_(bench::quickstart_batch(microbatches * kRowsOfAMicrobatch, kStages)),
        pipeline_(net_, batch_.first.spec(), bench::quickstart_stages(kStages)) {}

  Side side(const std::string& name, Update update = Update::none) const {
    return {name, parallel::make_schedule(name, kStages, microbatches_), update};
  }

  /// Every side once, in turns, `rounds` times.
  void run(std::vector<Side>& sides, int rounds) {
    for (int round = -1; round < rounds; ++round) {
      for (Side& side : sides) {
        for (int s = 0; s < kStages; ++s) memory_pool(cpu(s)).reset_peak();
        std::size_t before[kStages];
        for (int s = 0; s < kStages; ++s) before[s] = memory_pool(cpu(s)).stats().in_use;
        const auto start = Clock::now();
        for (int i = 0; i < kSteps; ++i) step(side);
        const double pushing = std::chrono::duration<double>(Clock::now() - start).count() / kSteps;
        engine_.wait_all();
        const double seconds = std::chrono::duration<double>(Clock::now() - start).count() / kSteps;
        double peak[kStages];
        for (int s = 0; s < kStages; ++s) {
          peak[s] = static_cast<double>(memory_pool(cpu(s)).stats().peak - before[s]);
        }
        // Two steps with a trace tell what actions cost in the second; a trace costs something itself.
        engine_.start_trace();
        step(side);
        step(side);
        engine_.wait_all();
        const std::vector<parallel::TimelineBox> boxes = pipeline_.boxes(engine_.stop_trace(), pipeline_.step_number());
        sgd_.zero_grad();
        engine_.wait_all();
        if (round < 0) continue;  // warming up
        side.seconds.push_back(seconds);
        side.pushing.push_back(pushing);
        add_waits(boxes, side.waits);
        side.ratios.push_back(sides[0].seconds.back() / seconds);
        side.bubble += bubble_of(boxes);
        side.boxes.insert(side.boxes.end(), boxes.begin(), boxes.end());
        for (int s = 0; s < kStages; ++s) side.peak[s] = std::max(side.peak[s], peak[s]);
        ++side.rounds;
      }
    }
  }

  /// Seconds of a core that a thread takes to bring a stage's output to the other device.
  double copying() {
    const nn::Evaluation off;
    const nn::Stages functions = net_.stages();
    nn::Arrays outputs{batch_.first.narrow(0, 0, kRowsOfAMicrobatch)};
    for (int i = 0; i < pipeline_.functions(0).second; ++i) {
      outputs = functions.call(static_cast<std::size_t>(i), outputs);
    }
    NDArray value = outputs[0];
    std::vector<double> took;
    for (int round = 0; round < 9; ++round) {
      constexpr int kHops = 64;
      value.wait();
      const auto start = Clock::now();
      for (int i = 0; i < kHops; ++i) value = value.to(cpu(1 - i % 2));
      value.wait();
      took.push_back(std::chrono::duration<double>(Clock::now() - start).count() / kHops);
    }
    return at(took, 0.5);
  }

 private:
  void step(const Side& side) {
    parallel::PipelineStep options{.microbatches = microbatches_, .schedule = side.schedule};
    if (side.update != Update::none) options.optimizer = &sgd_;
    if (side.update == Update::clip) options.max_norm = 1;
    if (side.update == Update::own) options.gate = parallel::Gate::none;
    pipeline_.step(batch_.first, batch_.second, options);
  }

  int microbatches_;
  Engine engine_;
  nn::Sequential net_;
  nn::Optimizer sgd_;
  std::pair<NDArray, NDArray> batch_;
  parallel::Pipeline pipeline_;
};

std::string quartiles(const std::vector<double>& values, double scale, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f (%.*f to %.*f)", digits, scale * at(values, 0.5), digits,
                scale * at(values, 0.25), digits, scale * at(values, 0.75));
  return text;
}

void run(int rounds, int microbatches) {
  Bench bench(microbatches);
  std::printf("two stages, %d microbatches of %d rows, %d steps, %d rounds in turns; medians and quartiles\n",
              microbatches, kRowsOfAMicrobatch, kSteps, rounds);
  std::printf("%-10s %-24s %-24s %-10s %-14s %-8s %-9s %-16s %s\n", "schedule", "ms a step", "speed / 1F1B",
              "simulated", "actions alone", "bubble", "simulated", "peak, MiB", "an action's deviation");
  std::vector<Side> sides;
  for (const char* name : {"1f1b", "gpipe", "zb-h1", "zb-h2", "dynamic"}) sides.push_back(bench.side(name));
  bench.run(sides, rounds);
  // What a machine adds to the actions: two devices and the thread that pushes share two cores; transfers are copies,
  // and begin late where a thread has to wake up; and the gradient is sent before the end of a whole backward pass.
  const double copy = bench.copying(), hop = at(sides[0].waits.output, 0.5);
  const double whole = costs_of(sides[0].boxes).of[1].backward, ahead = hop - at(sides[0].waits.gradient, 0.5);
  const double share = std::clamp(1 - ahead / whole, 0.0, 1.0);
  std::printf("a copy %.0f us, from an output to its use %.0f us, a gradient sent after %.2f of B\n", 1e6 * copy,
              1e6 * hop, share);
  double base = 0, paper = 0;
  Costs costs;
  for (const Side& side : sides) {
    // In a free order operations of several actions alternate, so boxes do not say what an action costs: it is what the
    // same action costs in the schedule before, which has halves too.
    if (side.schedule.fixed_order) costs = costs_of(side.boxes);
    parallel::SimulateOptions machine;
    machine.cores = kStages;
    machine.push = at(side.pushing, 0.5) * kSteps;
    machine.link = {.latency = std::max(0.0, hop - copy), .bandwidth = 1 / copy};
    machine.link_takes_cores = true;
    machine.output_bytes = {1, 1};
    machine.gradient_share = {1, share};
    const double chained = simulated(side.schedule, costs, kSteps, machine);
    const double alone = simulated(side.schedule, costs, kSteps, {});
    if (base == 0) base = chained, paper = alone;
    machine.push /= kSteps;
    std::printf("%-10s %-24s %-24s %-10.3f %-14.3f %4.1f %%   %4.1f %%    %5.1f %5.1f      %4.1f %%\n",
                side.name.c_str(), quartiles(side.seconds, 1e3, 2).c_str(), quartiles(side.ratios, 1, 3).c_str(),
                base / chained, paper / alone, 100 * side.bubble / side.rounds,
                100 * parallel::simulate(side.schedule, costs.of, machine).bubble, side.peak[0] / (1 << 20),
                side.peak[1] / (1 << 20), 100 * costs.deviation);
  }
  std::printf("\n%-10s %-14s %-24s %s\n", "schedule", "weights step", "ms a step", "speed / 1F1B with the gate");
  std::vector<Side> updating;
  for (const char* name : {"1f1b", "zb-h1", "zb-h2", "dynamic"}) {
    for (const Update update : {Update::gate, Update::clip, Update::own}) updating.push_back(bench.side(name, update));
  }
  bench.run(updating, rounds);
  const char* const names[] = {"not", "gate", "clip, gate", "each stage"};
  for (const Side& side : updating) {
    std::printf("%-10s %-14s %-24s %s\n", side.name.c_str(), names[static_cast<int>(side.update)],
                quartiles(side.seconds, 1e3, 2).c_str(), quartiles(side.ratios, 1, 3).c_str());
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const auto number = [&](int i, int otherwise) { return argc > i ? std::max(1, std::atoi(argv[i])) : otherwise; };
  run(number(1, 15), number(2, 8));
  set_default_engine(nullptr);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "bench_schedule_runs: %s\n", e.what());
  return 1;
}
