// Long runs under bounds: a flood of pushes at the caps, and small ops without end over counters that come round. The
// tests run a slice; engine_soak (tests/soak.sh) runs all.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "process.h"
#include "sluice/engine/detail/counters.h"

namespace sluice::testing {

struct FloodResult {
  std::size_t start = 0, most = 0, cap = 0;  ///< resident bytes
  std::size_t most_in_flight = 0;
  double seconds = 0;
  bool ran_all = false;
  std::size_t grown() const { return most - start; }
  /// Of a bare one: two records for each op in flight, and their places in queues.
  bool frugal() const { return grown() <= (most_in_flight << 10) + (std::size_t{1} << 20); }
  bool bounded() const { return most <= start + cap + cap / 10; }
};

/// Pushes far faster than 20 us ops run. Each has memory of its own, declared: half of them little, so that the cap on
/// ops is met, half of them much, so that the one on bytes is. With `bare` they only declare it: what the process grows
/// by is then the engine's own part.
inline FloodResult flood(std::int64_t pushes, bool bare = false) {
  constexpr std::size_t kOps = 10'000;
  FloodResult r;
  r.cap = std::size_t{256} << 20;
  std::atomic<std::int64_t> ran{0};
  Engine engine({.mode_given = true, .max_ops = kOps, .max_bytes = r.cap});
  engine.push([] {}, {}).wait();
  r.start = resident_bytes();
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < pushes; ++i) {
    const std::size_t bytes = i / 20'000 % 2 ? std::size_t{100} << 10 : std::size_t{1} << 10;
    // Waits at the caps before the closure is made: what is not in flight yet takes no memory.
    struct Work {
      Work(std::size_t n, std::atomic<std::int64_t>& c) : size(n), count(&c) {}  // n: 1 at least
      Work(Work&& other) noexcept : size(other.size), count(other.count), memory(new char[size]) {
        std::memset(memory.get(), 1, size);
      }
      void operator()() const {
        const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(20);
        while (std::chrono::steady_clock::now() < end) {
        }
        count->fetch_add(memory[size - 1]);
      }
      std::size_t size;
      std::atomic<std::int64_t>* count;
      std::unique_ptr<char[]> memory;
    };
    engine.push(Work(bare ? 1 : bytes, ran), {}, {.bytes = bytes});
    if (i % 256 == 0) {
      r.most = std::max(r.most, resident_bytes());
      r.most_in_flight = std::max(r.most_in_flight, engine.in_flight());
    }
  }
  engine.wait_all();
  r.most = std::max(r.most, resident_bytes());
  r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  r.ran_all = ran.load() == pushes;
  return r;
}

struct SoakResult {
  std::int64_t mismatches = 0;
  std::size_t early = 0, late = 0;  ///< resident bytes after a tenth, and at the end
  double seconds = 0;
  bool flat() const { return late <= early + early / 10 + (std::size_t{1} << 20); }
};

/// Small ops over 64 variables, which are now and then exchanged for new ones; tickets, waits, and a failure in a
/// million. Each counter comes round after a few thousand ops.
inline SoakResult soak(std::int64_t ops) {
  SoakResult r;
  detail::CounterStart near_the_end;
  near_the_end.generation = 0xffff'fff0u;
  near_the_end.batch = 0xffff'ff80u;
  near_the_end.variables = 0xffff'ff00u;
  near_the_end.pushes = ~std::uint64_t{0} - 5'000;
  // Few at once: records for as many as the cap allows come as they are needed, and are there to stay.
  Engine engine = detail::engine_with_counters({.mode_given = true, .threads = 2, .max_ops = 1'024}, near_the_end);
  constexpr std::size_t kVariables = 64;
  struct Cell {
    Variable variable;
    std::unique_ptr<std::int64_t> value = std::make_unique<std::int64_t>(0);
    std::int64_t expected = 0;
  };
  std::vector<Cell> cells(kVariables);
  for (Cell& c : cells) c.variable = engine.variable();
  const auto begin = std::chrono::steady_clock::now();
  std::uint64_t random = 1;
  for (std::int64_t i = 0; i < ops; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    Cell &a = cells[(random >> 33) % kVariables], &b = cells[(random >> 43) % kVariables];
    std::int64_t* const at = a.value.get();
    if (i % 4 == 0) {
      engine.push([at] { ++*at; }, {read(b.variable), update(a.variable), order(b.variable)});
    } else {
      engine.push([at] { ++*at; }, {update(a.variable)});
    }
    ++a.expected;
    if (i % 5'003 == 0) {  // a variable ends, and a new one takes its place
      engine.wait(b.variable);
      r.mismatches += *b.value != b.expected;
      b.variable = engine.variable();
    }
    if (i % 7'919 == 0) engine.push([at] { ++*at; }, {update(a.variable)}).wait(), ++a.expected;
    if (i % 1'000'003 == 0) {
      const Variable bad = engine.variable();
      bool thrown = false;
      try {
        engine.push([] { throw std::runtime_error("x"); }, {write(bad)}).wait();
      } catch (const Error&) {
        thrown = true;
      }
      r.mismatches += !thrown;
    }
    if (i == ops / 10) r.early = resident_bytes();
  }
  engine.wait_all();
  r.mismatches += engine.in_flight() != 0;
  for (const Cell& c : cells) r.mismatches += *c.value != c.expected;
  r.late = resident_bytes();
  r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return r;
}

}  // namespace sluice::testing
