// Waits that can never end are found where they are, whatever else runs, and only they throw (docs/semantics.md, 3).
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "support.h"

namespace sluice {
namespace {

using testing::Gate;
using testing::Held;
using testing::QuietEngine;
using testing::Signal;
using testing::thrown;
using namespace std::chrono_literals;

/// An engine in which some op runs all the time, so that a circle is not found by waiting until nothing moves.
struct BusyEngine : QuietEngine {
  explicit BusyEngine(EngineOptions options = {}) : QuietEngine(busy(options)) {
    push([this] { gate.pass(); }, {}, {.on = io(), .name = "busy"});
  }
  ~BusyEngine() { gate.open(); }
  static EngineOptions busy(EngineOptions options) {
    if (options.logical_cpus == 0) options.logical_cpus = 2;
    return options;
  }
  /// The deadlock that the op failed with; null if it is not over within half a minute.
  ErrorRef deadlock(const Ticket& t) {
    ErrorRef root;
    bool over = false;
    root = thrown([&] { over = t.wait_for(30s); });
    EXPECT_TRUE(over || root) << explain(t);
    EXPECT_TRUE(!root || root->kind == ErrorKind::deadlock);
    return root;
  }
  Gate gate;
};

TEST(Circles, ThroughTheOpThatHasACompletion) {
  BusyEngine engine;
  const Variable a = engine.variable("a");
  const std::string line = std::to_string(__LINE__ + 3);
  const Ticket t = engine.push(
      [&](Completion c) {
        engine.push([] {}, {read(a)}, {.name = "reader"}).wait();
        c.done();
      },
      {write(a)}, {.name = "waiter"});
  const ErrorRef root = engine.deadlock(t);
  ASSERT_TRUE(root);
  EXPECT_EQ(root->operation, "waiter");
  EXPECT_EQ(root->message,
            "wait for a ticket can never end: before it must be over the op 'waiter' itself, through 'reader' "
            "(circles_test.cc:" +
                line + ")");
  EXPECT_EQ(thrown([&] { engine.wait(a); }), root);
}

/// Whoever answers it, the op is not over before its body has returned.
TEST(Circles, ThroughAnOpWhoseCompletionAnotherThreadHas) {
  BusyEngine engine;
  const Variable a = engine.variable("a");
  Completion held;
  Signal returned;
  // The closure goes when what the body threw is noted.
  std::shared_ptr<void> at_end(nullptr, [&](void*) { returned.raise(); });
  const Ticket t = engine.push(
      [&, last = std::move(at_end)](Completion c) {
        held = std::move(c);
        engine.push([] {}, {read(a)}).wait();
      },
      {write(a)}, {.name = "waiter"});
  returned.wait();
  EXPECT_FALSE(t.done()) << "it is over before its Completion was answered";
  held.done();
  ASSERT_TRUE(engine.deadlock(t));
}

/// What another op's Completion may end is no circle.
TEST(Circles, AWaitThatACompletionCanEndGoesOn) {
  BusyEngine engine;
  const Variable a = engine.variable("a"), b = engine.variable("b");
  Held held;
  engine.push(held.body(), {write(a)});
  const Ticket t = engine.push([&](Completion c) { engine.wait(a), c.done(); }, {write(b)});
  EXPECT_FALSE(t.wait_for(300ms));
  held.completion.done();
  t.wait();
}

TEST(Circles, OfTwoAndThreeOpsOnSeveralLanes) {
  for (const int n : {2, 3}) {
    for (const bool async : {false, true}) {
      BusyEngine engine;
      std::vector<Variable> v;
      for (int i = 0; i < n; ++i) v.push_back(engine.variable());
      Gate pushed;
      std::vector<Ticket> ops(static_cast<std::size_t>(n));
      for (int i = 0; i < n; ++i) {
        const auto at = static_cast<std::size_t>(i), next = static_cast<std::size_t>((i + 1) % n);
        const auto body = [&, at, next] {
          pushed.pass();
          if (at % 2) {
            ops[next].wait();
          } else {
            engine.wait(v[next]);
          }
        };
        const PushOptions options{.on = i == 2 ? Place(cpu(1), LaneKind::copy_in) : Place(cpu(i)), .name = "member"};
        if (async) {
          ops[at] = engine.push([body](Completion c) { body(), c.done(); }, {write(v[at])}, options);
        } else {
          ops[at] = engine.push(body, {write(v[at])}, options);
        }
      }
      pushed.open();
      ErrorRef first;
      for (const Ticket& t : ops) {
        const ErrorRef root = engine.deadlock(t);
        ASSERT_TRUE(root);
        if (!first) first = root;
        EXPECT_EQ(root, first) << "one gave up, the others met its error";
      }
    }
  }
}

TEST(Circles, WhoWaitsForAMemberGoesOn) {
  BusyEngine engine;
  const Variable a = engine.variable("a"), b = engine.variable("b");
  Gate late;
  // Begin to wait before the circle is closed, and after.
  Ticket member;
  Gate known;
  member = engine.push(
      [&] {
        late.pass();
        (void)thrown([&] { engine.push([] {}, {read(a)}).wait(); });
      },
      {write(a)}, {.name = "member"});
  known.open();
  std::vector<Ticket> others;
  for (int i = 0; i < 4; ++i)
    others.push_back(engine.push(
        [&, i] {
          known.pass();
          i % 2 ? member.wait() : engine.wait(a);
        },
        {read(b)}, {.on = cpu(1), .name = "other"}));
  late.open();
  for (int i = 0; i < 4; ++i)
    others.push_back(engine.push([&, i] { i % 2 ? member.wait() : engine.wait(a); }, {read(b)}, {.name = "other"}));
  for (const Ticket& t : others) EXPECT_FALSE(engine.deadlock(t));
  EXPECT_FALSE(engine.deadlock(member));
}

TEST(Circles, OfABorrowerWhileOthersRun) {
  BusyEngine engine;
  const Variable v = engine.variable("v"), w = engine.variable("w");
  {
    const Borrow held = engine.borrow(update(v));
    const std::string line = std::to_string(__LINE__ + 1);
    const Ticket t = engine.push([] {}, {read(v), write(w)}, {.name = "copy"});
    const ErrorRef root = thrown([&] { engine.wait(w); });
    ASSERT_TRUE(root);
    EXPECT_EQ(
        root->message,
        "wait can never end: before it must be over a Borrow of its own thread, through 'copy' (circles_test.cc:" +
            line + ")");
    EXPECT_EQ(thrown([&] { engine.wait(v); })->kind, ErrorKind::deadlock);
    EXPECT_EQ(thrown([&] { t.wait(); })->kind, ErrorKind::deadlock);
    EXPECT_EQ(thrown([&] { engine.borrow(read(w)); })->kind, ErrorKind::deadlock);
    EXPECT_EQ(thrown([&] { engine.borrow(update(v)); })->kind, ErrorKind::deadlock);
  }
  engine.wait(w);
}

TEST(Circles, OfAnOpThatBorrowsWhileOthersRun) {
  BusyEngine engine;
  const Variable v = engine.variable("v"), w = engine.variable("w");
  const Ticket t = engine.push(
      [&](Completion c) {
        const Borrow held = engine.borrow(update(v));
        engine.push([] {}, {read(v), write(w)});
        EXPECT_EQ(thrown([&] { engine.wait(w); })->kind, ErrorKind::deadlock);
        c.done();
      },
      {});
  EXPECT_FALSE(engine.deadlock(t));
}

/// A Borrow that an op took and gave away when it returned is not held by what its thread runs next.
TEST(Circles, ABorrowThatItsOpGaveAwayIsNotHeldByItsThread) {
  BusyEngine engine({.threads = 1, .logical_cpus = 1});
  const Variable v = engine.variable("v"), w = engine.variable("w");
  Borrow given;
  engine.push([&] { given = engine.borrow(update(v)); }, {}).wait();
  engine.push([] {}, {read(v), write(w)});
  const Ticket t = engine.push([&] { engine.wait(w); }, {});
  EXPECT_FALSE(t.wait_for(300ms));
  given.release();
  t.wait();
}

TEST(Circles, OfACapturedOp) {
  BusyEngine engine;
  const Variable a = engine.variable("a"), b = engine.variable("b");
  Signal begun;
  Gate pushed;
  const Program program = engine.capture([&] {
    engine.push([&](Completion c) { begun.raise(), pushed.pass(), engine.wait(b), c.done(); }, {write(a)},
                {.name = "captured"});
  });
  const Ticket t = engine.replay(program);
  begun.wait();
  engine.push([] {}, {read(a), write(b)});
  pushed.open();
  EXPECT_TRUE(engine.deadlock(t));
}

// ---- random programs, and who may throw in them

struct Plan {
  static constexpr int kOps = 8, kVariables = 9;
  struct Op {
    std::vector<std::pair<int, AccessMode>> accesses;
    int waits_for_op = -1, waits_for_variable = -1;
    bool async = false;
    int lane = 0;
    bool mode_of(int variable, AccessMode& mode) const {
      for (const auto& [v, m] : accesses)
        if (v == variable) return mode = m, true;
      return false;
    }
  };
  std::vector<Op> ops{kOps};
  bool waits_in_circle[kOps] = {};

