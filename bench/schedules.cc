// Pipeline schedules beside each other. Three programs in one:
//   bench_schedules run [ROUNDS] [MICROBATCHES]   the quickstart's network in two stages on two devices: ten chained
//                                                 steps of each schedule in turns, beside what the simulator says
//   bench_schedules simulate [SEEDS]              8 devices, 32 microbatches, F = I = W: step times on paper
//   bench_schedules cluster [SCHEDULE]            64 replicas x 8 shards x 20 stages, 64 microbatches: how long it
//   takes
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "sluice/sluice.h"

using namespace sluice;
using parallel::ActionKind, parallel::Schedule, parallel::StageCost;
using Clock = std::chrono::steady_clock;

namespace {

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double at(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

// ---- measured

parallel::Pipeline make_net() {
  RandomStream random(1);
  const ConvOptions with_relu{.relu = true};
  const auto lower = std::make_shared<Sequential>(Sequential{Conv2d(1, 32, 3, random, with_relu), MaxPool2d(2),
                                                             Conv2d(32, 32, 3, random, {.padding = 1, .relu = true})});
  const auto upper =
      std::make_shared<Sequential>(Sequential{Conv2d(32, 64, 3, random, with_relu), MaxPool2d(2), Flatten(),
                                              Linear(1600, 128, random, {.relu = true}), Linear(128, 10, random)});
  return parallel::Pipeline{{lower, cpu(0)}, {upper, cpu(1)}};
}

/// Steps one after the other without a wait between them, as one schedule.
Schedule chain(const Schedule& step, int steps) {
  Schedule all = step;
  all.microbatches *= steps;
  for (auto& list : all.per_device) {
    const std::vector<parallel::Action> once = list;
    for (int i = 1; i < steps; ++i) {
      for (parallel::Action a : once) {
        a.microbatch += i * step.microbatches;
        list.push_back(a);
      }
    }
  }
  return all;
}

struct Side {
  std::string name;
  Schedule schedule;
  std::vector<double> seconds = {}, ratios = {};
  std::vector<StageCost> costs = std::vector<StageCost>(2);
  double bubble = 0;
  int traced = 0;
};

void run(int rounds, int microbatches) {
  constexpr int kSteps = 10, kRowsOfAMicrobatch = 16;
  Engine engine({.threads = 2, .logical_cpus = 2});
  set_default_engine(&engine);
  {
    parallel::Pipeline net = make_net();
    RandomStream random(2);
    const std::int64_t rows = microbatches * kRowsOfAMicrobatch;
    const NDArray x = normal({rows, 1, 28, 28}, random);
    std::vector<std::int64_t> labels;
    for (std::int64_t i = 0; i < rows; ++i) labels.push_back(i % 10);
    const NDArray y = from(labels, {rows});
    std::vector<Side> sides;
    for (const char* name : {"1f1b", "gpipe", "zb-h1", "zb-h2"}) {
      sides.push_back({.name = name, .schedule = parallel::make_schedule(name, 2, microbatches)});
    }
    const auto step = [&](const Side& side) {
      return net.step(x, y, {.microbatches = microbatches, .schedule = side.schedule});
    };
    for (int round = -1; round < rounds; ++round) {
      for (Side& side : sides) {
        const auto start = Clock::now();
        for (int i = 0; i < kSteps; ++i) step(side);
        engine.wait_all();
        const double took = seconds_since(start);
        // One step with a trace tells what its actions cost; a trace costs something itself.
        engine.start_trace();
        step(side);
        engine.wait_all();
        const std::vector<parallel::TimelineBox> boxes = net.boxes(engine.stop_trace(), net.step_number());
        for (const NamedParameter& p : net.parameters()) p.value->zero_grad();
        engine.wait_all();
        if (round < 0) continue;  // warming up
        side.seconds.push_back(took / kSteps);
        side.ratios.push_back(sides[0].seconds.back() / side.seconds.back());
        const parallel::TimelineFigures figures = parallel::measure(boxes, 2);
        side.bubble += figures.bubble;
        ++side.traced;
        for (std::size_t s = 0; s < 2; ++s) {
          for (int k = 0; k < parallel::kActionKinds; ++k) {
            side.costs[s].of(static_cast<ActionKind>(k)) += figures.mean[s].of(static_cast<ActionKind>(k));
          }
        }
      }
    }
    std::printf("two stages, %d microbatches of %d rows, %d steps, %d rounds in turns; medians and quartiles\n",
                microbatches, kRowsOfAMicrobatch, kSteps, rounds);
    std::printf("schedule   ms a step                speed / 1F1B         simulated   bubble   simulated\n");
    double base = 0;
    for (Side& side : sides) {
      for (StageCost& cost : side.costs) {
        for (int k = 0; k < parallel::kActionKinds; ++k) cost.of(static_cast<ActionKind>(k)) /= side.traced;
      }
      const parallel::Simulation simulated = parallel::simulate(side.schedule, side.costs);
      const double chained = parallel::simulate(chain(side.schedule, kSteps), side.costs).span / kSteps;
      if (base == 0) base = chained;
      std::printf("%-8s %7.2f (%.2f to %.2f)   %.3f (%.3f to %.3f)   %.3f   %5.1f %%   %5.1f %%\n", side.name.c_str(),
                  1e3 * at(side.seconds, 0.5), 1e3 * at(side.seconds, 0.25), 1e3 * at(side.seconds, 0.75),
                  at(side.ratios, 0.5), at(side.ratios, 0.25), at(side.ratios, 0.75), base / chained,
                  100 * side.bubble / side.traced, 100 * simulated.bubble);
    }
  }
  set_default_engine(nullptr);
}

// ---- on paper

void simulate(int seeds) {
  constexpr int kDevices = 8, kMicrobatches = 32;
  struct Row {
    const char* name;
    int chunks;
  };
  std::printf(
      "%d devices, %d microbatches, F = I = W = 1 of a device's share; means of %d seeds; bytes of the fullest\n"
      "device where what is saved and what is kept weigh 1\n",
      kDevices, kMicrobatches, seeds);
  std::printf("schedule         bytes   latency 0: none, uniform, normal 30 %%    latency 0.2\n");
  for (const Row& row : {Row{"1f1b", 1},
                         {"interleaved:2", 2},
                         {"zb-h1", 1},
                         {"zbv", 2},
                         {"dynamic:8,8", 1},
                         {"dynamic-v", 2},
                         {"zb-h2", 1},
                         {"dynamic:15,15", 1},
                         {"dynamic-v:31,31", 2}}) {
    const Schedule schedule = parallel::make_schedule(row.name, kDevices * row.chunks, kMicrobatches);
    const double share = 1.0 / row.chunks;
    const std::vector<StageCost> costs(static_cast<std::size_t>(schedule.stages),
                                       parallel::cost_of_halves(share, share, share));
    const std::vector<parallel::StageBytes> bytes(costs.size(), {.saved = share, .kept = share});
    double most = 0;
    for (const parallel::PeakBytes& peak : parallel::peak_bytes(schedule, bytes)) most = std::max(most, peak.bytes);
    std::printf("%-16s %5.1f", row.name, most);
    for (const double latency : {0.0, 0.2}) {
      std::printf("  ");
      for (int kind = 0; kind < 3; ++kind) {
        double sum = 0;
        const int runs = kind == 0 ? 1 : seeds;
        for (int seed = 0; seed < runs; ++seed) {
          const parallel::Jitter jitter{static_cast<parallel::Jitter::Kind>(kind), 0.3,
                                        static_cast<std::uint64_t>(seed)};
          sum += parallel::simulate(schedule, costs, {.link = {.latency = latency}, .jitter = jitter}).span;
        }
        std::printf(" %8.2f", sum / runs);
      }
    }
    std::printf("\n");
  }
}

void cluster(const char* name) {
  const auto start = Clock::now();
  const Schedule schedule = parallel::make_schedule(name, 20, 64);
  const std::vector<StageCost> costs(20, parallel::cost_of_halves(0.01, 0.01, 0.01));
  const parallel::ClusterTimes times =
      parallel::simulate_cluster(schedule, costs,
                                 {.replicas = 64,
                                  .shards = 8,
                                  .shard_link = {.latency = 1e-6, .bandwidth = 400e9},
                                  .shard_bytes = 1e8,
                                  .stage_link = {.latency = 5e-6, .bandwidth = 50e9},
                                  .output_bytes = 1e7,
                                  .replica_link = {.latency = 1e-5, .bandwidth = 50e9},
                                  .gradient_bytes = 1e9,
                                  .devices_of_a_link = 8,
                                  .jitter = {.kind = parallel::Jitter::Kind::normal, .amount = 0.05, .seed = 1}});
  const double took = seconds_since(start);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("%s: %lld devices, %lld tasks; a step takes %.3f s, bubble %.1f %%. Simulated in %.1f s and %ld MiB\n",
              name, static_cast<long long>(times.devices), static_cast<long long>(times.tasks), times.span,
              100 * times.bubble, took, usage.ru_maxrss / 1024);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string what = argc > 1 ? argv[1] : "";
  const auto number = [&](int i, int otherwise) { return argc > i ? std::max(1, std::atoi(argv[i])) : otherwise; };
  if (what == "run") {
    run(number(2, 15), number(3, 8));
  } else if (what == "simulate") {
    simulate(number(2, 100));
  } else if (what == "cluster") {
    cluster(argc > 2 ? argv[2] : "zb-h1");
  } else {
    std::fprintf(stderr,
                 "usage: bench_schedules run [ROUNDS] [MICROBATCHES] | simulate [SEEDS] | cluster [SCHEDULE]\n");
    return 2;
  }
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "bench_schedules: %s\n", e.what());
  return 1;
}
