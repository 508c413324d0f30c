// What the engine costs by itself: nanoseconds per op of programs whose bodies do nothing, from the first push to the
// end of the last op. Beside it how far the two cores are from each other, because most of the cost is that distance.
//
//   bench_engine [--benchmark_repetitions=9 --benchmark_report_aggregates_only=true]
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "sluice/engine/engine.h"

namespace {

constexpr int kOps = 1 << 16;

sluice::EngineOptions options(const benchmark::State& state) {
  return {.mode = sluice::EngineMode::threaded, .mode_given = true, .threads = static_cast<int>(state.range(0))};
}

/// Times `push_all` (kOps pushes) and the wait for what it pushed.
template <class Push>
void run(benchmark::State& state, int variables, const Push& push_all) {
  sluice::Engine engine(options(state));
  std::vector<sluice::Variable> v;
  for (int i = 0; i < variables; ++i) v.push_back(engine.variable());
  for (auto _ : state) {
    push_all(engine, v);
    engine.wait_all();
  }
  state.SetItemsProcessed(state.iterations() * kOps);
  state.counters["ns_per_op"] = benchmark::Counter(static_cast<double>(state.iterations()) * kOps * 1e-9,
                                                   benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void independent(benchmark::State& state) {
  run(state, 0, [](sluice::Engine& engine, auto&) {
    for (int i = 0; i < kOps; ++i) engine.push([] {}, {});
  });
}

void chains(benchmark::State& state) {
  run(state, static_cast<int>(state.range(1)), [](sluice::Engine& engine, auto& v) {
    for (std::size_t i = 0; i < kOps; ++i) engine.push([] {}, {sluice::update(v[i % v.size()])});
  });
}

/// Nanoseconds for a cache line of so many, one after another in no order that a cache could guess: what a miss costs.
double chase(std::size_t lines) {
  struct alignas(64) Line {
    std::size_t next;
  };
  std::vector<std::size_t> order(lines);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  std::vector<Line> line(lines);
  for (std::size_t i = 0; i < lines; ++i) line[order[i]].next = order[(i + 1) % lines];
  std::size_t at = 0;
  for (std::size_t i = 0; i < lines; ++i) at = line[at].next;
  constexpr int kSteps = 1 << 18;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kSteps; ++i) at = line[at].next;
  const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
  benchmark::DoNotOptimize(at);
  return time.count() / kSteps;
}

/// An update each of so many variables, again and again, once warm: in the order of their making, or in no order.
/// Beside it what one miss costs among so many lines: beyond the cache the cost may grow by that for each access.
void many_variables(benchmark::State& state) {
  constexpr int kPushes = 1 << 20;  // many more than are in flight, so that the wait at the end counts for little
  sluice::Engine engine(options(state));
  std::vector<sluice::Variable> v(static_cast<std::size_t>(state.range(1)));
  for (sluice::Variable& x : v) x = engine.variable();
  if (state.range(2)) std::shuffle(v.begin(), v.end(), std::mt19937(1));
  const double miss = chase(v.size());
  const auto push_all = [&] {
    std::size_t at = 0;
    for (int i = 0; i < kPushes; ++i) {
      engine.push([] {}, {sluice::update(v[at])});
      if (++at == v.size()) at = 0;
    }
    engine.wait_all();
  };
  push_all();
  for (auto _ : state) push_all();
  state.counters["ns_per_op"] = benchmark::Counter(static_cast<double>(state.iterations()) * kPushes * 1e-9,
                                                   benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["ns_per_miss"] = miss;
}

void one_writer_sixteen_readers(benchmark::State& state) {
  run(state, 1, [](sluice::Engine& engine, auto& v) {
    for (int i = 0; i < kOps; ++i)
      if (i % 17 == 0) {
        engine.push([] {}, {sluice::write(v[0])});
      } else {
        engine.push([] {}, {sluice::read(v[0])});
      }
  });
}

/// Two reads and an update of three of 64 variables.
void random_graph(benchmark::State& state) {
  std::mt19937 random(1);
  std::vector<std::array<std::uint8_t, 3>> picks(kOps);
  for (auto& p : picks) do {
      for (auto& x : p) x = static_cast<std::uint8_t>(random() % 64);
    } while (p[0] == p[1] || p[0] == p[2] || p[1] == p[2]);
  run(state, 64, [&](sluice::Engine& engine, auto& v) {
    for (const auto& p : picks)
      engine.push([] {}, {sluice::read(v[p[0]]), sluice::read(v[p[1]]), sluice::update(v[p[2]])});
  });
}

/// One push and the wait for it: what a program pays that looks at each result.
void push_to_wait(benchmark::State& state) {
  sluice::Engine engine(options(state));
  const sluice::Variable v = engine.variable();
  for (auto _ : state) {
    engine.push([] {}, {sluice::write(v)});
    engine.wait(v);
  }
}

/// The same with wait_all, in an engine that had as many ops in flight before as its cap allows.
void push_to_wait_all(benchmark::State& state) {
  sluice::Engine engine(options(state));
  std::atomic<bool> all_pushed{false};
  const auto stand = [&] {
    while (!all_pushed) std::this_thread::yield();
  };
  for (int i = 0; i < 16'000; ++i) engine.push(stand, {});
  all_pushed = true;
  engine.wait_all();
  const sluice::Variable v = engine.variable();
  for (auto _ : state) {
    engine.push([] {}, {sluice::write(v)});
    engine.wait_all();
  }
}

/// Nanoseconds for a cache line to another core and back; the least of some rounds.
double ping_pong() {
  double least = 1e9;
  for (int round = 0; round < 5; ++round) {
    constexpr int kTurns = 20'000;
    std::atomic<int> ball{0};
    std::thread other([&] {
      for (int i = 0; i < kTurns; ++i) {
        while (ball.load(std::memory_order_acquire) != 2 * i + 1) {
        }
        ball.store(2 * i + 2, std::memory_order_release);
      }
    });
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kTurns; ++i) {
      ball.store(2 * i + 1, std::memory_order_release);
      while (ball.load(std::memory_order_acquire) != 2 * i + 2) {
      }
    }
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
    other.join();
    least = std::min(least, time.count() / kTurns);
  }
  return least;
}

void settings(benchmark::internal::Benchmark* b) {
  b->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
}

}  // namespace

BENCHMARK(independent)->Apply(settings);
BENCHMARK(chains)
    ->ArgNames({"threads", "chains"})
    ->ArgsProduct({{1, 2}, {1, 1024}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(many_variables)
    ->ArgNames({"threads", "variables", "shuffled"})
    ->ArgsProduct({{1, 2}, {1 << 6, 1 << 10, 1 << 13, 1 << 14, 1 << 17, 1 << 20}, {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(one_writer_sixteen_readers)->Apply(settings);
BENCHMARK(random_graph)->Apply(settings);
BENCHMARK(push_to_wait)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kNanosecond);
BENCHMARK(push_to_wait_all)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kNanosecond);

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  std::printf("a cache line to the other core and back: %.0f ns\n", ping_pong());
  benchmark::RunSpecifiedBenchmarks();
  std::printf("a cache line to the other core and back: %.0f ns\n", ping_pong());
  benchmark::Shutdown();
}
