// What the host's code comes after on the devices, on an engine's simulated devices with a record of accesses: a
// missing wait is reported though the device has long been finished, and what is in order is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "recorded.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kBytes;
using ::testing::SizeIs;

/// A device that copies from pinned memory, which the host then writes. The variable stands for both.
class HostOrder : public ::testing::Test {
 protected:
  explicit HostOrder(EngineMode mode = EngineMode::threaded)
      : r_({}, mode, 3), v_(r_.engine->variable("v")), other_(r_.engine->variable("other")), block_(r_.block()) {
    pinned_ = r_.provider->allocate_pinned(kBytes);
  }
  ~HostOrder() override {
    EXPECT_TRUE(engine().stop());
    r_.provider->free_pinned(pinned_, kBytes);
  }
  Engine& engine() { return *r_.engine; }
  std::vector<std::string> reports() { return r_.reports(); }

  Ticket copy_in(Place on = Place(sim(0), LaneKind::copy_in)) {
    return engine().push([this](Context& c) { r_.provider->copy(block_, pinned_, kBytes, c.stream()); }, {write(v_)},
                         {.on = on, .name = "copy"});
  }
  /// Looks until all is over that was issued, as the record does not count it.
  void become_idle() {
    for (int device = 0; device < 3; ++device) {
      for (const LaneKind kind : kDeviceLanes) {
        const Place lane(sim(device), kind);
        while (engine().lane_stats(lane).finished != engine().lane_stats(lane).issued) std::this_thread::yield();
      }
    }
    while (engine().in_flight() > 0) std::this_thread::yield();
  }
  /// A copy that is over, though nobody has waited for it.
  void copy_unawaited() {
    copy_in();
    become_idle();
  }
  void touch(bool writes = true) {
    const MemoryUse uses[] = {{pinned_, kBytes, writes}};
    r_.observer().host_touches(uses);
  }
  void expect_report() {
    EXPECT_THAT(reports(), AllOf(SizeIs(1), Each(AllOf(HasSubstr("accesses without order: [copy] host_order_test.cc:"),
                                                       HasSubstr("on the host")))));
  }
  void expect_none() { EXPECT_THAT(reports(), IsEmpty()); }

  testing::Recorded r_;
  const Variable v_, other_;
  std::uint32_t* const block_;
  void* pinned_ = nullptr;
};

// ---- ops of the host

