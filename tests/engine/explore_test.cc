// The protocol under the controlled scheduler: every interleaving comes from a seed, and comes again with it.
#include "sluice/engine/explore/explore.h"

#include <gtest/gtest.h>

#include <set>

#include "explore_search.h"
#include "slice.h"
#include "support.h"

namespace sluice {
namespace {
using detail::Explorer;

const int kSeeds = static_cast<int>(testing::slice(300, 1000, 4000));

struct Outcome {
  bool ended = false;
  std::uint64_t hash = 0;
  int x = 0, y = 0, z = 0;
  std::vector<LoggedPush> order;
  std::array<Ticket, 3> tickets;
};

constexpr int kX = 3, kY = 5;

/// Two pushers, two workers, three ops over two variables; a wait inside one of them.
Outcome explore(std::uint64_t seed) {
  Outcome out;
  Engine engine(
      {.mode = EngineMode::explore, .explore_seed = seed, .mode_given = true, .threads = 2, .log_order = true});
  const Variable a = engine.variable("a"), b = engine.variable("b");
  int x = kX, y = kY;
  out.ended = Explorer::get().run({
      [&] {
        out.tickets[0] = engine.push([&] { x = x * 10 + y; }, {update(a), read(b)});
        out.tickets[1] = engine.push([&] { y = y * 10 + x; }, {read(a), update(b)});
      },
      [&] {
        out.tickets[2] = engine.push([&] { x += 1, y += 2; }, {update(b), update(a)});
        engine.wait(a);
      },
  });
  out.hash = Explorer::get().trace_hash();
  if (!out.ended) return out;
  engine.wait_all();
  out.x = x, out.y = y;
  out.order = engine.take_order();
  return out;
}

TEST(Explore, EveryInterleavingEqualsTheSerialOrder) {
  std::set<std::uint64_t> hashes;
  std::set<std::pair<int, int>> results;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    const Outcome out = explore(static_cast<std::uint64_t>(seed));
    ASSERT_TRUE(out.ended) << "a hang with seed " << seed;
    int x = kX, y = kY;
    for (const LoggedPush& p : out.order) {
      if (p.id == out.tickets[0].id()) x = x * 10 + y;
      if (p.id == out.tickets[1].id()) y = y * 10 + x;
      if (p.id == out.tickets[2].id()) x += 1, y += 2;
    }
    ASSERT_EQ(std::make_pair(out.x, out.y), std::make_pair(x, y)) << "seed " << seed;
    hashes.insert(out.hash);
    results.insert({out.x, out.y});
  }
  EXPECT_GT(hashes.size(), static_cast<std::size_t>(kSeeds) * 3 / 4)
      << "few schedules differ only in the order of independent steps";
  EXPECT_EQ(results.size(), 3u) << ::testing::PrintToString(results) << "every order of the pushes came up";
}

TEST(Explore, ASeedReplays) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const Outcome one = explore(seed), two = explore(seed);
    ASSERT_EQ(one.hash, two.hash) << "seed " << seed;
    ASSERT_EQ(one.x, two.x);
  }
}

/// Waits inside ops, errors, a Completion from another controlled thread, and a ticket.
TEST(Explore, WaitsErrorsAndCompletions) {
  for (int seed = 1; seed <= kSeeds / 5; ++seed) {
    Engine engine({.mode = EngineMode::explore,
                   .explore_seed = static_cast<std::uint64_t>(seed),
                   .mode_given = true,
                   .threads = 1});
    engine.on_unobserved_error([](const ErrorRoot&) {});
    const Variable a = engine.variable(), b = engine.variable(), c = engine.variable();
    Completion held;
    int value = 0;
    std::string threw;
    const bool ended = Explorer::get().run({
        [&] {
          engine.push([&](Completion done) { held = std::move(done); }, {write(a)});
          engine.push([&] { value = 1, held.done(); }, {});
          const Ticket t = engine.push([&] { engine.wait(a), value = value * 10 + 2; }, {update(b)});
          t.wait();
        },
        [&] {
          engine.push([] { throw std::runtime_error("x"); }, {write(c)}, {.name = "bad"});
          threw = testing::failure([&] { engine.wait(c); });
        },
    });
    ASSERT_TRUE(ended) << "a hang with seed " << seed;
    ASSERT_EQ(value, 12) << "seed " << seed;
    ASSERT_EQ(threw, "bad: x") << "seed " << seed;
  }
}

