// Pipeline schedules on paper (bench_schedule_runs measures them). Two programs in one:
//   bench_schedules simulate [SEEDS]     8 devices, 32 microbatches, F = I = W: step times
//   bench_schedules cluster [SCHEDULE]   64 replicas x 8 shards x 20 stages, 64 microbatches: how long it takes
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
  if (what == "simulate") {
    simulate(number(2, 100));
  } else if (what == "cluster") {
    cluster(argc > 2 ? argv[2] : "zb-h1");
  } else {
    std::fprintf(stderr, "usage: bench_schedules simulate [SEEDS] | cluster [SCHEDULE]\n");
    return 2;
  }
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "bench_schedules: %s\n", e.what());
  return 1;
}