/// A way to push a host op with these accesses that touches the memory.
using PushLoader = std::function<void(Engine&, std::vector<Access>, std::function<void()> touch)>;
struct Way {
  const char* name;
  PushLoader push;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class HostOps : public HostOrder, public ::testing::WithParamInterface<Way> {
 protected:
  void load(std::vector<Access> accesses) {
    GetParam().push(engine(), std::move(accesses), [this] { touch(); });
    become_idle();
  }
};

TEST_P(HostOps, ThatListWhatTheyTouchComeAfterTheDevice) {
  copy_unawaited();
  load({update(v_)});
  expect_none();
}

TEST_P(HostOps, ThatDoNotListItAreReportedThoughTheDeviceIsFinished) {
  copy_unawaited();
  load({});
  expect_report();
}

/// The pushing thread knows that the copy is over, but a push hands nothing on.
TEST_P(HostOps, ThatListAnotherVariableAreReportedThoughAllWasAwaited) {
  copy_unawaited();
  engine().push([](Context& c) { c.stream()->launch([] {}); }, {write(other_)}, {.on = sim(1)});
  engine().wait_all();
  load({update(other_)});
  expect_report();
}

std::vector<Way> ways() {
  return {
      {"Plain",
       [](Engine& e, std::vector<Access> a, std::function<void()> f) { e.push(std::move(f), a, {.name = "loader"}); }},
      {"Io",
       [](Engine& e, std::vector<Access> a, std::function<void()> f) {
         e.push(std::move(f), a, {.on = Place(cpu(0), LaneKind::io), .name = "loader"});
       }},
      {"Scopeless", [](Engine& e, std::vector<Access> a,
                       std::function<void()> f) { e.push(std::move(f), a, {.name = "loader", .scopeless = true}); }},
      {"Async",
       [](Engine& e, std::vector<Access> a, std::function<void()> f) {
         e.push([f = std::move(f)](Completion done) { f(), done.done(); }, a, {.name = "loader"});
       }},
      {"ManyAccesses",
       [](Engine& e, std::vector<Access> a, std::function<void()> f) {
         std::vector<Variable> more;
         for (int i = 0; i < 10; ++i) a.push_back(read(more.emplace_back(e.variable())));
         e.push(std::move(f), a, {.name = "loader"});
       }},
      {"Replayed",
       [](Engine& e, std::vector<Access> a, std::function<void()> f) {
         const Program program = e.capture([&] { e.push(std::move(f), a, {.name = "loader"}); });
         e.replay(program);
       }},
      {"Nested",
       [](Engine& e, std::vector<Access> a, std::function<void()> f) {
         e.push([&e, a, f = std::move(f)] { e.push(f, a, {.name = "loader"}); }, {});
       }},
      {"Helped",
       [](Engine& e, std::vector<Access> a, std::function<void()> f) {
         e.push(std::move(f), a, {.name = "loader"});
         e.wait_all({.help = true});
       }},
  };
}
INSTANTIATE_TEST_SUITE_P(Ways, HostOps, ::testing::ValuesIn(ways()),
                         [](const auto& way) { return std::string(way.param.name); });

TEST_F(HostOrder, AReaderComesAfterTheWriteAndAWriterAfterTheReaders) {
  const auto push_reader = [&](Place on) {
    engine().push([this](Context& c) { r_.provider->copy(block_, pinned_, kBytes, c.stream()); }, {read(v_)},
                  {.on = on, .name = "copy"});
  };
  engine().push([this](Context& c) { r_.provider->copy(pinned_, block_, kBytes, c.stream()); }, {write(v_)},
                {.on = Place(sim(0), LaneKind::copy_out), .name = "copy"});
  engine().push([this] { touch(false); }, {read(v_)}, {.name = "loader"}).wait();
  expect_none();
  push_reader(Place(sim(0), LaneKind::copy_in));
  become_idle();
  engine().push([this] { touch(); }, {update(v_)}, {.name = "loader"}).wait();
  expect_none();
  push_reader(Place(sim(0), LaneKind::compute));
  become_idle();
  engine().push([this] { touch(); }, {read(v_)}, {.name = "no writer"}).wait();
  expect_report();
}

/// More lanes than a variable remembers.
TEST_F(HostOrder, AWriterComesAfterReadersOnAllLanes) {
  std::vector<std::uint32_t*> blocks;
  for (int device = 0; device < 3; ++device) {
    for (const LaneKind kind : kDeviceLanes) {
      blocks.push_back(r_.block(device));
      engine().push([this, to = blocks.back()](Context& c) { r_.provider->copy(to, pinned_, kBytes, c.stream()); },
                    {read(v_)}, {.on = {sim(device), kind}, .name = "copy"});
    }
  }
  become_idle();
  engine().push([this] { touch(); }, {update(v_)}, {.name = "loader"}).wait();
  engine().wait(v_);
  touch();
  expect_none();
}

/// The issuing body of a stream op does not know what is over, even if the op comes after it.
TEST_F(HostOrder, ABodyThatIssuesKnowsNothing) {
  copy_unawaited();
  engine().wait(v_);
  engine().push([this](Context&) { touch(); }, {update(v_)}, {.on = sim(1), .name = "hasty"}).wait();
  expect_report();
}

TEST_F(HostOrder, ACapturedBodyThatIssuesKnowsNothing) {
  const Program program = engine().capture(
      [&] { engine().push([this](Context&) { touch(); }, {update(v_)}, {.on = sim(1), .name = "hasty"}); });
  copy_unawaited();
  engine().replay(program).wait();
  expect_report();
}

TEST_F(HostOrder, ACapturedOpComesAfterACapturedCopy) {
  const Program program = engine().capture([&] {
    copy_in();
    engine().push([this] { touch(); }, {update(v_)}, {.name = "loader"});
  });
  for (int i = 0; i < 3; ++i) engine().replay(program);
  become_idle();
  expect_none();
}

// ---- threads that wait

struct Wait {
  const char* name;
  std::function<void(Engine&, const Variable&, const Ticket&)> wait;
};
void PrintTo(const Wait& wait, std::ostream* out) { *out << wait.name; }

class HostWaits : public HostOrder, public ::testing::WithParamInterface<std::tuple<EngineMode, Wait>> {
 protected:
  HostWaits() : HostOrder(std::get<0>(GetParam())) {}
  /// From here on the calling thread is judged by what it was told.
  void wait_for_another() {
    engine().push([](Context& c) { c.stream()->launch([] {}); }, {write(other_)}, {.on = sim(1)});
    engine().wait(other_);
  }
  void wait(const Ticket& ticket) { std::get<1>(GetParam()).wait(engine(), v_, ticket); }
};

TEST_P(HostWaits, AreRecorded) {
  wait_for_another();
  const Ticket ticket = copy_in();
  become_idle();
  wait(ticket);
  touch();
  expect_none();
}

TEST_P(HostWaits, ForAnotherDoNotCount) {
  const Ticket ticket = copy_in();
  become_idle();
  wait_for_another();
  touch();
  expect_report();
  wait(ticket);
}

class HostWaitsInBodies : public HostWaits {};

/// The op had not listed the variable.
TEST_P(HostWaitsInBodies, AreRecorded) {
  const Ticket ticket = copy_in();
  become_idle();
  const Ticket body = engine().push(
      [&] {
        wait(ticket);
        touch();
      },
      {});
  body.wait();
  expect_none();
}

/// Behind an op of the host, which came after the copy and wrote the variable.
TEST_P(HostWaits, BehindAnOpOfTheHostAreRecorded) {
  wait_for_another();
  engine().push([this](Context& c) { r_.provider->copy(block_, pinned_, kBytes, c.stream()); }, {read(v_)},
                {.on = Place(sim(0), LaneKind::copy_in), .name = "copy"});
  become_idle();
  const Ticket ticket = engine().push([] {}, {update(v_)});
  become_idle();
  wait(ticket);
  touch();
  expect_none();
}

std::vector<Wait> waits() {
  return {
      {"Variable", [](Engine& e, const Variable& v, const Ticket&) { e.wait(v); }},
      {"VariableFor",
       [](Engine& e, const Variable& v, const Ticket&) { EXPECT_TRUE(e.wait_for(v, std::chrono::seconds(30))); }},
      {"Ticket", [](Engine&, const Variable&, const Ticket& t) { t.wait(); }},
      {"TicketFor",
       [](Engine&, const Variable&, const Ticket& t) { EXPECT_TRUE(t.wait_for(std::chrono::seconds(30))); }},
      {"TicketDone",
       [](Engine&, const Variable&, const Ticket& t) {
         while (!t.done()) std::this_thread::yield();
       }},
      {"Borrow", [](Engine& e, const Variable& v, const Ticket&) { e.borrow(update(v)); }},
      {"All", [](Engine& e, const Variable&, const Ticket&) { e.wait_all(); }},
  };
}
std::vector<Wait> waits_in_bodies() {
  std::vector<Wait> all = waits();
  all.pop_back();  // no body may wait for all
  return all;
}
std::string name_of_wait(const ::testing::TestParamInfo<std::tuple<EngineMode, Wait>>& wait) {
  return std::string(std::get<0>(wait.param) == EngineMode::serial ? "Serial" : "Threads") +
         std::get<1>(wait.param).name;
}
const auto modes = ::testing::Values(EngineMode::threaded, EngineMode::serial);
INSTANTIATE_TEST_SUITE_P(Waits, HostWaits, ::testing::Combine(modes, ::testing::ValuesIn(waits())), name_of_wait);
INSTANTIATE_TEST_SUITE_P(Waits, HostWaitsInBodies, ::testing::Combine(modes, ::testing::ValuesIn(waits_in_bodies())),
                         name_of_wait);

// ---- what comes through other variables

TEST_F(HostOrder, ComesThroughOpsOfTheHost) {
  const Variable made = engine().variable("made"), last = engine().variable("last");
  copy_in();
  engine().push([] {}, {read(v_), write(made)});
  engine().push([] {}, {read(made), write(last)});
  become_idle();
  engine().push([this] { touch(); }, {read(last)}, {.name = "loader"}).wait();
  expect_none();
  engine().wait(other_);
  engine().wait(last);
  touch();
  expect_none();
  // A writer behind a reader.
  engine().push([this] { touch(); }, {write(made)}, {.name = "loader"}).wait();
  expect_none();
  // On the device.
  engine()
      .push(
          [this](Context& c) {
            const MemoryUse uses[] = {{block_, kBytes, true}};
            c.stream()->launch([] {}, uses);
          },
          {read(last)}, {.on = Place(sim(0), LaneKind::compute)})
      .wait();
  expect_none();
}

TEST_F(HostOrder, ATicketOfAnOpOfTheHostGivesWhatTheOpHad) {
  copy_in();
  const Ticket ticket = engine().push([] {}, {read(v_)});
  become_idle();
  engine().wait(other_);
  ticket.wait();
  touch();
  expect_none();
}

TEST_F(HostOrder, ATicketOfAnotherOpDoesNotCount) {
  const Program program = engine().capture([&] { engine().push([] {}, {update(other_)}); });
  copy_unawaited();
  const auto work = [&](Place on) { return engine().push([](Context&) {}, {update(other_)}, {.on = on}); };
  const std::vector<Ticket> tickets = {work(cpu(0)), work(sim(1)), work(cpu(0)), engine().replay(program)};
  become_idle();
  for (const Ticket& ticket : tickets) {
    ticket.wait();
    EXPECT_TRUE(ticket.done());
  }
  touch();
  expect_report();
}

/// A new variable may have an old one's place.
TEST_F(HostOrder, DiesWithItsVariables) {
  copy_in();
  for (int i = 0; i < 100; ++i) {
    const Variable w = engine().variable();
    engine().push([] {}, {read(v_), write(w)}).wait();
  }
  for (int i = 0; i < 100; ++i)
    engine().push([this] { touch(); }, {read(engine().variable())}, {.name = "loader"}).wait();
  expect_report();
}

// ---- threads that run several bodies

class HostOrderInSerialMode : public HostOrder {
 protected:
  HostOrderInSerialMode() : HostOrder(EngineMode::serial) {}
};

TEST_F(HostOrderInSerialMode, ABodyKeepsNothingForTheThreadThatRanIt) {
  copy_unawaited();
  engine().wait(other_);
  engine().push([this] { touch(); }, {update(v_)}, {.name = "loader"});
  expect_none();
  touch();
  expect_report();
}

TEST_F(HostOrderInSerialMode, ABodyKeepsNothingForTheNext) {
  copy_unawaited();
  engine().push([this] { touch(); }, {update(v_)}, {.name = "loader"});
  expect_none();
  engine().push([this] { touch(); }, {}, {.name = "no loader"});
  expect_report();
}

TEST_F(HostOrderInSerialMode, ABodyInAWaitKnowsNothingOfTheWaitingBody) {
  copy_unawaited();
  engine().push(
      [this] {
        const Ticket inner = engine().push([this] { touch(); }, {}, {.name = "inner"});
        expect_none();
        inner.wait();
        expect_report();
        touch();
        expect_none();
      },
      {update(v_)}, {.name = "outer"});
}

}  // namespace
}  // namespace sluice
