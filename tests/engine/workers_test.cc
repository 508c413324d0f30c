// The threads of lanes (engine/policy.cc), where oneTBB does not run what it was given: a task beside one that stands
// does not arrive, as one that oneTBB has lost.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "sluice/engine/detail/policy.h"
#include "support.h"

namespace sluice {
namespace {
using detail::SystemPolicy;
using testing::Gate;
using testing::Signal;

TEST(Workers, ADrainerThatDoesNotArriveIsRunAllTheSame) {
  SystemPolicy::Workers workers(1);
  Gate gate;
  Signal stands, over, goes_on;
  std::atomic<int> ran{0};
  workers.start([&] { stands.raise(), gate.pass(), over.raise(); });
  stands.wait();
  for (int i = 0; i < 3; ++i) {
    Signal arrived;
    workers.start([&] { ran.fetch_add(1), arrived.raise(); });
    arrived.wait();
  }
  gate.open();
  over.wait();
  workers.start([&] { goes_on.raise(); });
  goes_on.wait();
  EXPECT_EQ(ran.load(), 3) << "each once";
}

/// Under AddressSanitizer this process has leaked what nothing names any more.
void exit_with_a_lost_task() {
  static SystemPolicy::Workers workers(1);
  static Signal stands, runs;
  workers.start([] {
    stands.raise();
    for (;;) ::pause();
  });
  stands.wait();
  workers.start([] { runs.raise(); });
  runs.wait();
  std::exit(0);
}

TEST(WorkersDeathTest, ALostTaskIsNotALeak) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_a_lost_task(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sluice
