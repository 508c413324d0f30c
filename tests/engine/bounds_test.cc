// Bounds: a flood at the caps, and ops without end over counters that come round (failure cases 22 and 30). A slice of
// what tests/soak.sh runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <vector>

#include "slice.h"
#include "soak.h"
#include "support.h"

namespace sluice {
namespace {

TEST(Bounds, Case30AFloodStaysWithinTheCaps) {
#ifdef SLUICE_SANITIZED
  constexpr std::int64_t kPushes = 20'000;
#else
  constexpr std::int64_t kPushes = 120'000;
#endif
  const testing::FloodResult r = testing::flood(kPushes);
  std::printf("%zu MiB at the start, %zu MiB at most, %zu ops in flight at most, %.1f s\n", r.start >> 20, r.most >> 20,
              r.most_in_flight, r.seconds);
  EXPECT_TRUE(r.ran_all);
  EXPECT_LE(r.most_in_flight, 10'000u);
#ifndef SLUICE_SANITIZED  // which keep what is freed
  EXPECT_TRUE(r.bounded());
#endif
}

/// The engine's own part of it: 10,000 ops in flight, and each costs less than a KiB.
TEST(Bounds, Case30AnOpInFlightCostsLittle) {
  const testing::FloodResult r = testing::flood(30'000, true);
  std::printf("%zu KiB for %zu ops\n", r.grown() >> 10, r.most_in_flight);
  EXPECT_TRUE(r.ran_all);
#ifndef SLUICE_SANITIZED
  EXPECT_TRUE(r.frugal());
#endif
}

/// A cache line, and what is left of a huge page; those that come after take their places.
TEST(Bounds, AnIdleVariableTakesACacheLine) {
#ifdef SLUICE_SANITIZED
  constexpr std::size_t kVariables = 40'000;  // more than one huge page's
#else
  constexpr std::size_t kVariables = 250'000;
#endif
  Engine engine({.mode_given = true, .threads = 1});
  std::vector<int> values(kVariables, 0);
  std::vector<Variable> v(kVariables);
  const std::size_t start = testing::resident_bytes();
  const auto fill = [&] { std::ranges::generate(v, [&] { return engine.variable(); }); };
  for (int round = 0; round < 3; ++round) {
    fill();
    const std::size_t grown = testing::resident_bytes() - start;
    std::printf("%zu variables: %zu KiB\n", kVariables, grown >> 10);
#ifndef SLUICE_SANITIZED
    if (round == 0) {
      EXPECT_LE(grown, 64 * kVariables + (std::size_t{3} << 20));
    }
    if (round == 2) {
      EXPECT_LE(grown, 64 * kVariables + (std::size_t{26} << 20)) << "with the records of two rounds";
    }
#endif
    for (int k = 0; k < 2; ++k)
      for (std::size_t i = 0; i < kVariables; ++i) engine.push([&values, i] { ++values[i]; }, {update(v[i])});
    std::ranges::fill(v, Variable());
  }
  engine.wait_all();
  EXPECT_EQ(std::ranges::count(values, 6), static_cast<std::ptrdiff_t>(kVariables));
}

/// An op may name 32,000 variables, and pays for their number, in whatever order it names them.
TEST(Bounds, ManyAccesses) {
  constexpr std::size_t kMost = 32'000;
  testing::QuietEngine engine({.threads = 1});
  std::vector<Variable> v(kMost);
  std::ranges::generate(v, [&] { return engine.variable(); });
  std::vector<Access> sorted, reversed;
  for (const Variable& x : v) sorted.push_back(update(x));
  reversed.assign(sorted.rbegin(), sorted.rend());
  const auto least = [&](const auto& accesses) {
    auto time = std::chrono::nanoseconds::max();
    for (int i = 0; i < 5; ++i) {
      const auto start = std::chrono::steady_clock::now();
      engine.push([] {}, accesses).wait();
      time = std::min<std::chrono::nanoseconds>(time, std::chrono::steady_clock::now() - start);
    }
    return time;
  };
  EXPECT_LT(least(reversed), 20 * least(sorted) + std::chrono::milliseconds(20));
  reversed.pop_back();  // a program has a variable of its own
  const auto capture = [&] { engine.capture([&] { engine.push([] {}, reversed); }); };
  const auto start = std::chrono::steady_clock::now();
  capture();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20 * least(sorted) + std::chrono::milliseconds(200));
  reversed.push_back(update(v[0]));
  EXPECT_THROW(capture(), UsageError);
  sorted.push_back(read(v[0]));
  EXPECT_THROW(engine.push([] {}, sorted), UsageError);
}

/// However many there are: one access for each variable, and of several errors that of the variable named first.
TEST(Bounds, ManyAccessesAreJoinedLikeFew) {
  testing::QuietEngine engine({.threads = 1});
  for (const std::size_t count : {3u, 5u, 16u, 17u, 100u, 3000u})
    for (const bool captured : {false, true}) {
      std::vector<Variable> v(count);
      std::ranges::generate(v, [&] { return engine.variable(); });
      std::vector<Access> accesses;
      for (std::size_t i = 0; i < count; ++i) accesses.push_back(read(v[(7 * i + count / 2) % count]));
      for (std::size_t i = count; i-- > 0;) accesses.push_back(i % 2 ? write(v[i]) : read(v[i]));
      const auto first = std::ranges::find(accesses, v[1].get(), &Access::variable) - accesses.begin();
      const auto second = std::ranges::find(accesses, v[2].get(), &Access::variable) - accesses.begin();
      for (int i : {1, 2}) {
        const char* const name = (i == 1) == (first < second) ? "named first" : "named later";
        engine.push([] { throw std::runtime_error("x"); }, {write(v[static_cast<std::size_t>(i)])}, {.name = name});
      }
      engine.start_trace();
      const auto push = [&] { return engine.push([] {}, accesses); };
      Ticket ticket;
      if (captured) {
        ticket = engine.replay(engine.capture([&] { push(); }));
      } else {
        ticket = push();
      }
      EXPECT_EQ(testing::failure([&] { ticket.wait(); }), "named first: x");
      const std::vector<TraceEvent> events = engine.stop_trace();
      ASSERT_EQ(events.size(), 1u);
      std::map<std::uint32_t, AccessMode> modes;
      for (const TraceAccess& a : events[0].accesses) EXPECT_TRUE(modes.emplace(a.variable, a.mode).second);
      ASSERT_EQ(modes.size(), count);
      for (std::size_t i = 0; i < count; ++i)
        EXPECT_EQ(modes.at(v[i].get()->number), i % 2 ? AccessMode::update : AccessMode::read);
      engine.clear_errors();
    }
}

TEST(Bounds, Case22CountersComeRound) {
#ifdef SLUICE_SANITIZED
  constexpr std::int64_t kOps = 100'000;
#else
  constexpr std::int64_t kOps = 3'000'000;
#endif
  const testing::SoakResult r = testing::soak(kOps);
  std::printf("%.1f s, %zu KiB after a tenth, %zu KiB at the end\n", r.seconds, r.early >> 10, r.late >> 10);
  EXPECT_EQ(r.mismatches, 0);
#ifndef SLUICE_SANITIZED
  EXPECT_TRUE(r.flat());
#endif
}

/// One record, one variable, one worker: every counter passes its end within the first ops, and each op is told apart.
TEST(Bounds, Case22TicketsOverTheEndOfTheirNumbers) {
  detail::CounterStart last;
  last.generation = last.batch = last.variables = ~std::uint32_t{0};
  last.pushes = ~std::uint64_t{0} - 1;
  Engine engine = detail::engine_with_counters({.mode_given = true, .threads = 1}, last);
  const Variable a = engine.variable(), b = engine.variable();  // the last number, and the first again
  int n = 0;
  for (int i = 0; i < 2'000; ++i) {
    const Ticket t = engine.push([&] { ++n; }, {update(a), update(b)});
    const Ticket u = engine.push([&] { ++n; }, {update(b), update(a)});
    u.wait();
    ASSERT_TRUE(t.done());
    ASSERT_NE(t.id(), u.id());
    ASSERT_EQ(n, 2 * i + 2);
    ASSERT_EQ(engine.in_flight(), 0u);
  }
  testing::Held held;
  engine.push(held.body(), {update(a)});
  held.begun.wait();
  EXPECT_EQ(engine.in_flight(), 1u);
  held.completion.done();
  engine.wait(a);
  EXPECT_TRUE(engine.stop());
}

/// A reader that is over while one before it is not: its token waits in the chain, and so its record is not used again.
TEST(Bounds, ARecordWaitsForTheReadersBeforeIt) {
  Engine engine({.mode_given = true, .threads = 1});
  const Variable a = engine.variable(), b = engine.variable();
  Borrow reader = engine.borrow(read(a));
  engine.push([] {}, {read(a)}).wait();
  Borrow writer = engine.borrow(update(b));
  constexpr int kOps = 2'000;  // more than there are records in a slab
  std::vector<int> order;
  for (int i = 0; i < kOps; ++i) engine.push([&order, i] { order.push_back(i); }, {update(b)});
  reader.release();
  writer.release();
  engine.wait(b);
  engine.push([] {}, {update(a)}).wait();
  ASSERT_EQ(order.size(), std::size_t{kOps});
  for (int i = 0; i < kOps; ++i) ASSERT_EQ(order[static_cast<std::size_t>(i)], i);
}

/// Threads that end with a Borrow, which another thread releases soon or much later: nothing of them stays.
TEST(Bounds, AThreadThatEndsWithABorrowLeavesNothing) {
#ifdef SLUICE_SANITIZED
  constexpr int kHeld = 100;
#else
  constexpr int kHeld = 1'000;
#endif
  const int threads_in_all = static_cast<int>(testing::slice(2'000, 40'000, 100'000));
  testing::QuietEngine engine({.threads = 1});
  std::vector<Variable> v(kHeld);
  std::ranges::generate(v, [&] { return engine.variable(); });
  std::vector<Borrow> held(kHeld);
  const auto release = [&] {
    for (Borrow& b : held) b = {};
  };
  const auto round = [&](int threads) {
    for (int i = 0; i < threads; ++i) {
      const auto at = static_cast<std::size_t>(i % kHeld);
      std::thread([&] { held[at] = engine.borrow(update(v[at])); }).join();
      if (at == kHeld - 1) release();
    }
  };
  const auto time = [&] {
    auto least = std::chrono::nanoseconds::max();
    for (int i = 0; i < 50; ++i) {
      const auto start = std::chrono::steady_clock::now();
      engine.push([] {}, {update(v[0])});
      engine.wait_all();
      least = std::min<std::chrono::nanoseconds>(least, std::chrono::steady_clock::now() - start);
    }
    return least;
  };
  round(2 * kHeld);
  const std::size_t start = testing::resident_bytes();
  const auto before = time();
  round(threads_in_all);
  const auto after = time();
  const std::size_t grown = testing::resident_bytes() - std::min(start, testing::resident_bytes());
  std::printf("%d threads: %zu KiB; push and wait_all %lld ns, then %lld ns\n", threads_in_all, grown >> 10,
              static_cast<long long>(before.count()), static_cast<long long>(after.count()));
#ifndef SLUICE_SANITIZED
  EXPECT_LE(grown, std::size_t{4} << 20);
#endif
  EXPECT_LE(after.count(), 20 * before.count() + 20'000);
  EXPECT_EQ(engine.in_flight(), 0u);
}

/// Such a Borrow is nobody's: who waits for it does not stand behind the next thread that has the place of the first.
TEST(Bounds, ABorrowOfAThreadThatEndedIsNotTheNextThreads) {
  testing::QuietEngine engine({.threads = 1});
  const Variable v = engine.variable(), w = engine.variable();
  Borrow held;
  testing::Signal taken;
  std::thread([&] { held = engine.borrow(update(v)); }).join();
  std::thread waiter([&] {  // it has a Borrow of its own, so that its wait is looked at for circles
    const Borrow own = engine.borrow(update(w));
    taken.raise();
    engine.wait(v);
  });
  taken.wait();
  EXPECT_FALSE(engine.wait_for(w, std::chrono::milliseconds(200)));
  held = {};
  waiter.join();
  EXPECT_EQ(testing::failure([&] { engine.wait(w); }), "");
}

}  // namespace
}  // namespace sluice
