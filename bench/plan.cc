// The planner's predictions beside measured throughput, for the quickstart's network on two cores.
//   bench_plan [ROUNDS] [BATCH]
// Ten configurations in turns: one and two devices, several cuts, schedules and microbatches, a free order among them;
// and an eleventh of four devices, which share the two cores. In each round the layers are measured (parallel/plan.h),
// and each configuration trains some steps, as the quickstart does, with SGD behind its gate. It prints the prediction
// from the medians of the layers' times, the median throughput with its quartiles, and the error; then what was
// measured. 15 rounds take a minute.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "quickstart.h"

using namespace sluice;
using Clock = std::chrono::steady_clock;

namespace {

double at(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

/// Devices with an engine of their own, and what the layers cost there.
struct Machine {
  explicit Machine(int count, std::int64_t rows) : engine({.threads = 2, .logical_cpus = count}) {
    set_default_engine(&engine);
    for (int i = 0; i < count; ++i) devices.push_back(cpu(i));
    net = bench::quickstart_net();
    std::tie(x, y) = bench::quickstart_batch(rows, 1);
  }
  void measure(const std::vector<std::int64_t>& sizes) {
    set_default_engine(&engine);
    rounds.push_back(parallel::measure_layers(net, {x, y}, devices,
                                              {.rows = sizes, .rounds = 3, .optimizer = bench::quickstart_sgd()}));
  }
  /// With the medians of all rounds.
  parallel::Measured medians() const {
    parallel::Measured all = rounds.front();
    const auto median = [&](auto&& of) {
      std::vector<double> values;
      for (const parallel::Measured& round : rounds) values.push_back(of(round));
      return at(values, 0.5);
    };
    for (std::size_t l = 0; l < all.layers.size(); ++l) {
      parallel::LayerCost& layer = all.layers[l];
      layer.step = median([&](const auto& r) { return r.layers[l].step; });
      for (std::size_t i = 0; i < layer.samples.size(); ++i) {
        for (double parallel::LayerSample::*figure :
             {&parallel::LayerSample::forward, &parallel::LayerSample::input_gradient,
              &parallel::LayerSample::weight_gradient}) {
          layer.samples[i].*figure = median([&](const auto& r) { return r.layers[l].samples[i].*figure; });
        }
      }
    }
    all.link.latency = median([](const auto& r) { return r.link.latency; });
    all.link.bandwidth = median([](const auto& r) { return r.link.bandwidth; });
    return all;
  }

  Engine engine;
  std::vector<Device> devices;
  nn::Sequential net;
  NDArray x, y;
  std::vector<parallel::Measured> rounds;
};

struct Side {
  Machine& machine;
  parallel::Candidate candidate;
  nn::Sequential net = {};
  std::optional<nn::Optimizer> optimizer = {};
  std::optional<parallel::Pipeline> pipeline = {};
  std::vector<double> throughput = {}, pushing = {};
  double peak = 0;
};

void make(Side& side) {
  set_default_engine(&side.machine.engine);
  side.net = bench::quickstart_net();
  side.optimizer.emplace(side.net, bench::quickstart_sgd());
  side.pipeline.emplace(side.net, side.machine.x.spec(),
                        parallel::pipeline_options(side.candidate, side.machine.devices));
}

void train(Side& side, int steps, bool counts) {
  Engine& engine = side.machine.engine;
  set_default_engine(&engine);
  const parallel::Schedule schedule = side.candidate.make();
  const auto start = Clock::now();
  double pushing = 0;
  for (int i = 0; i < steps; ++i) {
    const auto before = Clock::now();
    side.pipeline->step(side.machine.x, side.machine.y,
                        {.microbatches = schedule.microbatches, .schedule = schedule, .optimizer = &*side.optimizer});
    pushing += std::chrono::duration<double>(Clock::now() - before).count();
  }
  engine.wait_all();
  const double took = std::chrono::duration<double>(Clock::now() - start).count();
  if (!counts) return;
  side.throughput.push_back(static_cast<double>(side.machine.x.size(0)) * steps / took);
  side.pushing.push_back(pushing / steps);
}

void run(int rounds, std::int64_t rows) {
  Machine one(1, rows), two(2, rows), four(4, rows);
  const auto cut = [](std::string schedule, int microbatches, std::vector<int> first_layer) {
    parallel::Candidate c{.schedule = std::move(schedule), .microbatches = microbatches, .first_layer = first_layer};
    c.recompute.assign(first_layer.size(), false);
    return c;
  };
  std::vector<Side> sides;
  sides.push_back({one, cut("1f1b", 4, {0})});
  sides.push_back({two, cut("1f1b", 8, {0, 3})});
  sides.push_back({two, cut("1f1b", 4, {0, 2})});
  sides.push_back({two, cut("1f1b", 32, {0, 3})});
  sides.push_back({two, cut("gpipe", 8, {0, 4})});
  sides.push_back({two, cut("zb-h1", 8, {0, 3})});
  sides.push_back({two, cut("zb-h2", 16, {0, 3})});
  sides.push_back({two, cut("dynamic", 8, {0, 3})});
  sides.push_back({two, cut("interleaved:2", 8, {0, 2, 3, 4})});
  sides.push_back({two, cut("zbv", 16, {0, 3, 4, 6})});
  sides.push_back({four, cut("1f1b", 16, {0, 2, 3, 4})});
  std::map<Machine*, std::vector<std::int64_t>> sizes;
  for (Side& side : sides) {
    make(side);
    sizes[&side.machine].push_back(rows / side.candidate.microbatches);
  }
  for (auto& [machine, list] : sizes) {
    std::ranges::sort(list);
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  constexpr int kSteps = 8;
  for (int round = -1; round < rounds; ++round) {
    for (auto& [machine, list] : sizes) machine->measure(list);
    if (round < 0) one.rounds.clear(), two.rounds.clear(), four.rounds.clear();  // warming up
    for (Side& side : sides) train(side, kSteps, round >= 0);
  }
  std::printf("batch %lld, %d steps of each, %d rounds in turns; rows a second, medians and quartiles\n",
              static_cast<long long>(rows), kSteps, rounds);
  std::printf(
      "devices  schedule          m  cut                  predicted  measured                    error   "
      "pushing   ms\n");
  double worst = 0;
  for (Side& side : sides) {
    const parallel::Measured measured = side.machine.medians();
    const auto devices = static_cast<int>(side.machine.devices.size());
    const parallel::Candidate predicted = parallel::time_cut(
        measured.layers,
        {.devices = devices, .rows = rows, .link = measured.link, .link_takes_cores = true, .cores = measured.cores},
        side.candidate.schedule, side.candidate.microbatches, side.candidate.first_layer);
    const double median = at(side.throughput, 0.5), error = predicted.throughput / median - 1;
    if (devices <= 2) worst = std::max(worst, std::abs(error));
    std::printf("%7d  %-14s %4d  %-20s %9.0f  %8.0f (%6.0f to %6.0f)  %6.1f %%   %5.2f  %5.2f\n", devices,
                predicted.schedule.c_str(), predicted.microbatches,
                cut_to_text(predicted, static_cast<int>(measured.layers.size())).c_str(), predicted.throughput, median,
                at(side.throughput, 0.25), at(side.throughput, 0.75), 100 * error, 1e3 * at(side.pushing, 0.5),
                1e3 * static_cast<double>(rows) / median);
  }
  std::printf("the largest error of the ten: %.1f %%\n", 100 * worst);
  for (Side& side : sides) {
    set_default_engine(&side.machine.engine);
    side.pipeline.reset(), side.optimizer.reset(), side.net = {};
  }
  const parallel::Measured m = two.medians();
  std::printf("link %.1f us, %.2f GB/s\n", 1e6 * m.link.latency, 1e-9 * m.link.bandwidth);
  for (const parallel::LayerCost& layer : m.layers) {
    std::printf("%-14s", layer.name.c_str());
    for (const parallel::LayerSample& s : layer.samples) {
      std::printf("  %4.0f: %6.1f %6.1f %6.1f", s.rows, 1e6 * s.forward, 1e6 * s.input_gradient,
                  1e6 * s.weight_gradient);
    }
    std::printf("  step %.1f, push %.1f\n", 1e6 * layer.step, 1e6 * layer.push);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const auto number = [&](int i, int otherwise) { return argc > i ? std::max(1, std::atoi(argv[i])) : otherwise; };
  run(number(1, 15), number(2, 128));
  set_default_engine(nullptr);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "bench_plan: %s\n", e.what());
  return 1;
}
