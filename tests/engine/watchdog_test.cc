// Planted hangs: each is named with its ops, their variables, their push sites and the reason, and each ends when the
// test lets go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/engine/stream.h"
#include "watched.h"

namespace sluice {
namespace {

using testing::at;
using testing::Gate;
using testing::Held;
using testing::Signal;
using testing::Site;
using testing::Watched;

TEST(Watchdog, CompletionThatIsNeverAnswered) {
  Watched engine;
  const Variable frame = engine.variable("frame");
  Held held;
  const Site here = Site::current();
  const Ticket op = engine.push(held.body(), {write(frame)}, {.name = "download"}, here);
  engine.until(op, "Completion");
  engine.names({"'download' " + at(here) + ", writes frame)", "has returned, but its Completion is not answered"});
  for (int i = 0; i < 10; ++i) engine.look();
  EXPECT_EQ(engine.reports.find("download"), engine.reports.rfind("download")) << "once for each stall";
  held.completion.done();
  engine.wait(frame);
  EXPECT_EQ(engine.explain(frame), "frame: idle, no error");
  EXPECT_EQ(engine.explain(op), "done");
}

TEST(Watchdog, BorrowThatIsHeld) {
  Watched engine;
  const Variable frame = engine.variable("frame");
  const Site here = Site::current();
  Borrow borrow = engine.borrow(read(frame), here);
  const Site there = Site::current();
  engine.push([] {}, {update(frame)}, {.name = "resize"}, there);
  engine.names({"'resize' " + at(there) + ", updates frame)", "waits for frame behind a borrow of frame " + at(here)});
  engine.names({"  a borrow of frame " + at(here), "is held by the engine's thread", "not released"});
  borrow.release();
  engine.wait(frame);
}

TEST(Watchdog, BodyThatBlocks) {
  Watched engine;
  const Variable frame = engine.variable("frame"), thumb = engine.variable("thumb");
  Gate gate;
  Signal begun;
  const Site here = Site::current();
  engine.push([&] { begun.raise(), gate.pass(); }, {read(frame), write(thumb)}, {.name = "resize"}, here);
  begun.wait();
  engine.names({"'resize' " + at(here) + ", reads frame, writes thumb)", "is running on cpu(0), for at least 10.0 s"});
  gate.open();
  engine.wait(thumb);
}

/// An op behind a blocked one through a chain of so many variables.
void behind(int links) {
  Watched engine;
  std::vector<Variable> v;
  std::deque<std::string> names;
  for (int i = 0; i <= links; ++i)
    v.push_back(engine.variable(names.emplace_back("stage " + std::to_string(i)).c_str()));
  Gate gate;
  Signal begun;
  const Site first = Site::current();
  engine.push([&] { begun.raise(), gate.pass(); }, {write(v[0])}, {.name = "root"}, first);
  begun.wait();
  for (int i = 0; i < links; ++i) {
    const auto n = static_cast<std::size_t>(i);
    const Site here = Site::current();
    const char* name = i + 1 == links ? "last" : "middle";
    engine.push([] {}, {read(v[n]), write(v[n + 1])}, {.name = name}, here);
    engine.names({"  '" + std::string(name) + "' " + at(here) + ", reads stage " + std::to_string(i),
                  "waits for stage " + std::to_string(i), "'root' " + at(first) + ", writes stage 0)"});
  }
  engine.names({"  'root' " + at(first) + ", writes stage 0) is running on cpu(0), for at least "});
  gate.open();
  engine.wait(v.back());
}
TEST(Watchdog, BehindABlockedOpThroughOneVariable) { behind(1); }
TEST(Watchdog, BehindABlockedOpThroughTwoVariables) { behind(2); }
TEST(Watchdog, BehindABlockedOpThroughThreeVariables) { behind(3); }
TEST(Watchdog, BehindABlockedOpThroughThirtyVariables) { behind(30); }

TEST(Watchdog, AcrossDevices) {
  Watched engine({.threads = 2, .logical_cpus = 2});
  const Variable frame = engine.variable("frame");
  Gate gate;
  Signal begun;
  const Site here = Site::current();
  engine.push([&] { begun.raise(), gate.pass(); }, {write(frame)}, {.on = cpu(1), .name = "decode"}, here);
  begun.wait();
  const Site there = Site::current();
  engine.push([] {}, {read(frame)}, {.on = cpu(0), .name = "show"}, there);
  engine.names({"'show' " + at(there), "waits for frame behind 'decode' " + at(here)});
  engine.names({"  'decode' " + at(here), "is running on cpu(1)"});
  gate.open();
  engine.wait_all();
}

TEST(Watchdog, StreamThatDoesNotComplete) {
  Watched engine({.simulated_gpus = 1});
  const Variable x = engine.variable("x");
  Gate gate;
  const Site here = Site::current();
  const Ticket kernel =
      engine.push([&](Context& c) { static_cast<SimulatedStream*>(c.stream())->launch([&] { gate.pass(); }); },
                  {write(x)}, {.on = sim(0), .name = "kernel"}, here);
  engine.until(kernel, "issued");
  engine.names({"'kernel' " + at(here) + ", writes x)", "was issued to sim(0) and is not completed there"});
  gate.open();
  engine.wait(x);
}

TEST(Watchdog, HostOpBehindAStream) {
  Watched engine({.simulated_gpus = 2});
  const Variable x = engine.variable("x"), y = engine.variable("y");
  Gate gate;
  const Site here = Site::current();
  const Ticket kernel =
      engine.push([&](Context& c) { static_cast<SimulatedStream*>(c.stream())->launch([&] { gate.pass(); }); },
                  {write(x)}, {.on = sim(0), .name = "kernel"}, here);
  engine.until(kernel, "issued");
  // Another stream's op is issued at once, and its device waits.
  const Ticket other = engine.push([] {}, {read(x), write(y)}, {.on = sim(1), .name = "other"});
  engine.until(other, "waits for x");
  const Site there = Site::current();
  engine.push([] {}, {read(y)}, {.name = "print"}, there);
  engine.names({"  'print' " + at(there), "waits for y behind 'other'", "behind 'kernel' " + at(here)});
  engine.names({"  'other'", "waits for x behind 'kernel' " + at(here)});
  engine.names({"  'kernel' " + at(here), "was issued to sim(0)"});
  gate.open();
  engine.wait_all();
}

TEST(Watchdog, WaitInsideAnOpForABorrowedVariable) {
  Watched engine({.threads = 1});
  const Variable frame = engine.variable("frame"), thumb = engine.variable("thumb");
  const Site taken = Site::current();
  Borrow borrow = engine.borrow(update(frame), taken);
  const Site here = Site::current();
  Site waits;
  const Ticket op = engine.push(
      [&] {
        waits = Site::current();
        engine.wait(frame, waits);
      },
      {write(thumb)}, {.name = "resize"}, here);
  engine.until(op, "blocked in its body");
  engine.names({"'resize' " + at(here) + ", writes thumb)",
                "is running on cpu(0) and blocked in its body by a wait for frame " + at(waits),
                "behind a borrow of frame " + at(taken)});
  engine.names({"  a borrow of frame " + at(taken), "not released"});
  borrow.release();
  engine.wait(thumb);
}

TEST(Watchdog, CapReachedWhileAllAwaitCompletions) {
  Watched engine({.threads = 1, .max_ops = 4});
  const Variable x = engine.variable("x");
  std::deque<Held> held(4);
  const Site here = Site::current();
  for (Held& h : held) engine.until(engine.push(h.body(), {read(x)}, {.name = "request"}, here), "Completion");
  engine.names({"4 ops have not moved for 10 s, and the cap of 4 ops is reached"});
  engine.names({"'request' " + at(here) + ", reads x)", "its Completion is not answered"});
  for (Held& h : held) h.completion.done();
  engine.wait_all();
}

TEST(Watchdog, BlockedLaneForFiles) {
  Watched engine;
  const Variable file = engine.variable("file");
  Gate gate;
  Signal begun;
  const Site here = Site::current();
  engine.push([&] { begun.raise(), gate.pass(); }, {}, {.on = io(), .name = "slow disk"}, here);
  begun.wait();
  const Site there = Site::current();
  engine.push([] {}, {write(file)}, {.on = io(), .name = "load"}, there);
  engine.names({"'load' " + at(there) + ", writes file)",
                "is ready, but the thread of the I/O lane is busy, first with", "'slow disk' " + at(here) + ")"});
  engine.names({"  'slow disk' " + at(here) + ") is running on the I/O lane"});
  gate.open();
  engine.wait_all();
}

TEST(Watchdog, LaneOfOneThreadBlockedByAForeignWait) {
  Watched engine({.threads = 1});
  const Variable a = engine.variable("a"), b = engine.variable("b");
  Gate gate;
  Signal begun;
  const Site here = Site::current();
  engine.push([&] { begun.raise(), gate.pass(); }, {update(a)}, {.name = "lock"}, here);
  begun.wait();
  const Site there = Site::current();
  engine.push([] {}, {update(b)}, {.name = "other"}, there);
  engine.names({"'other' " + at(there) + ", updates b)", "is ready, but the thread of cpu(0) is busy",
                "'lock' " + at(here) + ", updates a)"});
  gate.open();
  engine.wait_all();
}

TEST(Watchdog, AllThreadsOfALaneBlocked) {
  Watched engine({.threads = 2});
  const Variable b = engine.variable("b");
  Gate gate;
  std::deque<Signal> begun(2);
  for (Signal& signal : begun) {
    engine.push([&] { signal.raise(), gate.pass(); }, {}, {.name = "lock"});
    signal.wait();
  }
  const Site there = Site::current();
  engine.push([] {}, {update(b)}, {.name = "other"}, there);
  engine.names({"'other' " + at(there) + ", updates b)", "is ready, but all 2 threads of cpu(0) are busy", "'lock'"});
  gate.open();
  engine.wait_all();
}

TEST(Watchdog, NestedPushThatWaitsForItsParent) {
  Watched engine;
  const Variable state = engine.variable("state");
  Gate gate;
  Signal pushed;
  const Site here = Site::current(), there = Site::current();
  engine.push(
      [&] {
        engine.push([] {}, {update(state)}, {.name = "child"}, there);
        pushed.raise();
        gate.pass();
      },
      {update(state)}, {.name = "parent"}, here);
  pushed.wait();
  engine.names({"'child' " + at(there) + ", updates state)", "waits for state behind 'parent' " + at(here)});
  gate.open();
  engine.wait(state);
}

TEST(Watchdog, WaitOutsideForAnOpenCompletion) {
  Watched engine;
  const Variable frame = engine.variable("frame");
  Held held;
  const Site here = Site::current(), there = Site::current();
  const Ticket op = engine.push(held.body(), {write(frame)}, {.name = "download"}, here);
  engine.until(op, "Completion");
  std::thread waiter([&] { engine.wait(frame, there); });
  engine.names(
      {"a wait for frame " + at(there), "behind 'download' " + at(here), "A thread outside of ops is blocked there."});
  held.completion.done();
  waiter.join();
}

TEST(Watchdog, WaitOutsideForATicket) {
  Watched engine;
  const Variable frame = engine.variable("frame");
  Held held;
  const Site here = Site::current();
  const Ticket op = engine.push(held.body(), {write(frame)}, {.name = "download"}, here);
  engine.until(op, "Completion");
  std::thread waiter([&] { op.wait(); });
  engine.until(op, "A thread outside of ops is blocked until it is done.");
  engine.names({"'download' " + at(here) + ", writes frame)", "A thread outside of ops is blocked until it is done."});
  held.completion.done();
  waiter.join();
}

TEST(Watchdog, WaitInsideAnOpForATicket) {
  Watched engine;
  const Variable frame = engine.variable("frame"), thumb = engine.variable("thumb");
  Held held;
  const Site here = Site::current(), there = Site::current();
  const Ticket first = engine.push(held.body(), {write(frame)}, {.name = "download"}, here);
  engine.until(first, "Completion");
  const Ticket second = engine.push([&] { first.wait(); }, {write(thumb)}, {.name = "resize"}, there);
  engine.until(second, "blocked in its body");
  engine.names({"'resize' " + at(there) + ", writes thumb)", "blocked in its body by 'download' " + at(here)});
  engine.names({"  'download' " + at(here), "its Completion is not answered"});
  held.completion.done();
  engine.wait(thumb);
}

TEST(Watchdog, WriterBehindReaders) {
  Watched engine({.threads = 2});
  const Variable frame = engine.variable("frame");
  Gate gate;
  Signal first, second;
  const Site here = Site::current(), there = Site::current();
  engine.push([&] { first.raise(), gate.pass(); }, {read(frame)}, {.name = "one"}, here);
  engine.push([&] { second.raise(), gate.pass(); }, {read(frame)}, {.name = "two"});
  first.wait(), second.wait();
  engine.push([] {}, {write(frame)}, {.name = "overwrite"}, there);
  engine.names(
      {"'overwrite' " + at(there) + ", writes frame)", "waits for frame behind 'one' " + at(here) + ", reads frame)"});
  const std::string text = engine.explain(frame);
  EXPECT_THAT(text, ::testing::HasSubstr("frame: 3 ops in flight. 'one' " + at(here) + ", reads frame) is running"));
  EXPECT_THAT(text, ::testing::HasSubstr("'two' "));
  EXPECT_THAT(text, ::testing::HasSubstr("Behind them waits 'overwrite' " + at(there) + ", writes frame)."));
  gate.open();
  engine.wait(frame);
}

TEST(Watchdog, BorrowThatIsNotGranted) {
  Watched engine;
  const Variable frame = engine.variable("frame");
  Held held;
  const Site here = Site::current(), there = Site::current();
  engine.until(engine.push(held.body(), {update(frame)}, {.name = "download"}, here), "Completion");
  std::thread borrower([&] { engine.borrow(read(frame), there); });
  engine.names({"  a borrow of frame " + at(there), "stands behind 'download' " + at(here)});
  held.completion.done();
  borrower.join();
}

TEST(Watchdog, OpOfManyVariables) {
  Watched engine;
  std::deque<std::string> names;
  std::vector<Variable> v;
  std::vector<Access> all;
  for (int i = 0; i < 40; ++i) v.push_back(engine.variable(names.emplace_back("v" + std::to_string(i)).c_str()));
  for (const Variable& x : v) all.push_back(update(x));
  Gate gate;
  Signal begun;
  const Site here = Site::current(), there = Site::current();
  engine.push([&] { begun.raise(), gate.pass(); }, {read(v[37])}, {.name = "reader"}, here);
  begun.wait();
  engine.push([] {}, all, {.name = "sweep"}, there);
  engine.names({"'sweep' " + at(there) + ", updates v0, v1, v2, v3, v4 and v5 and 34 more)",
                "waits for v37 behind 'reader' " + at(here) + ", reads v37)"});
  gate.open();
  engine.wait_all();
}

TEST(Watchdog, RecoveryBehindABlockedOp) {
  Watched engine;
  const Variable frame = engine.variable("frame");
  Gate gate;
  Signal begun;
  const Site here = Site::current(), there = Site::current();
  engine.push([&] { begun.raise(), gate.pass(); }, {update(frame)}, {.name = "resize"}, here);
  begun.wait();
  engine.recover(frame, there);
  engine.names({"'recover' " + at(there) + ", updates frame)", "behind 'resize' " + at(here)});
  gate.open();
  engine.wait(frame);
}

TEST(Watchdog, HandleThatIsHeldInOrder) {
  Watched engine;
  const Variable library = engine.variable("library");
  Gate gate;
  Signal begun;
  const Site here = Site::current(), there = Site::current();
  engine.push([&] { begun.raise(), gate.pass(); }, {order(library)}, {.name = "first"}, here);
  begun.wait();
  engine.push([] {}, {order(library)}, {.name = "second"}, there);
  engine.names({"'second' " + at(there) + ", takes in order library)", "waits for library behind 'first' " + at(here)});
  gate.open();
  engine.wait_all();
}

TEST(Watchdog, OpenCompletionInSerialMode) {
  Watched engine({.mode = EngineMode::serial});
  const Variable frame = engine.variable();
  Held held;
  const Site here = Site::current(), there = Site::current();
  engine.push(held.body(), {write(frame)}, {.name = "download"}, here);
  engine.push([] {}, {read(frame)}, {.name = "show"}, there);
  engine.names({"'show' " + at(there) + ", reads variable 0)", "behind 'download' " + at(here)});
  engine.names({"  'download' " + at(here), "its Completion is not answered"});
  held.completion.done();
  engine.wait(frame);
}

TEST(Watchdog, BehindAReplay) {
  Watched engine;
  const Variable frame = engine.variable("frame");
  Gate gate;
  Signal begun;
  const Program program =
      engine.capture([&] { engine.push([&] { begun.raise(), gate.pass(); }, {update(frame)}); }, "step");
  engine.replay(program);
  begun.wait();
  const Site there = Site::current();
  engine.push([] {}, {read(frame)}, {.name = "show"}, there);
  engine.names({"  'show' " + at(there), "waits for frame behind 'step' (watchdog_test.cc:"});
  engine.names({"  'step' ", "updates frame", "is running its captured ops"});
  gate.open();
  engine.wait_all();
}

// ---- what is no hang

TEST(Watchdog, WorkThatGoesOnIsNotReported) {
  Watched engine({.threads = 1});
  const Variable x = engine.variable("x");
  std::vector<Held> held(8);
  for (Held& h : held) engine.push(h.body(), {update(x)}, {.name = "step"});
  engine.look();
  for (Held& h : held) {
    h.begun.wait();
    engine.look();  // the last of them is in flight for long, but each moves in time
    h.completion.done();
  }
  engine.wait(x);
  engine.look();
  EXPECT_EQ(engine.reports, "");
}

/// An op that moves and stands again is named again.
TEST(Watchdog, EachStallIsReportedOnce) {
  Watched engine({.threads = 1});
  const Variable x = engine.variable("x");
  Gate first, second;
  Signal begun;
  engine.push([&] { first.pass(); }, {update(x)}, {.name = "first"});
  const Site here = Site::current();
  engine.push([&] { begun.raise(), second.pass(); }, {update(x)}, {.name = "second"}, here);
  engine.names({"  'second' " + at(here), "waits for x behind 'first'"});
  for (int i = 0; i < 10; ++i) engine.look();
  const std::string once = engine.reports;
  EXPECT_EQ(once.find("  'second' "), once.rfind("  'second' "));
  first.open();
  begun.wait();
  engine.names({"  'second' " + at(here), "is running on cpu(0)"});
  second.open();
  engine.wait(x);
}

}  // namespace
}  // namespace sluice
