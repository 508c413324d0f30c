// Errors as data, scopes, and access from the host: docs/semantics.md, 5, 6, 12, 14, after whose numbers the tests are
// named.
#include <gtest/gtest.h>

#include <thread>

#include "support.h"

namespace sluice {
namespace {
using testing::failure;
using testing::Gate;
using testing::QuietEngine;
using testing::Signal;
using testing::thrown;

void fail(const char* what) { throw std::runtime_error(what); }

std::vector<std::string> aggregate(Engine& engine) {
  std::vector<std::string> names;
  try {
    engine.wait_all();
  } catch (const AggregateError& e) {
    for (const ErrorRef& root : e.roots()) names.push_back(root->operation);
  }
  return names;
}

// ---- 5: wait_all, tickets, the hook

TEST(Errors, Rule5WaitAllThrowsEachRootOnceUntilCleared) {
  QuietEngine engine({.threads = 1});
  const Variable a = engine.variable(), b = engine.variable(), c = engine.variable();
  engine.push([] { fail("one"); }, {write(a)}, {.name = "first"});
  engine.push([] {}, {read(a), write(b)});
  engine.push([] {}, {read(a), write(c)});
  (void)thrown([&] { engine.wait(c); });
  engine.push([] { fail("two"); }, {read(engine.variable())}, {.name = "reader"});
  const std::vector<std::string> both = {"first", "reader"};
  EXPECT_EQ(aggregate(engine), both);
  std::thread([&] { EXPECT_EQ(aggregate(engine), both) << "the same on every thread"; }).join();
  engine.clear_errors();
  EXPECT_EQ(aggregate(engine), std::vector<std::string>{"first"}) << "still poisons";
  for (const Variable& v : {a, b, c}) engine.push([] {}, {write(v)});
  EXPECT_EQ(aggregate(engine), std::vector<std::string>{});
}

TEST(Errors, Rule5TheAggregateHasALineForEach) {
  QuietEngine engine({.threads = 1});
  engine.push([] { fail("one"); }, {}, {.name = "a"});
  engine.push([] { fail("two"); }, {}, {.name = "b"});
  try {
    engine.wait_all();
    FAIL();
  } catch (const AggregateError& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("2 errors"), std::string::npos) << text;
    EXPECT_NE(text.find("\n[a] errors_test.cc:"), std::string::npos) << text;
    EXPECT_NE(text.find("\n[b] errors_test.cc:"), std::string::npos) << text;
  }
}

TEST(Errors, Rule5WaitAllWaitsForWhatOthersPushed) {
  QuietEngine engine;
  Gate gate;
  std::atomic<int> ran{0};
  std::thread([&] {
    for (int i = 0; i < 10; ++i) engine.push([&] { gate.pass(), ran.fetch_add(1); }, {});
  }).join();
  gate.open();
  engine.wait_all();
  EXPECT_EQ(ran.load(), 10);
}

TEST(Errors, Rule5ATicketThrowsWhatItsOpThrewEveryTime) {
  QuietEngine engine;
  const Variable v = engine.variable();
  const Ticket bad = engine.push([] { fail("bad"); }, {write(v)}, {.name = "root"});
  const Ticket skipped = engine.push([] {}, {update(v)}, {.name = "next"});
  const Ticket fine = engine.push([] {}, {write(v)});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(failure([&] { bad.wait(); }), "root: bad");
    EXPECT_EQ(failure([&] { skipped.wait(); }), "root: bad");
    EXPECT_EQ(failure([&] { fine.wait(); }), "");
  }
  EXPECT_TRUE(Ticket().done());
  Ticket().wait();
}

TEST(Errors, Rule5RootsThatNobodyObservedReachTheHookOnce) {
  std::vector<std::string> told;
  {
    Engine engine({.mode_given = true, .threads = 1});
    engine.on_unobserved_error([&](const ErrorRoot& root) { told.push_back(root.operation); });
    const Variable v = engine.variable();
    engine.push([] { fail("x"); }, {write(v)}, {.name = "healed"});
    engine.push([] {}, {write(v)});
    engine.push([] { fail("x"); }, {write(engine.variable())}, {.name = "dropped"});
    engine.push([] { fail("x"); }, {write(v)}, {.name = "observed"});
    (void)thrown([&] { engine.wait(v); });
    EXPECT_EQ(aggregate(engine), std::vector<std::string>{"observed"});
    engine.push([] { fail("x"); }, {}, {.name = "late"});
    engine.stop();
    EXPECT_EQ(told, (std::vector<std::string>{"healed", "dropped", "late"}));
  }
  EXPECT_EQ(told.size(), 3u);
}

