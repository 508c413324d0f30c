// Planted hangs: each is named with its ops, their variables, their push sites and the reason, and each ends when the
// test lets go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "sluice/resources/providers/sim.h"
#include "watched.h"

namespace sluice {
namespace {

using testing::at;
using testing::Gate;
using testing::Held;
using testing::Planted;
using testing::Signal;
using testing::Site;
using testing::Watched;

/// An op behind a blocked one through a chain of so many variables.
template <int kLinks>
void behind(Planted& p) {
  const auto stage = [&](int i) { return p.v("stage " + std::to_string(i)); };
  p.blocked("root", {write(stage(0))});
  for (int i = 0; i < kLinks; ++i) p.op(i + 1 == kLinks ? "last" : "middle", {read(stage(i)), write(stage(i + 1))});
  for (int i = 0; i < kLinks; ++i)
    p.names_line("  {" + std::string(i + 1 == kLinks ? "last" : "middle") + "}, reads stage " + std::to_string(i) +
                 " ... waits for stage " + std::to_string(i) + " ... {root}, writes stage 0)");
}

struct Hang {
  const char* name;
  EngineOptions options;
  void (*plant)(Planted& p);
  std::vector<const char*> lines;  ///< of the report, as Planted::names_line has them
};
void PrintTo(const Hang& hang, std::ostream* out) { *out << hang.name; }

const Hang hangs[] = {
    {"BodyThatBlocks",
     {},
     [](Planted& p) {
       p.blocked("resize", {read(p.v("frame")), write(p.v("thumb"))});
     },
     {"{resize}, reads frame, writes thumb) is running on cpu(0), for at least 10.0 s"}},
    {"CompletionThatIsNeverAnswered",
     {},
     [](Planted& p) { p.unanswered("download", {write(p.v("frame"))}); },
     {"{download}, writes frame) has returned, but its Completion is not answered"}},
    {"BorrowThatIsHeld",
     {},
     [](Planted& p) {
       p.borrowed("mine", read(p.v("frame")));
       p.op("resize", {update(p.v("frame"))});
     },
     {"{resize}, updates frame) waits for frame behind a borrow of frame [mine]",
      "  a borrow of frame [mine] ... is held by the engine's thread ... not released"}},
    {"BorrowThatIsNotGranted",
     {},
     [](Planted& p) {
       p.unanswered("download", {update(p.v("frame"))});
       p.thread("theirs", [&p](const Site& site) { p.borrow(read(p.v("frame")), site); });
     },
     {"  a borrow of frame [theirs] ... stands behind {download}"}},
    {"BehindABlockedOpThroughOneVariable", {}, behind<1>, {"  {root}, writes stage 0) is running on cpu(0), for"}},
    {"BehindABlockedOpThroughTwoVariables", {}, behind<2>, {"  {root}, writes stage 0) is running on cpu(0), for"}},
    {"BehindABlockedOpThroughThreeVariables", {}, behind<3>, {"  {root}, writes stage 0) is running on cpu(0), for"}},
    {"BehindABlockedOpThroughThirtyVariables", {}, behind<30>, {"  {root}, writes stage 0) is running on cpu(0), for"}},
    {"AcrossDevices",
     {.threads = 2, .logical_cpus = 2},
     [](Planted& p) {
       p.blocked("decode", {write(p.v("frame"))}, cpu(1));
       p.op("show", {read(p.v("frame"))}, cpu(0));
     },
     {"{show} ... waits for frame behind {decode}", "  {decode} ... is running on cpu(1)"}},
    {"StreamThatDoesNotComplete",
     {.providers = {sim_devices(1)}},
     [](Planted& p) { p.kernel("kernel", {write(p.v("x"))}, 0); },
     {"{kernel}, writes x) was issued to sim(0) and is not completed there"}},
    {"HostOpBehindAStream",
     {.providers = {sim_devices(2)}},
     [](Planted& p) {
       p.kernel("kernel", {write(p.v("x"))}, 0);
       p.issued("other", {read(p.v("x")), write(p.v("y"))}, 1);
       p.op("print", {read(p.v("y"))});
     },
     {"  {print} ... waits for y behind {other} ... behind {kernel}", "  {other} ... waits for x behind {kernel}",
      "  {kernel} ... was issued to sim(0)"}},
    {"WaitInsideAnOpForABorrowedVariable",
     {.threads = 1},
     [](Planted& p) {
       p.borrowed("mine", update(p.v("frame")));
       p.waiting("resize", {write(p.v("thumb"))}, [&p, &site = p.site("inner"), &frame = p.v("frame")] {
         site = Site::current();
         p.wait(frame, site);
       });
     },
     {"{resize}, writes thumb) is running on cpu(0) and blocked in its body by a wait for frame [inner] ... behind a "
      "borrow of frame [mine]",
      "  a borrow of frame [mine] ... not released"}},
    {"WaitInsideAnOpForATicket",
     {},
     [](Planted& p) {
       const Ticket first = p.unanswered("download", {write(p.v("frame"))});
       p.waiting("resize", {write(p.v("thumb"))}, [first] { first.wait(); });
     },
     {"{resize}, writes thumb) ... blocked in its body by {download}",
      "  {download} ... its Completion is not answered"}},
    {"WaitOutsideForAnOpenCompletion",
     {},
     [](Planted& p) {
       p.unanswered("download", {write(p.v("frame"))});
       p.thread("waiter", [&p](const Site& site) { p.wait(p.v("frame"), site); });
     },
     {"a wait for frame [waiter] ... behind {download} ... A thread outside of ops is blocked there."}},
    {"WaitOutsideForATicket",
     {},
     [](Planted& p) {
       const Ticket t = p.unanswered("download", {write(p.v("frame"))});
       p.thread("waiter", [t](const Site&) { t.wait(); });
       p.until(t, "A thread outside of ops is blocked until it is done.");
     },
     {"{download}, writes frame) ... A thread outside of ops is blocked until it is done."}},
    {"CapReachedWhileAllAwaitCompletions",
     {.threads = 1, .max_ops = 4},
     [](Planted& p) {
       for (int i = 0; i < 4; ++i) p.unanswered("request", {read(p.v("x"))});
     },
     {"4 ops have not moved for 10 s, and the cap of 4 ops is reached",
      "{request}, reads x) ... its Completion is not answered"}},
    {"BlockedLaneForFiles",
     {},
     [](Planted& p) {
       p.blocked("slow disk", {}, io());
       p.op("load", {write(p.v("file"))}, io());
     },
     {"{load}, writes file) is ready, but the thread of the I/O lane is busy, first with {slow disk})",
      "  {slow disk}) is running on the I/O lane"}},
    {"LaneOfOneThreadBlockedByAForeignWait",
     {.threads = 1},
     [](Planted& p) {
       p.blocked("lock", {update(p.v("a"))});
       p.op("other", {update(p.v("b"))});
     },
     {"{other}, updates b) is ready, but the thread of cpu(0) is busy ... {lock}, updates a)"}},
    {"AllThreadsOfALaneBlocked",
     {.threads = 2},
     [](Planted& p) {
       p.blocked("lock", {});
       p.blocked("lock", {});
       p.op("other", {update(p.v("b"))});
     },
     {"{other}, updates b) is ready, but all 2 threads of cpu(0) are busy ... 'lock'"}},
    {"WriterBehindReaders",
     {.threads = 2},
     [](Planted& p) {
       p.blocked("one", {read(p.v("frame"))});
       p.blocked("two", {read(p.v("frame"))});
       p.op("overwrite", {write(p.v("frame"))});
       const std::string text = p.explain(p.v("frame"));
       EXPECT_THAT(text, ::testing::HasSubstr("frame: 3 ops in flight. 'one' (watchdog_test.cc:"));
       EXPECT_THAT(text, ::testing::HasSubstr(", reads frame) is running on cpu(0). 'two' (watchdog_test.cc:"));
       EXPECT_THAT(
           text, ::testing::HasSubstr("Behind them waits 'overwrite' " + at(p.site("overwrite")) + ", writes frame)."));
     },
     {"{overwrite}, writes frame) waits for frame behind {one}, reads frame)"}},
    {"NestedPushThatWaitsForItsParent",
     {},
     [](Planted& p) {
       const Site here = p.site("parent") = p.site("child") = Site::current();
       const Variable state = p.v("state");
       Signal& pushed = p.signal();
       const auto parent = [&p, &pushed, state, here] {
         p.push([] {}, {update(state)}, {.name = "child"}, here);
         pushed.raise();
         p.gate().pass();
       };
       p.push(parent, {update(state)}, {.name = "parent"}, here);
       pushed.wait();
     },
     {"{child}, updates state) waits for state behind {parent}"}},
    {"OpOfManyVariables",
     {},
     [](Planted& p) {
       std::vector<Access> all;
       for (int i = 0; i < 40; ++i) all.push_back(update(p.v("v" + std::to_string(i))));
       p.blocked("reader", {read(p.v("v37"))});
       p.op("sweep", all);
     },
     {"{sweep}, updates v0, v1, v2, v3, v4 and v5 and 34 more) waits for v37 behind {reader}, reads v37)"}},
    {"RecoveryBehindABlockedOp",
     {},
     [](Planted& p) {
       p.blocked("resize", {update(p.v("frame"))});
       p.recover(p.v("frame"), p.site("recover") = Site::current());
     },
     {"{recover}, updates frame) ... behind {resize}"}},
    {"HandleThatIsHeldInOrder",
     {},
     [](Planted& p) {
       p.blocked("first", {order(p.v("library"))});
       p.op("second", {order(p.v("library"))});
     },
     {"{second}, takes in order library) waits for library behind {first}"}},
    {"OpenCompletionInSerialMode",
     {.mode = EngineMode::serial},
     [](Planted& p) {
       p.unanswered("download", {write(p.v(""))});
       p.op("show", {read(p.v(""))});
     },
     {"{show}, reads variable 0) ... behind {download}", "  {download} ... its Completion is not answered"}},
    {"BehindAReplay",
     {},
     [](Planted& p) {
       Signal& begun = p.signal();
       const auto body = [&p, &begun] { begun.raise(), p.gate().pass(); };
       p.site("step") = Site::current();
       const Program program = p.capture([&] { p.push(body, {update(p.v("frame"))}); }, "step");
       p.replay(program, p.site("step"));
       begun.wait();
       p.op("show", {read(p.v("frame"))});
     },
     {"  {show} ... waits for frame behind {step}", "  {step} ... updates frame ... is running its captured ops"}},
};

class PlantedHang : public ::testing::TestWithParam<Hang> {};

TEST_P(PlantedHang, IsNamed) {
  Planted p(GetParam().options);
  GetParam().plant(p);
  for (const char* line : GetParam().lines) p.names_line(line);
  EXPECT_GT(p.in_flight(), 0u);
  p.let_go();
  while (p.in_flight() > 0) p.wait_all();
}
INSTANTIATE_TEST_SUITE_P(Watchdog, PlantedHang, ::testing::ValuesIn(hangs),
                         [](const auto& of) { return of.param.name; });

TEST(Watchdog, WhatItSaysWhenTheHangIsOver) {
  Planted p;
  const Ticket op = p.unanswered("download", {write(p.v("frame"))});
  p.names_line("{download} ... Completion");
  p.let_go();
  p.wait(p.v("frame"));
  EXPECT_EQ(p.explain(p.v("frame")), "frame: idle, no error");
  EXPECT_EQ(p.explain(op), "done");
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

/// Each thread's first push makes records that there were not as a look began.
TEST(Watchdog, RecordsAreAddedWhileItLooks) {
  for (int i = 0; i < 20; ++i) {
    Gate gate;
    Watched engine;
    const Variable v = engine.variable("v");
    std::atomic<int> pushed{0};
    std::vector<std::thread> threads;
    for (int k = 0; k < 12; ++k)
      threads.emplace_back([&] {
        engine.push([&] { gate.pass(); }, {write(v)}, {.name = "held"});
        ++pushed;
        gate.pass();  // a thread that ends leaves its records to the next
      });
    while (pushed.load() < 12) engine.overdue(std::chrono::nanoseconds(0));
    EXPECT_EQ(engine.in_flight(), 12U);
    gate.open();
    for (std::thread& t : threads) t.join();
  }
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
