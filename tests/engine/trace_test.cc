// Traces: which arrows there are, and what a viewer reads.
#include "sluice/engine/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/resources/providers/sim.h"
#include "support.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::Gate;
using testing::Held;
using testing::QuietEngine;

using Arrows = std::set<std::pair<std::string, std::string>>;

Arrows arrows_of(const std::vector<TraceEvent>& events) {
  Arrows found;
  for (const TraceDependency& d : dependencies(events)) {
    EXPECT_LT(d.access, events[d.after].accesses.size());
    EXPECT_TRUE(found.emplace(events[d.before].name, events[d.after].name).second) << "each pair once";
  }
  return found;
}

/// Reads a trace as a viewer would: arrows end in slices, counters are never negative and end at zero.
Arrows read_trace(const std::string& text) {
  const json trace = json::parse(text);
  struct Slice {
    std::string name;
    double begin, end;
  };
  std::map<int, std::vector<Slice>> rows;
  std::map<int, std::string> row_names;
  for (const json& e : trace.at("traceEvents")) {
    if (e.at("ph") == "M") row_names[e.at("tid")] = e.at("args").at("name");
    if (e.at("ph") != "X") continue;
    const double begin = e.at("ts"), end = begin + e.at("dur").get<double>();
    for (const Slice& other : rows[e.at("tid")]) {
      const bool apart = other.end <= begin + 1e-4 || end <= other.begin + 1e-4;
      EXPECT_TRUE(apart || (other.begin <= begin && end <= other.end + 1e-4)) << "slices of a row nest";
    }
    rows[e.at("tid")].push_back({e.at("name"), begin, end});
  }
  for (const auto& [row, slices] : rows) EXPECT_TRUE(row_names.contains(row));
  const auto slice_at = [&](const json& e) -> std::string {
    const double ts = e.at("ts");
    std::string inner = "no slice";
    for (const Slice& s : rows[e.at("tid")])
      if (s.begin <= ts + 1e-4 && ts <= s.end) inner = s.name;
    return inner;
  };
  Arrows arrows;
  std::map<int, std::pair<std::string, double>> tails;
  std::map<std::string, std::pair<double, std::int64_t>> counters;
  for (const json& e : trace.at("traceEvents")) {
    if (e.at("ph") == "s") {
      EXPECT_TRUE(tails.emplace(e.at("id"), std::pair(slice_at(e), e.at("ts").get<double>())).second);
    } else if (e.at("ph") == "f") {
      EXPECT_EQ(e.at("bp"), "e");
      const auto tail = tails.find(e.at("id"));
      if (tail == tails.end()) {
        ADD_FAILURE() << "a head without a tail";
        continue;
      }
      EXPECT_LE(tail->second.second, e.at("ts").get<double>());
      arrows.emplace(tail->second.first, slice_at(e));
    } else if (e.at("ph") == "C") {
      const std::string name = e.at("name");
      const std::int64_t value = e.at("args").at("ops");
      EXPECT_GE(value, 0) << name;
      const auto last = counters.find(name);
      if (last != counters.end()) {
        EXPECT_LT(last->second.first, e.at("ts").get<double>());
      }
      counters[name] = {e.at("ts"), value};
    }
  }
  for (const auto& [name, last] : counters) EXPECT_EQ(last.second, 0) << name << " ends at zero";
  EXPECT_TRUE(rows.empty() || counters.contains("ops in flight"));
  return arrows;
}