TEST(Errors, Rule5ACancelledScopeIsOneRoot) {
  QuietEngine engine({.threads = 1});
  const Variable a = engine.variable(), b = engine.variable(), other = engine.variable();
  Gate gate;
  Signal begun;
  bool seen = false, ran = false;
  CancelScope scope;
  {
    const CancelScope::Guard guard(scope);
    engine.push([&](Context& c) { begun.raise(), gate.pass(), seen = c.cancelled(); }, {});
    engine.push([] { ADD_FAILURE(); }, {write(a)});
    engine.push([] { ADD_FAILURE(); }, {write(b)});
  }
  engine.push([&] { ran = true; }, {write(other)});
  begun.wait();
  scope.cancel();
  gate.open();
  const ErrorRef ra = thrown([&] { engine.wait(a); }), rb = thrown([&] { engine.wait(b); });
  ASSERT_TRUE(ra && rb);
  EXPECT_EQ(ra, rb);
  EXPECT_EQ(ra->kind, ErrorKind::cancelled);
  engine.wait(other);
  EXPECT_TRUE(ran && seen);
  engine.recover(a);
  engine.wait(a);
}

TEST(Errors, Rule5AnInnerErrorThatABodyLetsThroughStaysTheRoot) {
  QuietEngine engine;
  const Variable v = engine.variable(), w = engine.variable();
  engine.push([] { fail("inner"); }, {write(v)}, {.name = "root"});
  engine.push([&] { engine.wait(v); }, {write(w)}, {.name = "waiter"});
  EXPECT_EQ(failure([&] { engine.wait(w); }), "root: inner");
}

TEST(Errors, Rule5AnotherEnginesRootStaysItself) {
  QuietEngine one, two;
  const Variable v = one.variable(), w = two.variable(), x = two.variable();
  two.push([] { fail("of two"); }, {write(x)}, {.name = "two"});
  one.push([] { fail("of one"); }, {write(v)}, {.name = "one"});
  two.push([&] { one.wait(v); }, {write(w)}, {.name = "waiter"});
  EXPECT_EQ(failure([&] { two.wait(w); }), "one: of one");
  EXPECT_EQ(failure([&] { two.wait(x); }), "two: of two");
  EXPECT_EQ(aggregate(two).size(), 2u);
}

TEST(Errors, Rule5WaitAllKnowsTheRootsOfOthersAndOfBefore) {
  QuietEngine other({.threads = 1}), engine({.threads = 1});
  const Variable theirs = other.variable(), mine = engine.variable();
  other.push([] { fail("x"); }, {write(theirs)}, {.name = "theirs"});
  const auto lets_it_through = [&] { other.wait(theirs); };
  const Ticket ticket = engine.push(lets_it_through, {read(mine)});
  EXPECT_EQ(failure([&] { ticket.wait(); }), "theirs: x");
  EXPECT_EQ(aggregate(engine), std::vector<std::string>{"theirs"});
  engine.clear_errors();
  EXPECT_EQ(aggregate(engine), std::vector<std::string>{});

  // An error that was caught, healed and forgotten, and is thrown once more.
  engine.push([] { fail("y"); }, {write(mine)}, {.name = "before"});
  std::exception_ptr kept;
  try {
    engine.wait(mine);
  } catch (...) {
    kept = std::current_exception();
  }
  engine.push([] {}, {write(mine)});
  EXPECT_EQ(aggregate(engine), std::vector<std::string>{});
  engine.push([&] { std::rethrow_exception(kept); }, {read(mine)});
  EXPECT_EQ(aggregate(engine), std::vector<std::string>{"before"});
  engine.clear_errors();
  const Program program = engine.capture([&] { engine.push([&] { std::rethrow_exception(kept); }, {}); });
  engine.replay(program);
  EXPECT_EQ(aggregate(engine), std::vector<std::string>{"before"});
  engine.clear_errors();
  EXPECT_EQ(aggregate(engine), std::vector<std::string>{});
}

