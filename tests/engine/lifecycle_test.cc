// Engines come and go, and processes end with ops in flight: failure cases 24, 35, 36 and 42.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "faults.h"
#include "paths.h"
#include "process.h"
#include "sluice/engine/detail/sanitizers.h"
#include "sluice/resources/providers/sim.h"
#include "sluice/tests/support/program.h"
#include "support.h"

namespace sluice {
namespace {
using testing::cpu_seconds;
using testing::QuietEngine;
using testing::resident_bytes;
using testing::threads_now;

#ifdef SLUICE_SANITIZED
constexpr int kCycles = 1'000;
#else
constexpr int kCycles = 10'000;
#endif

TEST(Lifecycle, Case24TenThousandStartsAndStops) {
  std::size_t memory = 0;
  std::ptrdiff_t threads = 0;
  long live = 0;
  for (int i = 0; i < kCycles; ++i) {
    if (i == kCycles / 10) memory = resident_bytes(), threads = threads_now(), live = testing::Allocations::live.load();
    std::atomic<int> ran{0};
    QuietEngine engine({.threads = 1 + i % 3});
    const Variable v = engine.variable();
    for (int k = 0; k < 5; ++k) engine.push([&] { ran.fetch_add(1); }, {update(v)});
    if (i % 4 == 0) engine.push([] { throw std::runtime_error("x"); }, {write(v)});
    if (i % 2 == 0) continue;
    ASSERT_TRUE(engine.stop());
    ASSERT_EQ(ran.load(), 5);
  }
  std::printf("after %d of %d cycles: %zu KiB, %td threads; at the end %zu KiB, %td threads\n", kCycles / 10, kCycles,
              memory / 1024, threads, resident_bytes() / 1024, threads_now());
  // oneTBB's threads grow in number for a while, up to what the engines of a moment need.
  const std::ptrdiff_t more = std::max<std::ptrdiff_t>(threads_now() - threads, 0);
  EXPECT_LE(more, 8);
  EXPECT_LE(testing::Allocations::live.load(), live + 500);
#ifndef SLUICE_SANITIZED  // which keep what is freed
  // Threads that come have heaps of their own; 500 bytes lost with each engine would be more than this.
  EXPECT_LE(resident_bytes(), memory + (std::size_t{4} << 20));
#endif
}

struct End {
  const char* how;
  int status;
  const char* out;
};

test::Outcome run(const char* how, int signal) {
  test::ProgramOptions options;
  options.limit = std::chrono::seconds(40);
  bool sent = false;
  if (signal)
    options.on_output = [&](pid_t process, const std::string& out) {
      if (!std::exchange(sent, out.find("busy") != std::string::npos)) ::kill(process, signal);
    };
  return test::run_program(SLUICE_BINARY_DIR "/tests/engine_exits", {how}, options);
}

TEST(Lifecycle, Case35And36AProcessMayEndInAnyWay) {
  for (const End& end :
       {End{"return", 0, "ran 400 of 400\n"}, End{"exit", 0, "ran 400 of 400\n"}, End{"thread", 0, "ran 400 of 400\n"},
        End{"waiting", 0, "ran 400 of 400\n"}, End{"sigwait", 0, "ran 400 of 400\n"}})
    for (int i = 0; i < 3; ++i) {
      SCOPED_TRACE(end.how);
      const test::Outcome outcome = run(end.how, 0);
      EXPECT_FALSE(outcome.timed_out);
      EXPECT_EQ(outcome.status, end.status);
      EXPECT_EQ(outcome.out, end.out);
      EXPECT_EQ(outcome.err, "");
    }
}

TEST(Lifecycle, Case35AStaticObjectMayUseTheEngineAtItsEnd) {
  const test::Outcome outcome = run("statics", 0);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out, "late: pushed\nbefore: refused\nran 401 of 401\n");
}

TEST(Lifecycle, Case35ABodyMayEndTheProcess) {
  const test::Outcome outcome = run("op", 0);
  EXPECT_FALSE(outcome.timed_out);
  EXPECT_EQ(outcome.status, 7);
  EXPECT_EQ(outcome.err, "");
}

TEST(Lifecycle, Case42ASignalEndsTheProcessAsEverOrThroughAHandler) {
  const test::Outcome killed = run("term", SIGTERM);
  EXPECT_EQ(killed.status, 128 + SIGTERM);
  EXPECT_EQ(killed.err, "");
  const test::Outcome stopped = run("handler", SIGTERM);
  EXPECT_EQ(stopped.status, 0) << "3: it stopped with ops in flight";
}

TEST(Lifecycle, Case35ALibraryIsClosedWithOpsInFlight) {
  std::atomic<int> ran{0};
  for (int i = 1; i <= 3; ++i) {
    void* library = ::dlopen(SLUICE_BINARY_DIR "/tests/libengine_plugin.so", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << ::dlerror();
    const auto keep_busy = reinterpret_cast<void (*)(int, std::atomic<int>*)>(::dlsym(library, "keep_busy"));
    ASSERT_NE(keep_busy, nullptr);
    keep_busy(100, &ran);
    EXPECT_EQ(::dlclose(library), 0);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (ran.load() < 200 * i && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    ASSERT_EQ(ran.load(), 200 * i);
  }
}

/// What an idle engine may take, CPU time a second: the goal, and under a sanitizer, whose own threads count too, more.
#if defined(SLUICE_TSAN) || defined(SLUICE_ASAN)
constexpr double kIdle = 0.005;
#else
constexpr double kIdle = 0.001;
#endif

/// CPU time of this process for a second of doing nothing: that of the quietest of several spans, for workers look
/// around before they leave, and a busy machine adds what is not the engine's.
double idle_cpu() {
  double least = 1;
  for (int i = 0; i < 20 && least > kIdle; ++i) {
    constexpr double kSpan = 0.5;
    const double before = cpu_seconds();
    std::this_thread::sleep_for(std::chrono::duration<double>(kSpan));  // the time that is measured
    least = std::min(least, (cpu_seconds() - before) / kSpan);
  }
  return least;
}

TEST(Lifecycle, AnIdleEngineTakesNoCpu) {
  QuietEngine engine({.threads = 2, .logical_cpus = 2, .providers = {sim_devices(1)}});
  const Variable v = engine.variable();
  for (int i = 0; i < 20'000; ++i) engine.push([] {}, {update(v)}, {.on = cpu(i % 2)});
  engine.wait_all();
  const double idle = idle_cpu();
  testing::Held held;
  engine.push(held.body(), {update(v)});
  held.begun.wait();
  std::thread waiter([&] { engine.wait(v); });
  const double waited_for = idle_cpu();
  held.completion.done();
  waiter.join();
  std::printf("an idle engine: %.2f ms of CPU a second; with a thread that waits for an open Completion: %.2f ms\n",
              idle * 1e3, waited_for * 1e3);
  EXPECT_LE(idle, kIdle);
  EXPECT_LE(waited_for, kIdle);
}

}  // namespace
}  // namespace sluice