TEST(Trace, ArrowsAreTheDependencies) {
  QuietEngine engine({.threads = 2, .logical_cpus = 2});
  const Variable a = engine.variable("a"), b = engine.variable("b"), c = engine.variable();
  Gate gate;
  engine.start_trace();
  engine.push([&] { gate.pass(); }, {write(a)}, {.name = "w1"});
  engine.push([] {}, {read(a), write(b)}, {.name = "r1"});
  engine.push([] {}, {read(a)}, {.on = cpu(1), .name = "r2"});
  engine.push([] {}, {update(a), read(b)}, {.name = "u1"});  // after r1 and r2; by way of r1 after w1
  engine.push([] {}, {write(a)}, {.name = "w2"});
  engine.push([] {}, {order(c)}, {.name = "first"});
  engine.push([] {}, {order(c), read(b)}, {.on = io(), .name = "second"});
  engine.push([] {}, {}, {.name = "alone"});
  engine.push([] {}, {write(a), write(b)}, {.name = "last"});
  gate.open();
  engine.wait_all();
  const std::vector<TraceEvent> events = engine.stop_trace();
  const Arrows expected{{"w1", "r1"},   {"w1", "r2"},        {"r1", "u1"},     {"r2", "u1"},   {"u1", "w2"},
                        {"w2", "last"}, {"first", "second"}, {"r1", "second"}, {"u1", "last"}, {"second", "last"}};
  EXPECT_EQ(arrows_of(events), expected);
  const std::string text = to_perfetto(events);
  EXPECT_EQ(read_trace(text), expected);
  EXPECT_THAT(text, ::testing::HasSubstr("cpu(1) compute, thread "));
  EXPECT_THAT(text, ::testing::HasSubstr("\"ready: cpu(0) compute\""));
  EXPECT_THAT(text, ::testing::HasSubstr("\"ready: io\""));
  EXPECT_THAT(text, ::testing::HasSubstr("\"name\": \"variable 2\""));
}

/// Random programs of one thread: the arrows are those that the order of the pushes gives, whatever ran when.
TEST(Trace, ArrowsFollowPushOrder) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    QuietEngine engine({.threads = 3, .logical_cpus = 2, .providers = {sim_devices(seed % 2 ? 1 : 0)}});
    std::vector<Variable> v;
    for (int i = 0; i < 4; ++i) v.push_back(engine.variable());
    std::map<std::uint64_t, std::size_t> number;
    struct Uses {
      int writer = -1;
      std::vector<int> readers;
    };
    std::vector<Uses> uses(v.size());
    std::set<std::pair<int, int>> expected;
    engine.start_trace();
    for (int i = 0; i < 200; ++i) {
      std::vector<Access> accesses;
      for (std::size_t k = 0; k < v.size(); ++k) {
        if (random() % 3) continue;
        const bool reads = random() % 2;
        accesses.push_back(reads ? read(v[k]) : update(v[k]));
        if (reads) {
          if (uses[k].writer >= 0) expected.emplace(uses[k].writer, i);
          uses[k].readers.push_back(i);
        } else {
          for (const int r : uses[k].readers) expected.emplace(r, i);
          if (uses[k].readers.empty() && uses[k].writer >= 0) expected.emplace(uses[k].writer, i);
          uses[k] = {i, {}};
        }
      }
      const Place on = seed % 2 && random() % 3 == 0 ? Place(sim(0)) : Place(cpu(static_cast<int>(random() % 2)));
      number[engine.push([] {}, accesses, {.on = on}).id()] = static_cast<std::size_t>(i);
    }
    engine.wait_all();
    const std::vector<TraceEvent> events = engine.stop_trace();
    ASSERT_EQ(events.size(), 200u);
    std::set<std::pair<int, int>> found;
    for (const TraceDependency& d : dependencies(events))
      found.emplace(static_cast<int>(number.at(events[d.before].id)), static_cast<int>(number.at(events[d.after].id)));
    EXPECT_EQ(found, expected) << "seed " << seed;
    read_trace(to_perfetto(events));
  }
}

TEST(Trace, OverlappingWorkOfAStreamHasRowsOfItsOwn) {
  QuietEngine engine({.providers = {sim_devices(1)}});
  Gate gate;
  const Variable x = engine.variable("x");
  engine.start_trace();
  const auto kernel = [&](Context& c) { c.stream()->launch([&] { gate.pass(); }); };
  engine.push(kernel, {write(x)}, {.on = sim(0), .name = "one"});
  engine.push(kernel, {update(x)}, {.on = sim(0), .name = "two"});
  testing::Signal issued;
  engine.push([&](Context&) { issued.raise(); }, {}, {.on = sim(0), .name = "three"});
  issued.wait();
  gate.open();
  engine.push([] {}, {read(x)}, {.name = "host"});
  engine.wait_all();
  const std::vector<TraceEvent> events = engine.stop_trace();
  EXPECT_EQ(arrows_of(events), (Arrows{{"one", "two"}, {"two", "host"}}));
  EXPECT_EQ(read_trace(to_perfetto(events)).size(), 2u);
}

