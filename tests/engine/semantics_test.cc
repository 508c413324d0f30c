// The engine's rules of what programs mean: order, modes, waiting, errors, scopes. The numbers are those of the rules.
#include <gtest/gtest.h>

#include <thread>

#include "sluice/resources/providers/sim.h"
#include "support.h"

namespace sluice {
namespace {
using testing::failure;
using testing::Gate;
using testing::Held;
using testing::QuietEngine;
using testing::Signal;
using testing::thrown;

void fail(const char* what) { throw std::runtime_error(what); }

// ---- 1: order

TEST(Semantics, Rule1PushesOfOneThreadTakeEffectInProgramOrder) {
  QuietEngine engine({.threads = 3});
  const Variable v = engine.variable();
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) engine.push([&, i] { order.push_back(i); }, {update(v)});
  engine.wait(v);
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(Semantics, Rule1APushInsideAnOpTakesItsPlaceWhenMade) {
  QuietEngine engine;
  const Variable v = engine.variable(), w = engine.variable();
  std::string log;
  Gate gate;
  Signal pushed;
  engine.push(
      [&] {
        gate.pass();
        engine.push([&] { log += 'n'; }, {update(v)});
        pushed.raise();
      },
      {update(w)});
  engine.push([&] { log += 'a'; }, {update(v)});
  engine.wait(v);
  gate.open();
  pushed.wait();
  engine.push([&] { log += 'b'; }, {update(v)});
  engine.wait(v);
  EXPECT_EQ(log, "anb");
}

TEST(Semantics, Rule1AWaitTakesItsPlaceAndIsLogged) {
  QuietEngine engine({.log_order = true});
  const Variable v = engine.variable("v");
  const Ticket a = engine.push([] {}, {write(v)}, {.name = "a"});
  engine.wait(v);
  const Ticket b = engine.push([] {}, {read(v)}, {.name = "b"});
  engine.wait_all();
  const auto log = engine.take_order();
  ASSERT_EQ(log.size(), 3u);
  EXPECT_EQ(log[0].id, a.id());
  EXPECT_EQ(log[1].id, 0u);
  EXPECT_EQ(log[1].variable, v.get());
  EXPECT_EQ(log[2].id, b.id());
  EXPECT_TRUE(engine.take_order().empty());
}

TEST(Semantics, Rule1ABorrowTakesItsPlaceAndIsLogged) {
  QuietEngine engine({.log_order = true});
  const Variable v = engine.variable("v"), w = engine.variable("w");
  const Ticket a = engine.push([&] { engine.borrow(read(v)).release(); }, {write(w)}, {.name = "a"});
  engine.wait_all();
  Borrow held = engine.borrow(update(v));
  const Ticket b = engine.push([] {}, {read(v)}, {.name = "b"});
  held.release();
  engine.wait_all();
  const auto log = engine.take_order();
  ASSERT_EQ(log.size(), 4u);
  EXPECT_EQ(log[0].id, a.id());
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    EXPECT_EQ(log[i].id, 0u);
    EXPECT_STREQ(log[i].name, "borrow");
    EXPECT_EQ(log[i].variable, v.get());
    EXPECT_EQ(log[i].by, i == 1 ? a.id() : 0);
  }
  EXPECT_EQ(log[3].id, b.id());
}

TEST(Semantics, Rule1SerialModeRunsANestedPushWhenTheOutermostOpReturnsOrAnOpWaitsForIt) {
  QuietEngine engine({.mode = EngineMode::serial});
  const Variable v = engine.variable();
  std::string log;
  const auto me = std::this_thread::get_id();
  engine.push(
      [&] {
        log += '1';
        EXPECT_EQ(std::this_thread::get_id(), me);
      },
      {});
  log += '2';
  engine.push(
      [&] {
        engine.push([&] { log += '4'; }, {update(v)});
        log += '3';
        engine.wait(v);
        log += '5';
        engine.push([&] { log += '7'; }, {});
        log += '6';
      },
      {});
  EXPECT_EQ(log, "1234567");
  Held held;
  engine.push(held.body(), {write(v)});
  engine.push([&] { log += '8'; }, {read(v)});
  EXPECT_EQ(log, "1234567");
  held.completion.done();
  EXPECT_EQ(log, "12345678");
}

// ---- 2: modes

TEST(Semantics, Rule2ReadsOverlapAndOthersExclude) {
  QuietEngine engine({.threads = 4});
  const Variable v = engine.variable();
  std::atomic<int> readers{0}, writers{0}, wrong{0};
  for (int i = 0; i < 600; ++i) {
    const AccessMode mode = static_cast<AccessMode>(i % 5 == 0 ? 1 + i / 5 % 3 : 0);
    const Access access{v.get(), mode};
    engine.push(
        [&, mode] {
          if (mode == AccessMode::read) {
            readers.fetch_add(1);
            wrong.fetch_add(writers.load() != 0);
            std::this_thread::yield();
            readers.fetch_sub(1);
          } else {
            wrong.fetch_add(writers.fetch_add(1) != 0 || readers.load() != 0);
            std::this_thread::yield();
            writers.fetch_sub(1);
          }
        },
        {access});
  }
  engine.wait_all();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(Semantics, Rule2WriteHealsUpdateAndReadSpreadOrderDoesNeither) {
  QuietEngine engine;
  const Variable v = engine.variable(), r = engine.variable(), o = engine.variable();
  engine.push([] { fail("bad"); }, {write(v), order(o)}, {.name = "root"});
  engine.push([] { ADD_FAILURE(); }, {read(v), write(r)});
  engine.push([] { ADD_FAILURE(); }, {update(v)});
  EXPECT_EQ(failure([&] { engine.wait(r); }), "root: bad");
  EXPECT_EQ(failure([&] { engine.wait(o); }), "");
  bool ran = false;
  engine.push([&] { ran = true; }, {order(o), order(v)});
  engine.wait(o);
  EXPECT_TRUE(ran);
  EXPECT_EQ(failure([&] { engine.wait(v); }), "root: bad");
  engine.push([] {}, {write(v)});
  engine.wait(v);
}

TEST(Semantics, Rule2AVariableNamedTwiceGetsOneJoinedAccess) {
  QuietEngine engine;
  const Variable v = engine.variable();
  const auto joined_runs_on_poison = [&](Access a, Access b) {
    engine.push([] { fail("bad"); }, {write(v)});
    bool ran = false;
    engine.push([&] { ran = true; }, {a, b});
    (void)thrown([&] { engine.wait(v); });
    engine.push([] {}, {write(v)});
    engine.wait(v);
    return ran;
  };
  EXPECT_FALSE(joined_runs_on_poison(read(v), write(v))) << "read + write = update";
  EXPECT_FALSE(joined_runs_on_poison(write(v), read(v)));
  EXPECT_FALSE(joined_runs_on_poison(update(v), write(v)));
  EXPECT_FALSE(joined_runs_on_poison(order(v), read(v)));
  EXPECT_TRUE(joined_runs_on_poison(write(v), write(v)));
  EXPECT_TRUE(joined_runs_on_poison(order(v), order(v)));
}

// ---- 3: waiting inside

TEST(Semantics, Rule3AWaitForOneselfThrowsAtOnce) {
  QuietEngine engine;
  const Variable v = engine.variable("mine");
  Ticket self;
  Gate known;
  self = engine.push(
      [&] {
        known.pass();
        EXPECT_EQ(thrown([&] { engine.wait(v); })->kind, ErrorKind::deadlock);
        EXPECT_EQ(thrown([&] { self.wait(); })->kind, ErrorKind::deadlock);
        EXPECT_EQ(thrown([&] { engine.borrow(read(v)); })->kind, ErrorKind::deadlock);
        EXPECT_EQ(thrown([&] { engine.wait_all(); })->kind, ErrorKind::deadlock);
        EXPECT_EQ(thrown([&] { engine.stop(); })->kind, ErrorKind::deadlock);
      },
      {update(v)});
  known.open();
  engine.wait_all();
}

TEST(Semantics, Rule3AWaitForOneselfThroughOthersThrows) {
  QuietEngine engine({.threads = 1});
  const Variable v = engine.variable(), w = engine.variable(), x = engine.variable();
  Gate pushed;
  const Ticket t = engine.push([&] { pushed.pass(), engine.wait(x); }, {read(v)}, {.name = "waiter"});
  engine.push([] {}, {write(v), write(w)});
  engine.push([] {}, {read(w), write(x)});
  pushed.open();
  const ErrorRef root = thrown([&] { t.wait(); });
  ASSERT_TRUE(root);
  EXPECT_EQ(root->kind, ErrorKind::deadlock);
  EXPECT_EQ(root->operation, "waiter");
  engine.wait(x);
}

TEST(Semantics, Rule3OfTwoOpsThatWaitForEachOtherOneThrows) {
  QuietEngine engine({.threads = 1});
  const Variable v = engine.variable(), w = engine.variable();
  Gate pushed;
  Ticket a, b;
  a = engine.push([&] { pushed.pass(), b.wait(); }, {write(v)}, {.name = "a"});
  b = engine.push([&] { pushed.pass(), engine.wait(v); }, {write(w)}, {.name = "b"});
  pushed.open();
  const ErrorRef ra = thrown([&] { a.wait(); }), rb = thrown([&] { b.wait(); });
  ASSERT_TRUE(ra && rb);
  EXPECT_EQ(ra->kind, ErrorKind::deadlock);
  EXPECT_EQ(ra, rb) << "one gave up, the other met its error";
}

TEST(Semantics, Rule3ALongChainOfWaitsEnds) {
  QuietEngine engine({.threads = 1});
  std::vector<Variable> v;
  constexpr int kLinks = 40;
  for (int i = 0; i <= kLinks; ++i) v.push_back(engine.variable());
  Gate gate;
  int sum = 0;
  engine.push([&] { gate.pass(), sum = 1; }, {write(v[0])});
  for (std::size_t i = 0; i < kLinks; ++i) engine.push([&, i] { engine.wait(v[i]), sum += 1; }, {write(v[i + 1])});
  gate.open();
  engine.wait(v.back());
  EXPECT_EQ(sum, kLinks + 1);
}

TEST(Semantics, Rule3AWaitWithALimitEndsByItselfAndIsNoDeadlock) {
  QuietEngine engine({.threads = 1});
  const Variable v = engine.variable(), w = engine.variable();
  Gate pushed;
  // Ends after its time although nothing moves; the other waits for it, longer than a deadlock takes to be seen.
  engine.push(
      [&] {
        pushed.pass();
        EXPECT_FALSE(engine.wait_for(w, std::chrono::milliseconds(300)));
      },
      {write(v)});
  const Ticket b = engine.push([&] { engine.wait(v); }, {write(w)});
  pushed.open();
  b.wait();
}

TEST(Semantics, Rule3AnOutsideThreadThatWaitsForWhatItBorrowsThrows) {
  QuietEngine engine;
  const Variable v = engine.variable(), w = engine.variable();
  {
    const Borrow held = engine.borrow(update(v));
    EXPECT_EQ(thrown([&] { engine.wait(v); })->kind, ErrorKind::deadlock);
    const Ticket t = engine.push([] {}, {read(v), write(w)});
    EXPECT_EQ(thrown([&] { engine.wait(w); })->kind, ErrorKind::deadlock);
    EXPECT_EQ(thrown([&] { t.wait(); })->kind, ErrorKind::deadlock);
    EXPECT_EQ(thrown([&] { engine.borrow(read(v)); })->kind, ErrorKind::deadlock);
    EXPECT_EQ(thrown([&] { engine.wait_all(); })->kind, ErrorKind::deadlock);
  }
  engine.wait_all();
}

TEST(Semantics, Rule3TwoBorrowersThatWaitForEachOtherThrow) {
  QuietEngine engine;
  const Variable v[2] = {engine.variable(), engine.variable()};
  testing::Meeting both(2);
  std::atomic<int> threw{0};
  const auto run = [&](int i) {
    const Borrow held = engine.borrow(update(v[i]));
    both.arrive_and_wait();
    threw.fetch_add(thrown([&] { engine.wait(v[1 - i]); }) != nullptr);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  EXPECT_GE(threw.load(), 1);
}

TEST(Semantics, Rule3ABorrowOfAnotherThreadIsNoDeadlock) {
  QuietEngine engine;
  const Variable v = engine.variable();
  Signal held, waiting;
  std::thread other([&] {
    Borrow b = engine.borrow(update(v));
    held.raise();
    waiting.wait();
    EXPECT_FALSE(engine.wait_for(v, std::chrono::milliseconds(150)));
  });
  held.wait();
  const Ticket t = engine.push([&] { waiting.raise(), engine.wait(v); }, {});
  t.wait();
  other.join();
}

// ---- 18: serial mode

TEST(Semantics, Rule18SerialModePoisonsAndThrowsAtTheWait) {
  QuietEngine engine({.mode = EngineMode::serial});
  const Variable v = engine.variable(), w = engine.variable();
  EXPECT_NO_THROW(engine.push([] { fail("bad"); }, {write(v)}, {.name = "op"}));
  EXPECT_NO_THROW(engine.push([] { ADD_FAILURE(); }, {read(v), write(w)}));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(failure([&] { engine.wait(w); }), "op: bad");
  EXPECT_THROW(engine.wait_all(), AggregateError);
}

/// A borrow is granted to an op in whose wait another op runs, and that one waits for the borrow's end.
TEST(Semantics, Rule18SerialModeFindsAWaitForABorrowBeneathIt) {
  QuietEngine engine({.mode = EngineMode::serial});
  const Variable v = engine.variable("v"), w = engine.variable("w");
  ErrorKind kind = ErrorKind::failed;
  Completion open;
  engine.push(
      [&] {
        engine.push([&](Completion c) { open = std::move(c); }, {update(v)});
        engine.push(
            [&] {
              open.done();  // which grants the borrow
              if (const ErrorRef e = thrown([&] { engine.wait(v); })) {
                kind = e->kind;
                fail("gave up");
              }
            },
            {update(w)}, {.name = "inner"});
        const Borrow held = engine.borrow(update(v));
      },
      {});
  EXPECT_EQ(kind, ErrorKind::deadlock);
  EXPECT_EQ(failure([&] { engine.wait(w); }), "inner: gave up");
}

TEST(Semantics, Rule18SerialModeWithSeveralThreads) {
  QuietEngine engine({.mode = EngineMode::serial, .providers = {sim_devices(1)}});
  const Variable v = engine.variable(), w = engine.variable();
  // An op waits for a borrow whose holder pushes before it lets go.
  Signal held, waiting;
  std::thread other([&] {
    Borrow b = engine.borrow(update(v));
    held.raise();
    waiting.wait();
    engine.push([] {}, {});
    b.release();
  });
  held.wait();
  engine.push([&] { waiting.raise(), engine.wait(v); }, {});
  other.join();
  engine.wait_all();
  // An op waits for what an answer from another thread only makes ready.
  Held late;
  engine.push(late.body(), {write(v)});
  engine.push([] {}, {read(v), write(w)});
  std::thread answer([&] { late.begun.wait(), late.completion.done(); });
  engine.push([&] { engine.wait(w); }, {}).wait();
  answer.join();
}

}  // namespace
}  // namespace sluice
