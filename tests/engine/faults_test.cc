// Every k-th allocation, start of a thread and body fails, once and from then on: no program of the collection below
// hangs, leaks or ends the process, an op that did not run is never taken for one that did, and the engine works on.
#include <gtest/gtest.h>

#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <thread>

#include "fault_programs.h"
#include "sluice/engine/detail/policy.h"

namespace sluice {
namespace {
using testing::Allocations;
using testing::bodies;
using testing::FaultPoint;
using testing::FaultProgram;
using testing::programs;
using testing::QuietEngine;
using testing::Trial;

#ifdef SLUICE_SANITIZED  // which slow all down
constexpr auto kNoHang = std::chrono::seconds(6);
#else
constexpr auto kNoHang = std::chrono::seconds(2);
#endif
FaultPoint starts;

void fail_start() {
  if (starts.passes()) throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
}

/// Ends the process, with a word on what hung, when a trial takes ten times what it may. Time is counted in beats of a
/// thread's, so that a process that was stopped as a whole has not hung.
class Watch {
 public:
  Watch()
      : thread_([this] {
          while (!ended_.load()) {
            std::this_thread::sleep_for(kBeat);
            if (!running_.load() || beats_.fetch_add(1) < 10 * (kNoHang / kBeat)) continue;
            std::fprintf(stderr, "hangs: %s, k = %ld, %s\n", program.load(), k.load(), stays ? "from then on" : "once");
            std::abort();
          }
        }) {}
  ~Watch() {
    ended_.store(true);
    thread_.join();
  }
  void begin() {
    beats_.store(0);
    running_.store(true);
  }
  /// How long it was.
  std::chrono::milliseconds end() {
    running_.store(false);
    return beats_.load() * kBeat;
  }

  std::atomic<const char*> program{""};
  std::atomic<long> k{0};
  std::atomic<bool> stays{false};

 private:
  static constexpr std::chrono::milliseconds kBeat{50};
  std::atomic<long> beats_{0};
  std::atomic<bool> running_{false}, ended_{false};
  std::thread thread_;
};

/// What is allocated once the threads that are leaving are gone: the least of a while.
long settled() {
  long least = Allocations::live.load();
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(60);
  while (std::chrono::steady_clock::now() < end) {
    least = std::min(least, Allocations::live.load());
    std::this_thread::yield();
  }
  return least;
}

class Faults : public ::testing::TestWithParam<FaultProgram> {
 protected:
  Faults() { detail::SystemPolicy::before_start.store(fail_start); }
  ~Faults() override { detail::SystemPolicy::before_start.store(nullptr); }
  static void fails_everywhere(FaultPoint& point) {
    const FaultProgram& program = GetParam();
    Watch watch;
    watch.program.store(program.name);
    const auto run = [&](long k, bool stays) {
      long passed = 0;
      {
        QuietEngine engine(program.options);
        Trial trial(engine);
        watch.begin();
        point.arm(k, stays);
        program.run(trial);
        passed = point.disarm();
        trial.check();
        bool works = false;
        const Variable v = engine.variable();
        engine.push([&] { works = true; }, {update(v)});
        engine.wait(v);
        EXPECT_TRUE(works);
      }
      EXPECT_LT(watch.end(), kNoHang);
      return passed;
    };
    for (int warm = 0; warm < 3; ++warm) run(1'000'000'000, false);
    for (const bool stays : {false, true}) {
      watch.stays.store(stays);
      long faults = 0, more = 0;
      // A leak shows in every pass. What a new thread of oneTBB keeps for its next engine does not.
      for (int pass = 0; pass < 20; ++pass) {
        const long before = settled();
        for (long k = 1;; k += 1 + k / 200) {  // of hundreds alike not every one
          SCOPED_TRACE(std::string(stays ? "from then on, k = " : "once, k = ") + std::to_string(k));
          watch.k.store(k);
          if (run(k, stays) < k) break;
          faults = k;
          if (::testing::Test::HasFailure()) return;
        }
        more = settled() - before;
        if (more <= 3 + faults / 20) break;
      }
      EXPECT_LE(more, 3 + faults / 20) << "leaks";
      std::printf("%-26s %-12s %4ld faults\n", program.name, stays ? "from then on" : "once", faults);
    }
  }
};

TEST_P(Faults, EveryAllocationFails) { fails_everywhere(Allocations::faults); }
TEST_P(Faults, EveryStartOfAThreadFails) { fails_everywhere(starts); }
TEST_P(Faults, EveryBodyFails) { fails_everywhere(bodies); }
INSTANTIATE_TEST_SUITE_P(Of, Faults, ::testing::ValuesIn(programs), [](const auto& of) {
  std::string name;
  for (const char* c = of.param.name; *c; ++c)
    if (std::isalnum(static_cast<unsigned char>(*c))) name += *c;
  return name;
});

}  // namespace
}  // namespace sluice