std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

/// The names of the slices in each row.
std::map<std::string, std::vector<std::string>> rows_of(const std::string& text) {
  std::map<int, std::string> names;
  std::map<std::string, std::vector<std::string>> rows;
  const json trace = json::parse(text);
  for (const json& e : trace.at("traceEvents")) {
    if (e.at("ph") == "M") names[e.at("tid")] = e.at("args").at("name");
    if (e.at("ph") == "X") rows[names.at(e.at("tid"))].push_back(e.at("name"));
  }
  return rows;
}

const TraceEvent& event_of(const std::vector<TraceEvent>& events, std::string_view name) {
  const auto at = std::find_if(events.begin(), events.end(), [&](const TraceEvent& e) { return e.name == name; });
  if (at == events.end()) throw std::runtime_error(std::string(name) + " is not in the trace");
  return *at;
}

/// The host issues, and is over with that long before the device begins.
TEST(Trace, ADevicesTimesAreBesideThoseOfTheIssue) {
  QuietEngine engine({.providers = {sim_devices(1)}});
  const Variable x = engine.variable("x");
  for (const bool replayed : {false, true}) {
    SCOPED_TRACE(replayed ? "replayed" : "pushed");
    Gate gate;
    struct Ran {
      std::int64_t begin = 0, end = 0;
    } ran[2];
    testing::Signal begun;
    const auto push = [&] {
      engine.push(
          [&](Context& c) {
            c.stream()->launch([&] {
              begun.raise();
              gate.pass();
              ran[0].begin = now();
              ran[0].end = now();
            });
          },
          {write(x)}, {.on = sim(0), .name = "one"});
      engine.push([&](Context& c) { c.stream()->launch([&] { ran[1].begin = ran[1].end = now(); }); }, {update(x)},
                  {.on = sim(0), .name = "two"});
      engine.push([] {}, {read(x)}, {.name = "host"});
    };
    std::optional<Program> program;
    if (replayed) program = engine.capture(push);
    engine.start_trace();
    replayed ? (void)engine.replay(*program) : push();
    begun.wait();
    const std::int64_t opened = now();
    gate.open();
    engine.wait_all();
    const std::vector<TraceEvent> events = engine.stop_trace();
    ASSERT_EQ(events.size(), 3u);
    const TraceEvent &one = event_of(events, "one"), &two = event_of(events, "two"), &host = event_of(events, "host");
    if (!replayed) {
      EXPECT_LE(one.start, one.device_start);
    }
    EXPECT_LE(one.device_start, opened);
    EXPECT_LE(opened, ran[0].begin);
    EXPECT_LE(ran[0].end, one.device_end);
    EXPECT_LE(one.device_end, one.done);
    EXPECT_LE(one.device_end, two.device_start);
    EXPECT_LE(two.device_start, ran[1].begin);
    EXPECT_LE(ran[1].end, two.device_end);
    EXPECT_LE(two.device_end, host.start);
    EXPECT_LE(two.end, two.done);
    EXPECT_EQ(host.device_start, 0);
    EXPECT_EQ(host.device_end, 0);
    const std::string text = to_perfetto(events);
    EXPECT_EQ(read_trace(text).size(), 2u);
    const auto rows = rows_of(text);
    ASSERT_TRUE(rows.contains("sim(0) compute (device)")) << text;
    EXPECT_EQ(rows.at("sim(0) compute (device)"), (std::vector<std::string>{"one", "two"}));
  }
}

