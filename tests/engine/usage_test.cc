// Bad use, closures of every kind, tickets, stop, traces, and what the environment may say.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "sluice/resources/providers/sim.h"
#include "support.h"

namespace sluice {
namespace {
using testing::Gate;
using testing::QuietEngine;
using testing::Signal;
using testing::thrown;

std::string misuse(const std::function<void()>& f) {
  try {
    f();
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

/// Sets an environment variable while it lives.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    const char* old = std::getenv(name);
    if (old) old_ = old;
    had_ = old != nullptr;
    setenv(name, value, 1);
  }
  ~Environment() { had_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::string old_;
  bool had_;
};

TEST(Usage, BadPushesThrowOneClearLineAndPushNothing) {
  QuietEngine engine, other;
  const Variable v = engine.variable("v"), foreign = other.variable("foreign");
  const auto said = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_NE(text.find("[bad] usage_test.cc:"), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
  };
  const PushOptions bad{.name = "bad"};
  said(misuse([&] { engine.push(std::function<void()>(), {}, bad); }), "null closure");
  said(misuse([&] { engine.push(static_cast<void (*)()>(nullptr), {}, bad); }), "null closure");
  said(misuse([&] { engine.push([] {}, {read(Variable())}, bad); }), "names no variable");
  said(misuse([&] { engine.push([] {}, {read(v), write(foreign)}, bad); }), "'foreign' belongs to another engine");
  said(misuse([&] { engine.push([] {}, {}, {.on = cpu(7), .name = "bad"}); }), "cpu(7)");
  said(misuse([&] { engine.push([] {}, {}, {.on = gpu(0), .name = "bad"}); }), "gpu(0)");
  said(misuse([&] { engine.push([] {}, {}, {.on = sim(0), .name = "bad"}); }), "sim(0)");
  said(misuse([&] { engine.push([] {}, {}, {.on = cpu(256), .name = "bad"}); }), "no device cpu(out of range)");
  said(misuse([&] { engine.push([] {}, {}, {.on = cpu(-1), .name = "bad"}); }), "no device cpu(out of range)");
  said(misuse([&] { engine.push([] {}, {}, {.on = sim(-1), .name = "bad"}); }), "no device sim(out of range)");
  said(misuse([&] { engine.push([] {}, {}, {.on = cpu(254), .name = "bad"}); }), "no device cpu(254)");
  said(misuse([&] { engine.push([] {}, {}, {.on = {cpu(0), static_cast<LaneKind>(9)}, .name = "bad"}); }), "no lane");
  {
    const SequenceScope scope(foreign);
    said(misuse([&] { engine.push([] {}, {}, bad); }), "sequence variable belongs to another engine");
  }
  for (int priority : {-1, 8, 1000})
    said(misuse([&] { engine.push([] {}, {}, {.priority = priority, .name = "bad"}); }), "is not in 0..7");
  EXPECT_NE(misuse([&] { engine.wait(foreign); }), "");
  EXPECT_NE(misuse([&] { engine.wait(Variable()); }), "");
  EXPECT_NE(misuse([&] { engine.recover(foreign); }), "");
  EXPECT_NE(misuse([&] { engine.wait_for(foreign, std::chrono::seconds(1)); }), "");
  EXPECT_NE(misuse([&] { engine.borrow(read(Variable())); }), "");
  EXPECT_NE(misuse([&] { engine.borrow(update(foreign)); }), "");
  EXPECT_NE(misuse([&] { (void)engine.error(Variable()); }), "");
  EXPECT_NE(misuse([&] { (void)engine.error(foreign); }), "");
  EXPECT_NE(misuse([&] { (void)engine.explain(Variable()); }), "");
  EXPECT_NE(misuse([&] { (void)engine.explain(foreign); }), "");
  const Ticket elsewhere = other.push([] {}, {});
  EXPECT_NE(misuse([&] { (void)engine.explain(elsewhere); }), "");
  EXPECT_EQ(engine.in_flight(), 0u);
  engine.stop();
  said(misuse([&] { engine.push([] {}, {}, bad); }), "stopped");
  said(misuse([&] { engine.push([] {}, {write(v)}, bad); }), "stopped");
  EXPECT_NE(misuse([&] { engine.recover(v); }).find("stopped"), std::string::npos);
}

TEST(Usage, BadOptionsThrow) {
  EXPECT_NE(misuse([] { Engine({.threads = -1}); }), "");
  EXPECT_NE(misuse([] { Engine({.threads = 5000}); }), "");
  EXPECT_NE(misuse([] { Engine({.logical_cpus = 1000}); }), "");
  EXPECT_NE(misuse([] { Engine({.providers = {sim_devices(65)}}); }), "");
  EXPECT_NE(misuse([] { Engine({.providers = {sim_devices(1), sim_devices(2)}}); }), "");
  EXPECT_NE(misuse([] { Engine({.providers = {nullptr}}); }), "");
}

/// One device that nobody can use.
class OtherKind final : public Provider {
 public:
  explicit OtherKind(DeviceKind kind) : kind_(kind) {}
  DeviceKind kind() const override { return kind_; }
  int devices() const override { return 1; }
  std::unique_ptr<Stream> make_stream(int, LaneKind) override { return nullptr; }
  std::uint64_t progress() const noexcept override { return 0; }
  void await_progress(std::uint64_t, std::chrono::nanoseconds) noexcept override {}
  void* allocate(int, std::size_t, Stream*) noexcept override { return nullptr; }
  void free(int, void*, std::size_t, Stream*) noexcept override {}
  void copy(void*, const void*, std::size_t, Stream*) override {}
  void fill(void*, std::byte, std::size_t, Stream*) override {}

 private:
  const DeviceKind kind_;
};

/// -1 and 1000 are no other device's number, and their text does not name one.
TEST(Usage, DevicesOutOfRange) {
  static_assert(cpu(-1) == cpu(1000) && cpu(-1) != cpu(254) && gpu(-1) != cpu(-1));
  EXPECT_EQ(to_string(cpu(-1)), "cpu(out of range)");
  EXPECT_EQ(to_string(null(1 << 30)), "null(out of range)");
  EXPECT_EQ(to_string(sim(254)), "sim(254)");
  Engine engine;
  EXPECT_EQ(misuse([&] { (void)engine.provider(cpu(-1)); }), "no device cpu(out of range) in this engine");
}

/// A provider, or a program, may name a device of any number.
TEST(Usage, KindsOfDevicesThatThereAreNot) {
  for (const int kind : {kDeviceKinds, 200, 255}) {
    const Device device{static_cast<DeviceKind>(kind), 3};
    const ProviderFactory make = [kind]() -> std::shared_ptr<Provider> {
      return std::make_shared<OtherKind>(static_cast<DeviceKind>(kind));
    };
    const std::string number = std::to_string(kind);
    EXPECT_NE(misuse([&] { Engine({.providers = {make}}); }).find("device kind " + number), std::string::npos);
    EXPECT_EQ(to_string(device), "kind " + number + "(3)");
    Engine engine;
    EXPECT_NE(misuse([&] { engine.push([] {}, {}, {.on = device}); }).find("kind " + number), std::string::npos);
    EXPECT_NE(misuse([&] {
                const DeviceScope scope(device);
                engine.push([] {}, {});
              }).find("kind " + number),
              std::string::npos);
    EXPECT_NE(misuse([&] { engine.provider(device); }).find("kind " + number), std::string::npos);
    EXPECT_NE(misuse([&] { engine.keep(device, [] { return std::make_shared<int>(); }); }).find("kind " + number),
              std::string::npos);
    EXPECT_EQ(engine.device_count(device.kind), 0);
    EXPECT_EQ(engine.threads(device), 0);
    EXPECT_EQ(engine.lane_stats(device).issued, 0u);
  }
}

TEST(Usage, TheEnvironmentChoosesModeAndSizes) {
  {
    const Environment mode("SLUICE_ENGINE", "serial");
    Engine engine;
    std::thread::id ran;
    engine.push([&] { ran = std::this_thread::get_id(); }, {});
    EXPECT_EQ(ran, std::this_thread::get_id());
  }
  {
    const Environment mode("SLUICE_ENGINE", "explore:7");
    Engine engine;
    const Variable v = engine.variable();
    int value = 0;
    engine.push([&] { value = 1; }, {write(v)});
    engine.push([&] { value *= 5; }, {update(v)});
    engine.wait(v);
    EXPECT_EQ(value, 5);
  }
  {
    const Environment threads("SLUICE_THREADS", "3"), devices("SLUICE_LOGICAL_CPUS", "2");
    const Environment mode("SLUICE_ENGINE", "threaded");
    const Engine engine;
    EXPECT_EQ(engine.device_count(), 2);
    EXPECT_EQ(engine.threads(cpu(0)) + engine.threads(cpu(1)), 3);
  }
  for (const char* bad : {"explore:", "explore:x", "explore:12z", "fast", "explore"}) {
    const Environment mode("SLUICE_ENGINE", bad);
    const std::string text = misuse([] { Engine(); });
    EXPECT_NE(text.find(std::string("SLUICE_ENGINE=") + bad), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
  for (const char* bad : {"0", "-1", "many", "3x", "99999999999999999999"}) {
    const Environment threads("SLUICE_THREADS", bad);
    EXPECT_NE(misuse([] { Engine(); }).find("SLUICE_THREADS="), std::string::npos);
  }
}

TEST(Usage, ClosuresOfEveryKind) {
  QuietEngine engine({.threads = 1});
  const Variable v = engine.variable();
  int sum = 0;
  struct Big {
    char bytes[500] = {};
    int* sum;
    void operator()() { *sum += 1; }
  };
  Big big;
  big.sum = &sum;
  engine.push(big, {update(v)});
  struct alignas(64) Aligned {
    int* sum;
    void operator()() { *sum += reinterpret_cast<std::uintptr_t>(this) % 64 == 0 ? 10 : 0; }
  };
  engine.push(Aligned{&sum}, {update(v)});
  engine.push([&sum, owned = std::make_unique<int>(100)] { sum += *owned; }, {update(v)});
  engine.push([&sum](Context& c) { sum += c.stream() ? 0 : 1000; }, {update(v)});
  engine.push([&sum](Completion done) { sum += 10'000, done.done(); }, {update(v)});
  engine.push([&sum](Context&, Completion done) { sum += 100'000, done.done(); }, {update(v)});
  std::function<void()> wrapped = [&sum] { sum += 1'000'000; };
  engine.push(wrapped, {update(v)});
  engine.wait(v);
  EXPECT_EQ(sum, 1'111'111);
}

TEST(Usage, ManyAccesses) {
  QuietEngine engine({.threads = 2});
  std::vector<Variable> v;
  std::vector<int> values(40);
  for (int i = 0; i < 40; ++i) v.push_back(engine.variable());
  for (int round = 0; round < 50; ++round) {
    for (std::size_t i = 0; i < 40; i += 3) engine.push([&, i] { ++values[i]; }, {update(v[i])});
    std::vector<Access> all;
    for (const Variable& x : v) all.push_back(update(x));
    engine.push(
        [&] {
          for (int& x : values) x *= 2, x %= 1'000'003;
        },
        all);
  }
  engine.wait_all();
  int expected = 0;
  for (int round = 0; round < 50; ++round) expected = (expected + 1) * 2 % 1'000'003;
  EXPECT_EQ(values[0], expected);
  EXPECT_EQ(values[1], 0);
}

TEST(Usage, CancellingATicket) {
  QuietEngine engine({.threads = 1});
  Gate gate;
  Signal begun;
  const Variable v = engine.variable();
  const Ticket running = engine.push([&] { begun.raise(), gate.pass(); }, {});
  const Ticket queued = engine.push([] { ADD_FAILURE(); }, {write(v)}, {.name = "queued"});
  begun.wait();
  EXPECT_FALSE(running.cancel());
  EXPECT_TRUE(queued.cancel());
  gate.open();
  const ErrorRef root = thrown([&] { queued.wait(); });
  ASSERT_TRUE(root);
  EXPECT_EQ(root->kind, ErrorKind::cancelled);
  EXPECT_EQ(root->operation, "queued");
  EXPECT_FALSE(queued.cancel());
  EXPECT_EQ(thrown([&] { engine.wait(v); }), root);
}

TEST(Usage, StopHasADeadlineAndMayBeCalledByMany) {
  QuietEngine engine({.threads = 1});
  Gate gate;
  engine.push([&] { gate.pass(); }, {});
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(engine.stop(StopMode::drain, std::chrono::milliseconds(30)));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  gate.open();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] { EXPECT_TRUE(engine.stop(i % 2 ? StopMode::drain : StopMode::cancel)); });
  for (auto& t : threads) t.join();
}

/// A push that races with a stop is refused, or has run when the stop returns.
TEST(Usage, StopSeesEveryPushThatWasAccepted) {
  for (int i = 0; i < 200; ++i) {
    QuietEngine engine({.threads = 1});
    std::atomic<int> accepted{0}, ran{0};
    std::thread pusher([&] {
      try {
        for (;;) {
          engine.push([&] { ran.fetch_add(1); }, {});
          accepted.fetch_add(1);
        }
      } catch (const StoppedError&) {
      }
    });
    while (accepted.load() < 5) std::this_thread::yield();
    ASSERT_TRUE(engine.stop());
    const int at_stop = ran.load();
    pusher.join();
    ASSERT_EQ(at_stop, accepted.load());
  }
}

TEST(Usage, TracesHoldEveryOpAndOpenAsJson) {
  QuietEngine engine({.threads = 2, .logical_cpus = 2});
  const Variable v = engine.variable();
  engine.push([] {}, {});
  engine.wait_all();
  engine.start_trace();
  std::vector<std::uint64_t> ids;
  {
    const TagScope tag(11);
    for (int i = 0; i < 20; ++i)
      ids.push_back(engine.push([] {}, {update(v)}, {.on = cpu(i % 2), .name = "a \"quoted\" \\ name"}).id());
  }
  engine.push([] { throw std::runtime_error("x"); }, {}, {.name = "bad"});
  (void)thrown([&] { engine.wait_all(); });
  const std::vector<TraceEvent> events = engine.stop_trace();
  ASSERT_EQ(events.size(), 21u);
  std::int64_t last = 0, end = 0;
  for (const TraceEvent& e : events) {
    EXPECT_LE(e.pushed, e.ready);
    EXPECT_LE(e.ready, e.start);
    EXPECT_LE(e.start, e.end);
    EXPECT_LE(last, e.start);
    last = e.start;
    EXPECT_EQ(e.failed, std::string_view(e.name) == "bad");
    if (e.failed) continue;
    EXPECT_EQ(e.tag, 11u);
    EXPECT_GE(e.start, end) << "a chain";
    end = e.end;
    EXPECT_NE(std::find(ids.begin(), ids.end(), e.id), ids.end());
  }
  const auto json = nlohmann::json::parse(to_perfetto(events));
  EXPECT_GE(json.at("traceEvents").size(), 22u);
  EXPECT_TRUE(nlohmann::json::accept(to_perfetto({})));
  engine.push([] {}, {}).wait();
  EXPECT_TRUE(engine.stop_trace().empty());
  EXPECT_THROW(write_trace("/no/such/folder/trace.json", events), std::runtime_error);
}

TEST(Usage, VarIsAValueWithItsVariable) {
  QuietEngine engine;
  const Var<std::string> s(engine.variable("s"), "a");
  engine.push([=] { *s += "b"; }, {update(s)});
  engine.push([=] { s->append("c"); }, {update(s)});
  engine.wait(s);
  EXPECT_EQ(*s, "abc");
}

}  // namespace
}  // namespace sluice