TEST(Errors, Rule5OfSeveralRootsTheFirstNamedCounts) {
  QuietEngine engine;
  std::vector<Variable> v;
  for (int i = 0; i < 8; ++i) v.push_back(engine.variable());
  constexpr const char* names[] = {"0", "1", "2", "3", "4", "5", "6", "7"};
  for (std::size_t i = 0; i < 8; ++i) engine.push([] { fail("x"); }, {write(v[i])}, {.name = names[i]});
  for (std::size_t i = 0; i < 8; ++i) {
    const Variable out = engine.variable();
    engine.push([] {}, {write(out), read(v[i]), read(v[(i + 3) % 8]), update(v[(i + 5) % 8])});
    EXPECT_EQ(thrown([&] { engine.wait(out); })->operation, names[i]);
    engine.push([] { fail("x"); }, {write(v[(i + 5) % 8])}, {.name = names[(i + 5) % 8]});
  }
}

TEST(Errors, RootsSayWhatAndWhere) {
  QuietEngine engine;
  const Variable v = engine.variable();
  const int line = __LINE__ + 1;
  engine.push([] { fail("no such file"); }, {write(v)}, {.name = "resize"});
  const ErrorRef root = thrown([&] { engine.wait(v); });
  ASSERT_TRUE(root);
  EXPECT_EQ(root->to_string(), "[resize] errors_test.cc:" + std::to_string(line) + ": no such file");
  EXPECT_THROW(std::rethrow_exception(root->cause), std::runtime_error);
  EXPECT_EQ(engine.error(v), root);
  EXPECT_FALSE(engine.error(engine.variable()));
}

// ---- 6: scopes

TEST(Errors, Rule6ScopesTravelWithThePush) {
  QuietEngine engine({.threads = 2, .logical_cpus = 2});
  ScopeState seen[3];
  {
    const DeviceScope device(cpu(1));
    const TagScope tag(9);
    const ScopeGuard restore;
    current_scope().flags = 5;
    engine
        .push(
            [&](Context& c) {
              seen[0] = current_scope();
              EXPECT_EQ(c.device(), cpu(1));
              engine.push([&] { seen[1] = current_scope(); }, {});
              current_scope().flags = 77;  // stays inside of the body
            },
            {})
        .wait();
    engine.push([&] { seen[2] = current_scope(); }, {}, {.on = cpu(0)});
  }
  while (engine.in_flight() > 0) engine.wait_all();
  for (int i : {0, 1}) {
    EXPECT_EQ(seen[i].device, cpu(1));
    EXPECT_EQ(seen[i].flags, 5u);
    EXPECT_EQ(seen[i].tag, 9u);
  }
  EXPECT_EQ(seen[2].device, cpu(0));
  EXPECT_EQ(seen[2].flags, 5u);
  EXPECT_EQ(current_scope().flags, 0u);
  EXPECT_EQ(current_scope().device, cpu(0));
}

/// Sets all of it, without a guard.
void spoil_scope(Device device) {
  ScopeState& scope = current_scope();
  scope.device = device;
  scope.tag = 7;
  scope.flags = 3;
  scope.cancel = std::make_shared<detail::CancelState>();
  scope.cancel->cancelled = true;
}

bool is_own_scope(const ScopeState& scope) {
  return scope.device == cpu(0) && scope.tag == 0 && scope.flags == 0 && !scope.cancel && !scope.sequence;
}

TEST(Errors, Rule6WhatABodySetsInItsScopeEndsWithIt) {
  QuietEngine engine({.threads = 1, .logical_cpus = 2});
  int seen = 0, nested = 0;
  const auto look = [&] {
    seen += is_own_scope(current_scope());
    engine.push([&](Context& c) { nested += c.device() == cpu(0); }, {});
  };
  const Variable v = engine.variable();
  struct Spoils {  // as it is destroyed
    bool armed = true;
    Spoils() = default;
    Spoils(Spoils&& other) noexcept : armed(std::exchange(other.armed, false)) {}
    ~Spoils() {
      if (armed) spoil_scope(cpu(1));
    }
    void operator()() const {}
  };
  for (int i = 0; i < 100; ++i) {
    engine.push([] { spoil_scope(cpu(1)); }, {update(v)});
    engine.push(look, {update(v)});
    engine.push([] { spoil_scope(cpu(1)), throw 1; }, {});
    engine.push(look, {update(v)});
    engine.push([](Completion done) { spoil_scope(cpu(1)), done.done(); }, {update(v)});
    engine.push(look, {update(v)});
    engine.push(Spoils(), {update(v)});
    engine.push(look, {update(v)});
    const TagScope tag(5);
    engine.push(Spoils(), {update(v)});
    current_scope().tag = 0;
    engine.push(look, {update(v)});
  }
  engine.wait(v);
  while (engine.in_flight() > 0) thrown([&] { engine.wait_all({.help = false}); });
  EXPECT_EQ(seen, 500);
  EXPECT_EQ(nested, 500);
}

