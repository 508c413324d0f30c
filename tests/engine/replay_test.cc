// Capture and replay: a replay does what the same pushes do one by one.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "oracle.h"
#include "sluice/engine/stream.h"
#include "support.h"

namespace sluice {
namespace {
using testing::failure;
using testing::QuietEngine;
using testing::thrown;

TEST(Replay, RunsTheCapturedPushesEachTime) {
  QuietEngine engine;
  const Variable a = engine.variable("a"), b = engine.variable("b");
  int x = 1, y = 0;
  const Program program = engine.capture([&] {
    EXPECT_TRUE(engine.push([&] { x *= 2; }, {update(a)}).done());
    engine.push([&] { y = x + 1; }, {read(a), write(b)});
    engine.push([&] { x += y; }, {update(a), read(b)});
  });
  EXPECT_EQ(program.size(), 3u);
  EXPECT_EQ(x, 1) << "a capture runs nothing";
  for (int i = 0; i < 3; ++i) engine.replay(program);
  engine.push([&] { x += 1000; }, {update(a)});
  engine.replay(program).wait();
  engine.wait(b);
  int u = 1, v = 0;
  for (int i = 0; i < 4; ++i) {
    if (i == 3) u += 1000;
    u *= 2, v = u + 1, u += v;
  }
  EXPECT_EQ(x, u);
  EXPECT_EQ(y, v);
}

TEST(Replay, StandsInItsPlaceInTheOrder) {
  QuietEngine engine;
  const Variable a = engine.variable();
  testing::Held held;
  int x = 0, seen = -1;
  engine.push(held.body(), {write(a)});
  const Program program = engine.capture([&] { engine.push([&] { ++x; }, {update(a)}); });
  const Ticket replay = engine.replay(program);
  engine.push([&] { seen = x; }, {read(a)});
  held.begun.wait();
  EXPECT_FALSE(replay.done());
  EXPECT_EQ(x, 0);
  held.completion.done();
  engine.wait_all();
  EXPECT_EQ(seen, 1);
}

/// Two readers meet inside their bodies, behind a writer, in each replay.
TEST(Replay, RunsInParallel) {
  QuietEngine engine({.threads = 2});
  const Variable a = engine.variable(), b = engine.variable(), c = engine.variable();
  std::unique_ptr<testing::Meeting> meeting;
  const Program program = engine.capture([&] {
    engine.push([&] { meeting = std::make_unique<testing::Meeting>(2); }, {write(a)});
    engine.push([&] { meeting->arrive_and_wait(); }, {read(a), write(b)});
    engine.push([&] { meeting->arrive_and_wait(); }, {read(a), write(c)});
  });
  for (int i = 0; i < 200; ++i) engine.replay(program);
  engine.wait_all();
}

TEST(Replay, NeverRunsBesideItself) {
  QuietEngine engine({.threads = 2});
  std::atomic<int> inside{0}, runs{0};
  const Program program = engine.capture([&] {
    engine.push(
        [&] {
          EXPECT_EQ(inside.fetch_add(1), 0);
          ++runs;
          inside.fetch_sub(1);
        },
        {});
  });
  std::thread other([&] {
    for (int i = 0; i < 300; ++i) engine.replay(program);
  });
  for (int i = 0; i < 300; ++i) engine.replay(program);
  other.join();
  engine.wait_all();
  EXPECT_EQ(runs, 600);
}

// ---- against the same pushes in serial mode

constexpr int kVariables = 12;

/// One engine's run of a random scenario: a stretch of ops, issued `kRounds` times, with other pushes in between.
/// Whether an op throws depends on the round.
class Scenario {
 public:
  Scenario(std::uint64_t seed, bool replays, int threads)
      : engine_(QuietEngine::given({.mode = replays ? EngineMode::threaded : EngineMode::serial,
                                    .threads = threads,
                                    .logical_cpus = replays ? 2 : 1})),
        random_(seed),
        replays_(replays) {
    engine_.on_unobserved_error([](const ErrorRoot&) {});
    std::mt19937_64 valued(seed);
    for (int i = 0; i < kVariables; ++i) {
      variables_.push_back(engine_.variable(names[static_cast<std::size_t>(i)], valued() % 4 != 0));
      values_[static_cast<std::size_t>(i)] = static_cast<std::uint64_t>(i);
    }
    round_variable_ = engine_.variable();
  }