/// A body that throws, an op that is skipped, and a device that is lost: the trace has what is known.
TEST(Trace, OpsThatFailOnADevice) {
  const auto control = std::make_shared<SimControl>();
  QuietEngine engine({.providers = {sim_devices(1, {.control = control})}});
  engine.on_unobserved_error([](const ErrorRoot&) {});
  const Variable x = engine.variable("x"), y = engine.variable("y");
  engine.start_trace();
  engine.push(
      [](Context& c) {
        c.stream()->launch([] {});
        throw std::runtime_error("no");
      },
      {write(x)}, {.on = sim(0), .name = "throws"});
  engine.push([](Context& c) { c.stream()->launch([] {}); }, {update(x)}, {.on = sim(0), .name = "skipped"});
  EXPECT_THROW(engine.wait(x), Error);
  control->lose(0);
  engine.push([](Context& c) { c.stream()->launch([] {}); }, {write(y)}, {.on = sim(0), .name = "lost"});
  EXPECT_THROW(engine.wait(y), Error);
  try {
    engine.wait_all();
  } catch (const Error&) {
  }
  const std::vector<TraceEvent> events = engine.stop_trace();
  EXPECT_GT(event_of(events, "throws").device_end, 0);
  for (const char* name : {"skipped", "lost"}) EXPECT_EQ(event_of(events, name).device_end, 0) << name;
  for (const TraceEvent& e : events) EXPECT_TRUE(e.failed);
  read_trace(to_perfetto(events));
}

TEST(Trace, AnOpIsInFlightUntilItsCompletionIsAnswered) {
  QuietEngine engine;
  Held held;
  engine.start_trace();
  engine.push(held.body(), {}, {.name = "download"});
  held.begun.wait();
  const std::int64_t before = std::chrono::steady_clock::now().time_since_epoch().count();
  held.completion.done();
  engine.wait_all();
  const std::vector<TraceEvent> events = engine.stop_trace();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_LE(events[0].end, events[0].done);
  EXPECT_GE(events[0].done, before);
  read_trace(to_perfetto(events));
}

/// Pushed in one trace and finished after it: it is in none, also where another is on by then.
TEST(Trace, AnOpThatOutlivesItsTraceIsInNoOther) {
  QuietEngine engine({.threads = 1});
  const Variable v = engine.variable();
  const Program program = engine.capture([&] { engine.push([] {}, {update(v)}, {.name = "captured"}); });
  for (const bool between : {false, true}) {
    Held held;
    engine.start_trace();
    engine.push(held.body(), {write(v)}, {.name = "late"});
    engine.push([] {}, {update(v)}, {.name = "behind it"});
    engine.replay(program);
    held.begun.wait();
    EXPECT_TRUE(engine.stop_trace().empty());
    if (between) engine.start_trace();
    held.completion.done();
    engine.wait_all();
    if (!between) engine.start_trace();
    engine.start_trace();  // it goes on
    engine.push([] {}, {update(v)}, {.name = "next"});
    engine.wait_all();
    const std::vector<TraceEvent> events = engine.stop_trace();
    ASSERT_EQ(events.size(), 1u) << events[0].name;
    EXPECT_STREQ(events[0].name, "next");
  }
}

TEST(Trace, ACapturedOpHasTheIdOfItsReplay) {
  QuietEngine engine({.threads = 1});
  const Variable v = engine.variable();
  const Program program = engine.capture([&] {
    for (int i = 0; i < 3; ++i) engine.push([] {}, {update(v)}, {.name = "captured"});
  });
  engine.start_trace();
  const Ticket one = engine.replay(program), two = engine.replay(program);
  engine.wait_all();
  std::map<std::uint64_t, int> seen;
  for (const TraceEvent& e : engine.stop_trace()) ++seen[e.id];
  EXPECT_EQ(seen, (std::map<std::uint64_t, int>{{one.id(), 3}, {two.id(), 3}}));
}

/// The name of the only slice of a trace.
std::string shown(const char* name) {
  TraceEvent e{};
  e.name = name;
  e.file = "x.cc";
  e.accesses = {{0, AccessMode::write, name}};
  const json trace = json::parse(to_perfetto({&e, 1}));
  for (const json& element : trace.at("traceEvents"))
    if (element.at("ph") == "X") return element.at("name");
  return "none";
}