TEST(Errors, Rule6WhatACapturedBodySetsInItsScopeEndsWithIt) {
  QuietEngine engine({.threads = 1, .logical_cpus = 2});
  const Variable v = engine.variable();
  int seen = 0;
  const Program program = engine.capture([&] {
    for (int i = 0; i < 3; ++i) {
      engine.push([] { spoil_scope(cpu(1)); }, {update(v)});
      engine.push([&] { seen += is_own_scope(current_scope()); }, {update(v)});
    }
  });
  for (int i = 0; i < 10; ++i) engine.replay(program);
  engine.wait(v);
  EXPECT_EQ(seen, 30);
}

TEST(Errors, Rule6WhatABodySetsInItsScopeEndsWithItWhereAWaiterRunsIt) {
  QuietEngine engine({.threads = 1, .logical_cpus = 2});
  for (int i = 0; i < 100; ++i) {
    const Variable v = engine.variable();
    int seen = 0;
    for (int k = 0; k < 10; ++k) {
      engine.push([] { spoil_scope(cpu(1)); }, {update(v)});
      engine.push([&] { seen += is_own_scope(current_scope()); }, {update(v)});
    }
    engine.wait_all();
    EXPECT_EQ(seen, 10);
    EXPECT_TRUE(is_own_scope(current_scope()));
  }
}

