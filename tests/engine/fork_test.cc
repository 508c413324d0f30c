// Failure case 37: the process forks while ops are in flight.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>

#include "process.h"
#include "sluice/engine/detail/sanitizers.h"
#include "sluice/engine/loops.h"
#include "sluice/resources/providers/sim.h"
#include "support.h"

namespace sluice {
namespace {
using testing::QuietEngine;

/// A sanitizer's allocator is copied into a child with its locks as they are: there the other threads must sleep while
/// this one forks. Elsewhere it forks in the midst of them.
#ifdef SLUICE_SANITIZED
constexpr bool kStandsStill = true;
#else
constexpr bool kStandsStill = false;
#endif

/// Runs f in a forked child, which ends with what f returns; a child that hangs is killed. Its status, as a shell gives
/// it.
int in_child(const std::function<int()>& f) {
  EXPECT_TRUE(!kStandsStill || testing::others_sleep());
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    ::_exit(f());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Keeps an engine of this process busy until the object goes.
class Load {
 public:
  explicit Load(Engine& engine) : engine_(quiet(engine)), pusher_([this] { push(); }) {}
  ~Load() {
    enough_.store(true);
    pusher_.join();
    try {
      engine_.wait_all();
    } catch (const AggregateError&) {
    }
    EXPECT_EQ(ran_.load(), pushed_.load());
  }
  /// in_child(f), when more of the load has run.
  int in_child(const std::function<int()>& f) {
    for (const long now = ran_.load(); ran_.load() < now + 100;) std::this_thread::yield();
    if (kStandsStill) {
      still_.store(true);
      stands_.wait(false);
      while (ran_.load() < pushed_.load()) std::this_thread::yield();
    }
    const int status = sluice::in_child(f);
    if (kStandsStill) {
      stands_.store(false);
      still_.store(false);
      still_.notify_all();
    }
    return status;
  }

 private:
  static Engine& quiet(Engine& engine) {
    engine.on_unobserved_error([](const ErrorRoot&) {});
    return engine;
  }
  void push() {
    const Variable a = engine_.variable(), b = engine_.variable(), bad = engine_.variable();
    for (int i = 0; !enough_.load(); ++i) {
      engine_.push([this] { ran_.fetch_add(1); }, {update(i % 2 ? a : b)});
      engine_.push([this] { ran_.fetch_add(1); }, {read(a), update(b)});
      if (i % 64 == 0) engine_.push([] { throw std::runtime_error("x"); }, {write(bad)});
      if (i % 256 == 0) engine_.wait(b);
      pushed_.fetch_add(2);
      if (!still_.load()) continue;
      stands_.store(true);
      stands_.notify_all();
      still_.wait(true);
    }
  }
  Engine& engine_;
  std::atomic<bool> enough_{false}, still_{false}, stands_{false};
  std::atomic<long> ran_{0}, pushed_{0};
  std::thread pusher_;
};

template <class F>
int refused(F&& f) {
  try {
    f();
  } catch (const ForkedError&) {
    return 0;
  } catch (...) {
    return 2;
  }
  return 1;
}

TEST(Fork, Case37TheChildIsRefusedAndTheParentGoesOn) {
  QuietEngine engine({.threads = 2, .max_ops = 64});
  const Variable v = engine.variable("v");
  const Ticket old = engine.push([] {}, {update(v)});
  Load load(engine);
  for (int i = 0; i < 20; ++i) {
    const int status = load.in_child([&] {
      int wrong = 0, call = 1;
      const auto check = [&](const std::function<void()>& f) {
        if (refused(f) != 0 && !wrong) wrong = call;
        ++call;
      };
      check([&] { engine.push([] {}, {update(v)}); });
      check([&] { engine.push([] {}, {}); });
      check([&] { engine.wait(v); });
      check([&] { engine.wait_for(v, std::chrono::seconds(1)); });
      check([&] { engine.wait_all(); });
      check([&] { engine.stop(); });
      check([&] { engine.stop(StopMode::cancel); });
      check([&] { engine.borrow(update(v)); });
      check([&] { engine.recover(v); });
      check([&] { static_cast<void>(engine.error(v)); });
      check([&] { engine.clear_errors(); });
      check([&] { static_cast<void>(engine.variable()); });
      check([&] { static_cast<void>(engine.in_flight()); });
      check([&] { engine.stop_trace(); });
      check([&] { engine.take_order(); });
      check([&] { engine.on_unobserved_error({}); });
      check([&] { old.wait(); });
      return wrong;
    });
    ASSERT_EQ(status, 0) << "the number of the call, 128 + a signal (14: it hung)";
  }
}

TEST(Fork, Case37ThatIsWhatTheErrorSays) {
  QuietEngine engine({.threads = 1});
  engine.push([] {}, {}).wait();
  const int status = in_child([&] {
    try {
      engine.push([] {}, {}, {.name = "resize"});
    } catch (const StoppedError& e) {
      return std::string_view(e.what()) == "[resize] the engine was made before this process was forked" ? 0 : 1;
    }
    return 2;
  });
  EXPECT_EQ(status, 0);
}

/// What the child has of the parent's goes without waiting for anybody.
TEST(Fork, Case37WhatTheChildDropsIsOnlyDropped) {
  auto engine = std::make_unique<QuietEngine>(EngineOptions{.threads = 2, .providers = {sim_devices(1)}});
  auto idle = std::make_unique<QuietEngine>(EngineOptions{.threads = 2, .providers = {sim_devices(1)}});
  for (auto* e : {engine.get(), idle.get()})
    e->push([](Context& c) { c.stream()->launch([] {}); }, {}, {.on = sim(0)}).wait();
  Variable v = engine->variable(), poisoned = engine->variable();
  engine->push([] { throw std::runtime_error("x"); }, {write(poisoned)});
  Borrow borrow = engine->borrow(update(v));
  testing::Held held;
  engine->push(held.body(), {});
  held.begun.wait();
  {
    Load load(*engine);
    for (int i = 0; i < 10; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      const int status = load.in_child([&] {
        borrow.release();
        held.completion.done();
        v = {};
        poisoned = {};
        engine.reset();
        idle.reset();
        return 0;
      });
      ASSERT_EQ(status, 0);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    }
    held.completion.done();
    borrow.release();
  }
}

#ifndef SLUICE_TSAN  // it lets no thread start after such a fork
TEST(Fork, Case37AnEngineThatTheChildMakesIsWhole) {
  QuietEngine engine({.threads = 2});
  Load load(engine);
  for (int i = 0; i < 10; ++i) {
    const int status = load.in_child([&] {
      QuietEngine own({.threads = 2, .providers = {sim_devices(1)}});
      const Variable v = own.variable(), w = own.variable();
      long sum = 0;
      std::atomic<long> chunks{0};
      for (int k = 0; k < 1000; ++k) own.push([&] { ++sum; }, {update(v)});
      own.push([&] { parallel_for(100, 1, [&](std::int64_t a, std::int64_t b) { chunks.fetch_add(b - a); }); },
               {update(w)});
      own.push(
          [&] {
            own.push([&] { ++sum; }, {update(w)});
            own.wait(v);
          },
          {});
      own.push([](Context& c) { c.stream()->launch([] {}); }, {update(v)}, {.on = sim(0)});
      while (own.in_flight() > 0) own.wait_all();
      if (!own.stop()) return 1;
      return sum == 1001 && chunks == 100 ? 0 : 2;
    });
    ASSERT_EQ(status, 0);
  }
}

TEST(Fork, Case37AChildOfAChild) {
  QuietEngine engine({.threads = 1});
  engine.push([] {}, {}).wait();
  const int status = in_child([&] {
    QuietEngine own({.threads = 1});
    own.push([] {}, {}).wait();
    return in_child([&] {
      if (refused([&] { engine.push([] {}, {}); }) || refused([&] { own.push([] {}, {}); })) return 1;
      QuietEngine third({.threads = 1});
      third.push([] {}, {}).wait();
      return 0;
    });
  });
  EXPECT_EQ(status, 0);
}

/// The whole way out: exit handlers and static objects, of the process's engine too.
TEST(Fork, Case37AChildThatExits) {
  Engine& engine = Engine::instance();
  Load load(engine);
  const auto begin = std::chrono::steady_clock::now();
  ::testing::internal::CaptureStderr();
  const int status = load.in_child([] {
    static std::atomic<int> ran{0};
    static Engine own({.mode_given = true, .threads = 1});
    static const Variable v = own.variable();
    for (int i = 0; i < 1000; ++i) own.push([] { ran.fetch_add(1); }, {update(v)});
    std::atexit([] { ::_exit(own.stop() && ran == 1000 ? 0 : 3); });  // after the wait for ops, before oneTBB's end
    std::exit(1);
    return 2;
  });
  int whole_way = 0;
#ifndef SLUICE_SANITIZED  // it would look for leaks on the stacks of threads that the child lacks
  whole_way = load.in_child([] {
    QuietEngine({.threads = 1}).push([] {}, {}).wait();
    std::exit(0);
    return 1;
  });
#endif
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(status, 0);
  EXPECT_EQ(whole_way, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}
#endif

/// A body may fork and exec, which is how a person runs a program.
TEST(Fork, Case37ABodyThatForksAndLeaves) {
  QuietEngine engine({.threads = 2});
  const Variable v = engine.variable();
  int status = -1, refusals = -1;
  engine.push([&] { status = in_child([] { return ::execl("/bin/true", "true", nullptr); }); }, {update(v)});
  engine.push([&] { refusals = in_child([&] { return refused([&] { engine.push([] {}, {update(v)}); }); }); },
              {update(v)});
  engine.wait(v);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(refusals, 0);
}

}  // namespace
}  // namespace sluice