TEST(Trace, NamesMayHaveAnyBytes) {
  const std::string bad = "\xef\xbf\xbd";  // U+FFFD
  for (const char* good : {"", "a\"b\\c\n\x01", "\u00e9", "\u20ac", "\U0001f600", "\U0010ffff", "\ud7ff", "\ue000"})
    EXPECT_EQ(shown(good), good);
  EXPECT_EQ(shown("a\xff z"), "a" + bad + " z");
  EXPECT_EQ(shown("\x80"), bad);
  EXPECT_EQ(shown("caf\xe9"), "caf" + bad) << "Latin-1, cut off by the end";
  EXPECT_EQ(shown("\xc3("), bad + "(");
  EXPECT_EQ(shown("\xc0\xaf"), bad + bad) << "longer than need be";
  EXPECT_EQ(shown("\xe0\x80\xaf"), bad + bad + bad);
  EXPECT_EQ(shown("\xf0\x8f\x80\x80"), bad + bad + bad + bad);
  EXPECT_EQ(shown("\xed\xa0\x80"), bad + bad + bad) << "half of a pair";
  EXPECT_EQ(shown("\xf4\x90\x80\x80"), bad + bad + bad + bad) << "beyond the last";
  EXPECT_EQ(shown("\xe2\x82"), bad + bad);
  EXPECT_EQ(shown("\xf0\x9f\x98z"), bad + bad + bad + "z");
}

/// Ops over few variables, each behind the one before, and several at once.
std::vector<TraceEvent> many_events(std::size_t count) {
  std::vector<TraceEvent> events;
  events.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto t = static_cast<std::int64_t>(100 * i);
    events.push_back({"op",
                      cpu(static_cast<int>(i % 2)),
                      LaneKind::compute,
                      static_cast<std::uint32_t>(i % 3),
                      i,
                      0,
                      "x.cc",
                      1,
                      t,
                      t + 10,
                      t + 20,
                      t + 90,
                      t + 95,
                      false,
                      {}});
    events.back().accesses = {{static_cast<std::uint32_t>(i % 16), AccessMode::update, ""},
                              {static_cast<std::uint32_t>((i + 1) % 16), AccessMode::read, ""}};
  }
  return events;
}

TEST(Trace, TheFileHasTheSameText) {
  const std::string path = ::testing::TempDir() + "sluice_trace_text.json";
  for (const std::size_t count : {0u, 1u, 2000u}) {
    const std::vector<TraceEvent> events = many_events(count);
    write_trace(path, events);
    std::ifstream file(path);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(text, to_perfetto(events));
    EXPECT_EQ(json::parse(text).at("traceEvents").empty(), count == 0);
  }
  std::filesystem::remove(path);
  EXPECT_THROW(write_trace("/nowhere/at/all.json", {}), std::runtime_error);
  EXPECT_THROW(write_trace("/dev/full", many_events(2000)), std::runtime_error);
}

#ifndef SLUICE_SANITIZED  // which take memory as they please
/// Writes a trace of some 200 MiB with 64 MiB to spare.
void write_in_little_memory() {
  const std::vector<TraceEvent> events = many_events(200'000);
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  const rlim_t bytes = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{64} << 20);
  const rlimit limit{bytes, bytes};
  ::setrlimit(RLIMIT_AS, &limit);
  write_trace("/dev/null", events);
  std::_Exit(0);
}

TEST(TraceDeathTest, AFileIsWrittenPieceByPiece) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(write_in_little_memory(), ::testing::ExitedWithCode(0), "");
}
#endif

void exit_with_a_trace(const std::string& path) {
  setenv("SLUICE_TRACE", path.c_str(), 1);
  Engine& engine = Engine::instance();
  const Variable frame = engine.variable("frame");
  engine.push([] {}, {write(frame)}, {.name = "decode"});
  engine.push([] {}, {read(frame)}, {.name = "show"});
  std::exit(0);
}

TEST(TraceDeathTest, TheEnvironmentNamesAFile) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string path = ::testing::TempDir() + "sluice_trace_test.json";
  std::filesystem::remove(path);
  EXPECT_EXIT(exit_with_a_trace(path), ::testing::ExitedWithCode(0), "");
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(read_trace(text), (Arrows{{"decode", "show"}}));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace sluice
