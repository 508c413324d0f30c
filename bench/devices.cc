// What a device with streams costs the host: a chain of ops whose bodies do nothing, on a CPU lane and on a lane of the
// null provider, in turns; and on the latter with a limit for silent devices, where each op has a point. The lane's
// part and the pusher's are timed apart: the first op holds the lane until all are pushed.
//
// And what the record of accesses (resources/testing/order_record.h) takes for each op of a program on two streams.
//
//   bench_devices [ROUNDS [OPS]]        [15 rounds, 100,000 ops]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/resources/providers/null.h"
#include "sluice/resources/testing/order_record.h"

namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point begin) { return std::chrono::duration<double, std::nano>(Clock::now() - begin).count(); }

struct Cost {
  double push = 0, lane = 0, end = 0;  ///< ns per op; `end`: from the first op's release to the end of the last
};

/// `variables`: 1 is one chain, more are as many chains in turns.
Cost chain(sluice::Engine& engine, sluice::Place place, int ops, int variables) {
  std::vector<sluice::Variable> v;
  for (int i = 0; i < variables; ++i) v.push_back(engine.variable());
  std::atomic<bool> go{false};
  Clock::time_point last;
  std::vector<sluice::Access> all;
  for (auto& x : v) all.push_back(sluice::update(x));
  engine.push(
      [&] {
        while (!go.load(std::memory_order_acquire)) {
        }
      },
      all, {.on = place});
  Cost cost;
  Clock::time_point begin = Clock::now();
  for (int i = 0; i < ops; ++i)
    engine.push([] {}, {sluice::update(v[static_cast<std::size_t>(i % variables)])}, {.on = place});
  cost.push = since(begin) / ops;
  engine.push([&last] { last = Clock::now(); }, all, {.on = place});
  begin = Clock::now();
  go.store(true, std::memory_order_release);
  engine.wait_all({.help = false});
  cost.end = since(begin) / ops;
  cost.lane = std::chrono::duration<double, std::nano>(last - begin).count() / ops;
  return cost;
}

/// ns for each op's part in the record: it reads one array and writes another, in turns on two streams, and each eighth
/// waits for the other stream. All is in order, so that nothing is reported.
double record(int ops) {
  constexpr int kArrays = 64;
  static std::vector<std::byte> memory(kArrays * 1024);
  bool reported = false;
  sluice::OrderRecord record([&](std::string) { reported = true; });
  std::atomic<std::uint64_t> reached[2] = {0, 0};
  const sluice::OrderRecord::Stream streams[2] = {record.add("a", &reached[0]), record.add("b", &reached[1])};
  for (int i = 0; i < kArrays; ++i) record.allocated(memory.data() + i * 1024, 1024);
  const sluice::OrderRecord::Caller caller{{1, 0}, {"op", std::source_location::current()}};
  std::uint64_t point = 0;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < ops; ++i) {
    const int s = i / 8 % 2;
    if (i % 8 == 0) {
      record.recorded(streams[1 - s], ++point);
      record.waits(streams[s], streams[1 - s], point);
    }
    const sluice::MemoryUse uses[] = {{memory.data() + i * 7 % kArrays * 1024, 1024, false},
                                      {memory.data() + (i * 7 + 1) % kArrays * 1024, 1024, true}};
    record.touches(streams[s], uses, caller);
  }
  const double cost = since(begin) / ops;
  if (reported) std::printf("the record reported accesses that are in order\n");
  return cost;
}

double median(std::vector<double> x, double at = 0.5) {
  std::sort(x.begin(), x.end());
  return x[static_cast<std::size_t>(at * static_cast<double>(x.size() - 1))];
}

}  // namespace

int main(int count, char** words) {
  const int rounds = count > 1 ? std::atoi(words[1]) : 15, ops = count > 2 ? std::atoi(words[2]) : 100'000;
  const auto options = [](std::chrono::nanoseconds limit) {
    return sluice::EngineOptions{.mode_given = true,
                                 .threads = 1,
                                 .providers = {sluice::null_devices(1)},
                                 .device_limit = limit,
                                 .max_ops = 1u << 18};
  };
  sluice::Engine engine(options({})), limited(options(std::chrono::seconds(100)));
  std::printf("%-10s %-8s %28s %28s %28s\n", "variables", "lane", "push, ns (quartiles)", "lane, ns (quartiles)",
              "until over, ns (quartiles)");
  for (const int variables : {1, 64}) {
    const sluice::Place places[] = {sluice::cpu(0), sluice::null(0), sluice::null(0)};
    std::vector<double> push[3], lane[3], end[3];
    for (int i = 0; i <= rounds; ++i)
      for (int k = 0; k < 3; ++k) {
        const Cost cost = chain(k == 2 ? limited : engine, places[k], ops, variables);
        if (i == 0) continue;  // warm
        push[k].push_back(cost.push), lane[k].push_back(cost.lane), end[k].push_back(cost.end);
      }
    for (int k = 0; k < 3; ++k) {
      std::printf("%-10d %-8s", variables, k == 0 ? "cpu(0)" : k == 1 ? "null(0)" : "limited");
      for (const auto* x : {&push[k], &lane[k], &end[k]})
        std::printf("%10.1f (%6.1f to %6.1f)", median(*x), median(*x, 0.25), median(*x, 0.75));
      std::printf("\n");
    }
  }
  std::vector<double> recorded;
  for (int i = 0; i < rounds; ++i) recorded.push_back(record(ops));
  std::printf("record of accesses: %.1f ns an op (%.1f to %.1f)\n", median(recorded), median(recorded, 0.25),
              median(recorded, 0.75));
  const sluice::LaneStats stats = engine.lane_stats(sluice::null(0));
  std::printf("null(0): %llu ops, %llu points\n", static_cast<unsigned long long>(stats.issued),
              static_cast<unsigned long long>(stats.points));
}