  explicit Plan(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return static_cast<int>(random() % n); };
    for (Op& op : ops) {
      for (int i = below(2); i >= 0; --i) {
        const int v = below(kVariables);
        AccessMode known;
        if (!op.mode_of(v, known)) op.accesses.push_back({v, static_cast<AccessMode>(below(4))});
      }
      op.async = below(2);
      op.lane = below(4);
      if (below(10) < 5) {
        if (below(2)) {
          op.waits_for_op = below(kOps);
        } else {
          op.waits_for_variable = below(kVariables);
        }
      }
    }
    // Whose end needs whose: what stands before it in a queue, and what its body waits for.
    bool needs[kOps][kOps] = {};
    for (int i = 0; i < kOps; ++i)
      for (int j = 0; j < kOps; ++j) needs[i][j] = (j < i && conflict(i, j)) || waits(i, j);
    for (int k = 0; k < kOps; ++k)
      for (int i = 0; i < kOps; ++i)
        for (int j = 0; j < kOps; ++j) needs[i][j] = needs[i][j] || (needs[i][k] && needs[k][j]);
    for (int i = 0; i < kOps; ++i)
      for (int j = 0; j < kOps; ++j)
        if (waits(i, j) && (j == i || needs[j][i])) waits_in_circle[i] = true;
  }
  bool conflict(int i, int j) const {
    for (const auto& [v, mode] : ops[static_cast<std::size_t>(i)].accesses) {
      AccessMode other = AccessMode::read;
      if (ops[static_cast<std::size_t>(j)].mode_of(v, other) && (mode != AccessMode::read || other != AccessMode::read))
        return true;
    }
    return false;
  }
  /// Everything is pushed when the waits begin.
  bool waits(int i, int j) const {
    const Op& op = ops[static_cast<std::size_t>(i)];
    AccessMode mode = AccessMode::read;
    return op.waits_for_op == j ||
           (op.waits_for_variable >= 0 && ops[static_cast<std::size_t>(j)].mode_of(op.waits_for_variable, mode) &&
            mode != AccessMode::read);
  }
};

class RandomCircles : public ::testing::TestWithParam<std::tuple<int, bool>> {};

/// Each op's body waits for an op or a variable, or does not. Exactly those throw whose wait is part of a circle: where
/// errors are caught at least one of each circle, and where they spread nobody else.
TEST_P(RandomCircles, OnlyMembersThrow) {
  const int part = std::get<0>(GetParam());
  const bool spreads = std::get<1>(GetParam());
  int threw_in_all = 0, circles = 0;
  for (std::uint64_t seed = 1 + static_cast<std::uint64_t>(part) * 50;
       seed <= 50 + static_cast<std::uint64_t>(part) * 50; ++seed) {
    const Plan plan(seed);
    BusyEngine engine({.threads = 2, .logical_cpus = 2});
    std::vector<Variable> v;
    for (int i = 0; i < Plan::kVariables; ++i) v.push_back(engine.variable());
    std::vector<Ticket> tickets(Plan::kOps);
    std::vector<std::string> names;
    for (int i = 0; i < Plan::kOps; ++i) names.push_back("op" + std::to_string(i));
    std::vector<std::atomic<bool>> threw(Plan::kOps);
    Gate pushed;
    for (std::size_t i = 0; i < Plan::kOps; ++i) {
      const Plan::Op& op = plan.ops[i];
      std::vector<Access> accesses;
      for (const auto& [variable, mode] : op.accesses)
        accesses.push_back({v[static_cast<std::size_t>(variable)].get(), mode});
      const auto body = [&, i] {
        pushed.pass();
        const auto wait = [&] {
          if (op.waits_for_op >= 0) tickets[static_cast<std::size_t>(op.waits_for_op)].wait();
          if (op.waits_for_variable >= 0) engine.wait(v[static_cast<std::size_t>(op.waits_for_variable)]);
        };
        try {
          wait();
        } catch (const Error& e) {
          if (e.root().kind == ErrorKind::deadlock && e.root().operation == names[i]) threw[i] = true;
          if (spreads) throw;
        }
      };
      static constexpr Place lanes[] = {Place(cpu(0)), Place(cpu(1)), Place(cpu(0), LaneKind::copy_in),
                                        Place(cpu(1), LaneKind::copy_out)};
      const PushOptions options{
          .on = lanes[op.lane], .name = names[i].c_str(), .on_poison = spreads ? OnPoison::skip : OnPoison::run};
      if (op.async) {
        tickets[i] = engine.push([body](Completion c) { body(), c.done(); }, accesses, options);
      } else {
        tickets[i] = engine.push(body, accesses, options);
      }
    }
    pushed.open();
    int members = 0, gave_up = 0;
    for (std::size_t i = 0; i < Plan::kOps; ++i) {
      bool over = false;
      const ErrorRef root = thrown([&] { over = tickets[i].wait_for(30s); });
      ASSERT_TRUE(over || root) << "seed " << seed << ": " << engine.explain(tickets[i]);
      members += plan.waits_in_circle[i];
      gave_up += threw[i];
      EXPECT_TRUE(!threw[i] || plan.waits_in_circle[i]) << "seed " << seed << ": op" << i << " only waits for a circle";
    }
    EXPECT_EQ(gave_up > 0, members > 0) << "seed " << seed;
    threw_in_all += gave_up;
    circles += members > 0;
  }
  EXPECT_GT(circles, 10);
  EXPECT_LT(circles, 45);
  EXPECT_GE(threw_in_all, circles);
}

INSTANTIATE_TEST_SUITE_P(Fifty, RandomCircles, ::testing::Combine(::testing::Range(0, 6), ::testing::Bool()));

}  // namespace
}  // namespace sluice