  std::vector<std::string> run() {
    std::vector<std::string> log;
    const std::uint64_t shape = random_();
    Program program;
    if (replays_) program = engine_.capture([&] { stretch(shape); });
    for (int round = 0; round < 6; ++round) {
      engine_.push([this, round] { round_ = round; }, {write(round_variable_)});
      const std::uint64_t between = random_();
      if (between % 3 == 0) engine_.recover(variables_[between / 8 % kVariables]);
      if (between % 5 == 0) one(static_cast<int>(between % 1000), between);
      if (replays_) {
        engine_.replay(program);
      } else {
        stretch(shape);
      }
      if (between % 7 == 0) log.push_back(failure([&] { engine_.wait(variables_[between / 64 % kVariables]); }));
    }
    for (int i = 0; i < kVariables; ++i) {
      log.push_back(failure([&] { engine_.wait(variables_[static_cast<std::size_t>(i)]); }));
      if (log.back().empty()) log.back() = std::to_string(values_[static_cast<std::size_t>(i)]);
    }
    // Intact or torn: what a recovery leaves.
    for (const Variable& v : variables_) {
      engine_.recover(v);
      log.push_back(failure([&] { engine_.wait(v); }));
    }
    return log;
  }

 private:
  void stretch(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const int ops = 5 + static_cast<int>(random() % 40);
    for (int i = 0; i < ops; ++i) one(i, random());
  }

  void one(int id, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::pair<std::size_t, AccessMode>> touched;
    std::set<std::size_t> seen;
    for (int i = 0, n = static_cast<int>(random() % 6); i < n; ++i) {
      const std::size_t v = random() % kVariables;
      if (!seen.insert(v).second) continue;
      touched.emplace_back(v, static_cast<AccessMode>(random() % 4));
    }
    std::vector<Access> accesses{read(round_variable_)};
    for (const auto& [v, mode] : touched) accesses.push_back({variables_[v].get(), mode});
    const std::uint64_t salt = random();
    const bool runs_poisoned = random() % 8 == 0, heals = random() % 2, late = random() % 6 == 0;
    const auto body = [this, touched, id, salt, runs_poisoned, heals](Context& context) {
      const std::uint64_t fate = oracle::mix(salt, static_cast<std::uint64_t>(round_)) % 16;
      if (fate == 0) throw std::runtime_error("op " + std::to_string(id));
      if (fate == 1) {
        context.wrote_nothing();
        throw std::runtime_error("intact op " + std::to_string(id));
      }
      std::uint64_t h = salt;
      for (const auto& [v, mode] : touched) {
        if (runs_poisoned && context.error(variables_[v])) {
          h = oracle::mix(h, 77);
          if (heals && mode == AccessMode::update) context.heal(variables_[v]);
          continue;
        }
        if (mode == AccessMode::read || mode == AccessMode::update) h = oracle::mix(h, values_[v]);
      }
      for (const auto& [v, mode] : touched)
        if (mode == AccessMode::update || mode == AccessMode::write) values_[v] = oracle::mix(h, v);
    };
    PushOptions options{.on = replays_ ? cpu(static_cast<int>(salt % 2)) : cpu(0),
                        .priority = static_cast<int>(salt % 8),
                        .name = names[static_cast<std::size_t>(id) % names.size()],
                        .on_poison = runs_poisoned ? OnPoison::run : OnPoison::skip};
    if (late) {
      engine_.push(
          [body](Context& context, Completion done) {
            body(context);
            done.done();
          },
          accesses, options);
    } else {
      engine_.push(body, accesses, options);
    }
  }

  static constexpr std::array names{"ant", "bee", "cat",  "dog", "eel", "fox",
                                    "gnu", "hen", "ibis", "jay", "kea", "lynx"};