TEST(Errors, Rule6ASequenceScopeRunsPushesInOrder) {
  QuietEngine engine({.threads = 3});
  std::vector<int> order;
  {
    const SequenceScope scope(engine.variable("sequence"));
    for (int i = 0; i < 100; ++i) engine.push([&, i] { order.push_back(i); }, {});
  }
  engine.wait_all();
  EXPECT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(Errors, Rule6AClosureIsGoneBeforeItsOpCountsAsComplete) {
  QuietEngine engine({.threads = 2});
  for (int i = 0; i < 200; ++i) {
    const Variable v = engine.variable();
    auto token = std::make_shared<int>(1);
    const std::weak_ptr<int> watch = token;
    engine.push([held = std::move(token)] {}, {write(v)});
    engine.wait(v);
    ASSERT_TRUE(watch.expired());
    auto second = std::make_shared<int>(1);
    const std::weak_ptr<int> skipped = second;
    engine.push([] { fail("x"); }, {write(v)});
    engine.push([held = std::move(second)] {}, {update(v)});
    (void)thrown([&] { engine.wait(v); });
    ASSERT_TRUE(skipped.expired());
  }
}

TEST(Errors, Rule6OnPoisonRunSeesEachAccessesError) {
  QuietEngine engine;
  const Variable a = engine.variable(), b = engine.variable(), c = engine.variable(), out = engine.variable();
  engine.push([] { fail("x"); }, {write(a)}, {.name = "root"});
  engine.push([] {}, {update(a), write(c)});
  std::string seen;
  engine.push(
      [&](Context& x) {
        for (const Variable& v : {a, b, c}) seen += x.error(v) ? x.error(v)->operation + ";" : "-;";
        x.heal(c);
        EXPECT_THROW(x.heal(a), UsageError);
      },
      {read(a), read(b), update(c), write(out)}, {.on_poison = OnPoison::run});
  engine.wait(out);
  EXPECT_EQ(seen, "root;-;root;");
  engine.wait(c);
  EXPECT_NE(failure([&] { engine.wait(a); }), "");
  engine.push([] {}, {update(a)}, {.on_poison = OnPoison::run});
  EXPECT_NE(failure([&] { engine.wait(a); }), "") << "run alone heals nothing";
}

// ---- 12: wait and borrow

TEST(Errors, Rule12WaitMeansReadableNow) {
  Gate gate, reader;  // the engine goes first, and waits for those in them
  Signal reading;
  int value = 0;
  QuietEngine engine;
  const Variable v = engine.variable();
  engine.push([&] { gate.pass(), value = 1; }, {write(v)});
  EXPECT_FALSE(engine.wait_for(v, std::chrono::milliseconds(1)));
  EXPECT_TRUE(engine.wait_for(engine.variable(), std::chrono::nanoseconds(0)));
  gate.open();
  engine.wait(v);
  EXPECT_EQ(value, 1);
  engine.push([&] { reading.raise(), reader.pass(); }, {read(v)});
  reading.wait();
  engine.wait(v);  // a reader is in nobody's way
  reader.open();
}

TEST(Errors, Rule12ABorrowHoldsLikeAnOp) {
  QuietEngine engine({.threads = 2});
  const Variable v = engine.variable();
  int value = 0;
  engine.push([&] { value = 1; }, {write(v)});
  Borrow held = engine.borrow(update(v));
  EXPECT_EQ(std::exchange(value, 2), 1);
  const Ticket t = engine.push([&] { value *= 10; }, {update(v)});
  EXPECT_FALSE(t.wait_for(std::chrono::milliseconds(2)));
  held.release();
  held.release();
  t.wait();
  EXPECT_EQ(value, 20);
  Borrow one = engine.borrow(read(v)), two = engine.borrow(read(v));
  engine.push([] {}, {read(v)}).wait();
  const Ticket w = engine.push([&] { value = 3; }, {write(v)});
  one = Borrow();
  EXPECT_FALSE(w.wait_for(std::chrono::milliseconds(2)));
  std::thread([moved = std::move(two)]() mutable { moved.release(); }).join();
  w.wait();
  engine.push([] { fail("x"); }, {write(v)}, {.name = "bad"});
  EXPECT_EQ(failure([&] { engine.borrow(read(v)); }), "bad: x");
  engine.push([] {}, {write(v)});
  engine.wait(v);
}

TEST(Errors, Rule12AnOpCanBorrow) {
  QuietEngine engine({.threads = 1});
  const Variable v = engine.variable();
  int value = 0;
  engine
      .push(
          [&] {
            engine.push([&] { value = 4; }, {write(v)});
            const Borrow held = engine.borrow(update(v));
            value += 1;
          },
          {})
      .wait();
  engine.wait(v);
  EXPECT_EQ(value, 5);
}

// ---- 14: intact or torn

TEST(Errors, Rule14IntactIsRecoveredTornIsNot) {
  QuietEngine engine({.threads = 1});
  const Variable bad = engine.variable();
  engine.push([] { fail("x"); }, {write(bad)});
  const auto recovers = [&](const Variable& v) {
    EXPECT_NE(failure([&] { engine.wait(v); }), "");
    engine.recover(v).wait();
    return failure([&] { engine.wait(v); }).empty();
  };
  const Variable skipped = engine.variable();
  engine.push([] {}, {read(bad), update(skipped)});
  EXPECT_TRUE(recovers(skipped)) << "skipped: the old value is whole";
  const Variable thrown_at = engine.variable();
  engine.push([] { fail("x"); }, {update(thrown_at)});
  EXPECT_FALSE(recovers(thrown_at)) << "a body that threw";
  const Variable clean = engine.variable();
  engine.push([](Context& c) { c.wrote_nothing(), fail("x"); }, {update(clean)});
  EXPECT_TRUE(recovers(clean)) << "a body that reports that it wrote nothing";
  engine.push([] {}, {read(bad), update(thrown_at)});
  EXPECT_FALSE(recovers(thrown_at)) << "torn wins";
  const Variable empty = engine.variable("empty", false);
  engine.push([] {}, {read(bad), write(empty)});
  EXPECT_FALSE(recovers(empty)) << "never had a value";
  engine.push([] {}, {write(empty)});
  engine.push([] {}, {read(bad), update(empty)});
  EXPECT_TRUE(recovers(empty)) << "has one now";
  Gate gate;
  engine.push([&] { gate.pass(); }, {});
  const Variable cancelled = engine.variable();
  EXPECT_TRUE(engine.push([] {}, {update(cancelled)}).cancel());
  gate.open();
  EXPECT_TRUE(recovers(cancelled));
}

TEST(Errors, Rule14RecoveryIsPushedAndWaitAllCountsIt) {
  QuietEngine engine({.threads = 1});
  for (int i = 0; i < 100; ++i) {
    const Variable v = engine.variable();
    Gate gate;
    engine.push([&](Context& c) { gate.pass(), c.wrote_nothing(), fail("x"); }, {update(v)});
    const Ticket t = engine.recover(v);
    EXPECT_FALSE(t.cancel());
    bool ran = false;
    engine.push([&] { ran = true; }, {read(v)});
    gate.open();
    EXPECT_EQ(aggregate(engine), std::vector<std::string>{});
    EXPECT_TRUE(ran);
    engine.clear_errors();
  }
}

}  // namespace
}  // namespace sluice