/// Whoever drops the last handle of a variable knows of each push that named it, and leaves it to the op: or else the
/// op would poison the variable that takes its place.
TEST(Explore, TheLastHandleKnowsOfEveryPush) {
  std::string threw;
  const testing::Search search = testing::every_schedule(
      2,
      [&] {
        Engine engine({.mode = EngineMode::explore, .mode_given = true, .threads = 1});
        engine.on_unobserved_error([](const ErrorRoot&) {});
        Variable one = engine.variable(), two = one;
        const bool ended = Explorer::get().run({
            [&] {
              engine.push([] { throw std::runtime_error("x"); }, {update(one)});
              one = {};
            },
            [&] {
              two = {};
              const Variable next = engine.variable();
              engine.push([] {}, {update(next)});
              threw = testing::failure([&] { engine.wait(next); });
            },
        });
        return ended && threw.empty() && !Explorer::get().race();
      },
      testing::slice(800, 5000, 20'000));
  EXPECT_EQ(search.bad, 0u) << threw << "; " << search.first_bad;
  EXPECT_GT(search.distinct, 250u);
}

/// An op that begins and a cancel of it: each says what it does before it looks for the other.
TEST(Explore, ACancelThatSaysYesIsHeeded) {
  int heeded = 0;
  for (int seed = 1; seed <= 4 * kSeeds; ++seed) {
    Engine engine({.mode = EngineMode::explore,
                   .explore_seed = static_cast<std::uint64_t>(seed),
                   .mode_given = true,
                   .threads = 1});
    engine.on_unobserved_error([](const ErrorRoot&) {});
    bool ran = false, cancelled = false;
    const bool ended = Explorer::get().run({[&] { cancelled = engine.push([&] { ran = true; }, {}).cancel(); }});
    ASSERT_TRUE(ended) << "a hang with seed " << seed;
    engine.wait_all();
    ASSERT_NE(ran, cancelled) << "seed " << seed;
    heeded += cancelled;
  }
  EXPECT_GT(heeded, kSeeds / 10);
  EXPECT_LT(heeded, 4 * kSeeds);
}

TEST(Explore, AWaitThatCanNeverEndThrows) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Engine engine({.mode = EngineMode::explore, .explore_seed = seed, .mode_given = true, .threads = 1});
    engine.on_unobserved_error([](const ErrorRoot&) {});
    const Variable a = engine.variable(), b = engine.variable(), c = engine.variable();
    ErrorKind kind = ErrorKind::failed;
    std::string bystander = "it never ran";
    const auto body = [&] {
      engine.push([] {}, {write(a), write(b)});
      engine.wait(b);
    };
    const bool ended = Explorer::get().run({[&] {
      const PushOptions named{.name = "member"};
      const Ticket t = seed % 2 ? engine.push(body, {read(a)}, named)
                                : engine.push([body](Completion done) { body(), done.done(); }, {read(a)}, named);
      // Waits for the op that gives up, and is none of its circle.
      engine.push(
          [&, t] {
            bystander = "";
            const ErrorRef root = testing::thrown([&] { t.wait(); });
            if (!root || root->operation != "member") bystander = root ? root->operation : "no error";
          },
          {write(c)}, {.name = "bystander"});
      if (const ErrorRef root = testing::thrown([&] { t.wait(); })) kind = root->kind;
      engine.wait(c);
    }});
    ASSERT_TRUE(ended) << "seed " << seed;
    ASSERT_EQ(kind, ErrorKind::deadlock) << "seed " << seed;
    ASSERT_EQ(bystander, "") << "seed " << seed;
    ASSERT_FALSE(Explorer::get().race()) << Explorer::get().race();
  }
}

}  // namespace
}  // namespace sluice