  Engine engine_;
  std::mt19937_64 random_;
  const bool replays_;
  std::vector<Variable> variables_;
  Variable round_variable_;
  std::array<std::uint64_t, kVariables> values_{};
  int round_ = 0;
};

TEST(Replay, EqualsThePushesOneByOne) {
#ifdef SLUICE_SANITIZED
  constexpr std::uint64_t kSeeds = 150;
#else
  constexpr std::uint64_t kSeeds = 600;
#endif
  int poisoned = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto expected = Scenario(seed, false, 1).run();
    const auto got = Scenario(seed, true, 1 + static_cast<int>(seed % 4)).run();
    ASSERT_EQ(expected, got) << "seed " << seed;
    for (const std::string& s : got) poisoned += s.find(':') != std::string::npos;
  }
  EXPECT_GT(poisoned, static_cast<int>(kSeeds)) << "errors are part of it";
}

// ---- errors and cancellation

TEST(Replay, ThrowsTheFirstErrorOfTheCaptureAndGoesOnWhereItCan) {
  QuietEngine engine;
  const Variable a = engine.variable("a"), b = engine.variable("b"), c = engine.variable("c");
  bool bad = true;
  int ran = 0;
  const Program program = engine.capture([&] {
    engine.push(
        [&] {
          if (bad) throw std::runtime_error("no");
        },
        {write(a)}, {.name = "first"});
    engine.push(
        [&] {
          if (bad) throw std::runtime_error("neither");
        },
        {write(b)}, {.name = "second"});
    engine.push([&] { ++ran; }, {read(a)});
    engine.push([&] { ran += 10; }, {write(c)});
  });
  const Ticket first = engine.replay(program);
  EXPECT_EQ(failure([&] { first.wait(); }), "first: no");
  EXPECT_EQ(failure([&] { engine.wait(b); }), "second: neither");
  EXPECT_EQ(ran, 10);
  bad = false;
  const Ticket second = engine.replay(program);
  second.wait();
  engine.wait(a), engine.wait(b);
  EXPECT_EQ(ran, 21);
}

/// What one run says of itself is not taken for the next.
TEST(Replay, IntactOrTornIsToldAnewInEachRun) {
  QuietEngine engine;
  const Variable a = engine.variable("a"), b = engine.variable("b");
  bool bad = false;
  const Program program = engine.capture([&] {
    engine.push(
        [&](Context& context) {
          if (bad) throw std::runtime_error("torn");
          context.wrote_nothing();
        },
        {read(b), update(a)});
  });
  const auto stays = [&] {
    engine.recover(a);
    return failure([&] { engine.wait(a); });
  };
  engine.replay(program).wait();
  bad = true;
  EXPECT_NE(failure([&] { engine.replay(program).wait(); }), "");
  EXPECT_NE(stays(), "") << "the run before said that it wrote nothing";
  engine.push([] {}, {write(a)});
  engine.push([] { throw std::runtime_error("x"); }, {write(b)});
  EXPECT_NE(failure([&] { engine.replay(program).wait(); }), "");
  EXPECT_EQ(stays(), "") << "skipped";
  engine.push([] {}, {write(b)});
  EXPECT_NE(failure([&] { engine.replay(program).wait(); }), "");
  EXPECT_NE(stays(), "") << "the run before was skipped";
}

TEST(Replay, CanBeCancelledBeforeItBegins) {
  QuietEngine engine;
  const Variable a = engine.variable("a"), b = engine.variable("b");
  testing::Held held;
  int ran = 0;
  const Program program = engine.capture([&] {
    engine.push([&] { ++ran; }, {update(a)});
    engine.push([&] { ++ran; }, {update(b)});
  });
  engine.push(held.body(), {update(a)});
  const Ticket replay = engine.replay(program);
  EXPECT_TRUE(replay.cancel());
  held.begun.wait();
  held.completion.done();
  const ErrorRef root = thrown([&] { replay.wait(); });
  ASSERT_TRUE(root);
  EXPECT_EQ(root->kind, ErrorKind::cancelled);
  EXPECT_EQ(thrown([&] { engine.wait(b); }), root);
  EXPECT_EQ(ran, 0);
  engine.recover(a), engine.recover(b);  // intact: nothing was written
  engine.wait(a), engine.wait(b);
  engine.replay(program).wait();
  EXPECT_EQ(ran, 2);
}

TEST(Replay, AScopeCancelsWhatHasNotBegun) {
  QuietEngine engine({.threads = 1});
  const Variable a = engine.variable("a");
  CancelScope scope;
  int ran = 0;
  const Program program = engine.capture([&] {
    engine.push([&] { ++ran, scope.cancel(); }, {update(a)});
    engine.push([&] { ++ran; }, {update(a)});
    engine.push([&] { ++ran; }, {update(a)});
  });
  {
    const CancelScope::Guard guard(scope);
    engine.replay(program);
  }
  const ErrorRef root = thrown([&] { engine.wait(a); });
  ASSERT_TRUE(root);
  EXPECT_EQ(root->kind, ErrorKind::cancelled);
  EXPECT_EQ(ran, 1);
}

TEST(Replay, CompletionsAndStreams) {
  QuietEngine engine(EngineOptions{.threads = 2, .simulated_gpus = 2});
  const Variable a = engine.variable("a"), b = engine.variable("b");
  testing::Held held;
  int x = 0, y = 0;
  const Program program = engine.capture([&] {
    engine.push(held.body(), {write(a)});
    engine.push(
        [&](Context& context) { static_cast<SimulatedStream*>(context.stream())->launch([&] { y = 10 * ++x; }); },
        {read(a), write(b)}, {.on = sim(0)});
    engine.push(
        [&](Context& context) {
          static_cast<SimulatedStream*>(context.stream())->launch([&] {
            ++y;
            if (x == 2) throw std::runtime_error("late");
          });
        },
        {update(b)}, {.on = sim(1), .name = "kernel"});
  });
  const Ticket one = engine.replay(program);
  held.begun.wait();
  EXPECT_FALSE(one.done());
  held.completion.done();
  one.wait();
  EXPECT_EQ(y, 11);
  const Ticket two = engine.replay(program);
  while (!held.completion) std::this_thread::yield();
  held.completion.done();
  EXPECT_EQ(failure([&] { two.wait(); }), "kernel: late");
  EXPECT_EQ(failure([&] { engine.wait(b); }), "kernel: late");
}

TEST(Replay, StopSkipsWhatHasNotBegun) {
  QuietEngine engine;
  const Variable a = engine.variable("a");
  testing::Held held;
  int ran = 0;
  engine.push(held.body(), {write(a)});
  const Program program = engine.capture([&] { engine.push([&] { ++ran; }, {update(a)}); });
  engine.replay(program);
  held.begun.wait();
  EXPECT_FALSE(engine.stop(StopMode::cancel, std::chrono::milliseconds(1)));
  held.completion.done();
  EXPECT_TRUE(engine.stop(StopMode::cancel));
  EXPECT_EQ(ran, 0);
  EXPECT_THROW(engine.replay(program), StoppedError);
}

// ---- use and misuse

std::string usage(const std::function<void()>& f) {
  try {
    f();
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

TEST(Replay, MisuseThrows) {
  QuietEngine engine, other;
  const Variable a = engine.variable(), b = other.variable();
  EXPECT_NE(usage([&] { engine.replay(Program()); }).find("no program"), std::string::npos);
  const Program program = engine.capture([&] { engine.push([] {}, {write(a)}); });
  EXPECT_NE(usage([&] { other.replay(program); }).find("another engine"), std::string::npos);
  EXPECT_NE(usage([&] { engine.capture([&] { engine.wait(a); }); }).find("inside a capture"), std::string::npos);
  EXPECT_NE(usage([&] { engine.capture([&] { engine.wait_all(); }); }).find("inside a capture"), std::string::npos);
  EXPECT_NE(usage([&] { engine.capture([&] { engine.recover(a); }); }).find("inside a capture"), std::string::npos);
  EXPECT_NE(usage([&] { engine.capture([&] { engine.replay(program); }); }).find("inside a capture"),
            std::string::npos);
  EXPECT_NE(usage([&] { engine.capture([&] { engine.capture([] {}); }); }).find("another capture"), std::string::npos);
  EXPECT_NE(usage([&] { engine.capture([&] { other.push([] {}, {write(b)}); }); }).find("another engine"),
            std::string::npos);
  EXPECT_THROW(engine.capture([] { throw std::runtime_error("x"); }), std::runtime_error);
  const Program pushes = engine.capture([&] { engine.push([&] { engine.push([] {}, {}); }, {}, {.name = "outer"}); });
  EXPECT_NE(failure([&] { engine.replay(pushes).wait(); }).find("may not push"), std::string::npos);
  const Program waits = engine.capture([&] { engine.push([&] { engine.wait(a); }, {update(a)}, {.name = "self"}); });
  EXPECT_EQ(thrown([&] { engine.replay(waits).wait(); })->kind, ErrorKind::deadlock);
  engine.push([] {}, {write(a)});
  engine.wait(a);  // and all goes on as before
  engine.replay(engine.capture([] {})).wait();
}

/// A closure that counts its lives.
struct Counted {
  std::shared_ptr<int> lives;
  char rest[96];
  void operator()() const {}
};

TEST(Replay, ClosuresLiveAsLongAsTheProgram) {
  auto lives = std::make_shared<int>(0);
  testing::Held held;
  Program kept;
  {
    QuietEngine engine;
    const Variable a = engine.variable();
    engine.push(held.body(), {write(a)});
    {
      const Program program = engine.capture([&] {
        engine.push([lives] {}, {update(a)});
        engine.push(Counted{lives, {}}, {update(a)});
      });
      engine.replay(program);
      EXPECT_EQ(lives.use_count(), 3);
      kept = engine.capture([&] { engine.push([lives] {}, {read(a)}); });
    }
    EXPECT_EQ(lives.use_count(), 4) << "a replay in flight keeps it";
    held.begun.wait();
    held.completion.done();
    engine.wait_all();
    while (lives.use_count() != 2) std::this_thread::yield();  // the op is over a moment before its record is
  }
  EXPECT_EQ(lives.use_count(), 2);
  kept = Program();  // after its engine
  EXPECT_EQ(lives.use_count(), 1);
}

TEST(Replay, IsTracedOpByOp) {
  QuietEngine engine;
  const Variable a = engine.variable();
  const Program program = engine.capture([&] {
    engine.push([] {}, {write(a)}, {.name = "one"});
    engine.push([] {}, {read(a)}, {.name = "two"});
  });
  engine.start_trace();
  engine.replay(program);
  engine.replay(program).wait();
  const auto events = engine.stop_trace();
  int one = 0, two = 0;
  for (const TraceEvent& e : events) one += e.name == std::string("one"), two += e.name == std::string("two");
  EXPECT_EQ(one, 2);
  EXPECT_EQ(two, 2);
}

}  // namespace
}  // namespace sluice
