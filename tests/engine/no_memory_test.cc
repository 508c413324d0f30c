// Processes that have no memory, or get no threads, at a time that they choose (programs/no_memory.cc): a process each,
// because what oneTBB and the C library do once they do no more. Where it is refused a call throws std::bad_alloc or
// succeeds; later calls work, and the process ends.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "paths.h"
#include "sluice/tests/support/program.h"

namespace sluice {
namespace {

test::Outcome run(const std::vector<std::string>& arguments) {
  test::ProgramOptions options;
  options.limit = std::chrono::seconds(60);
  return test::run_program(SLUICE_BINARY_DIR "/tests/engine_no_memory", arguments, options);
}

/// The number at the end of what the program said.
long count_of(const test::Outcome& outcome) {
  const std::size_t colon = outcome.out.rfind(": ");
  return colon == std::string::npos ? -1 : std::atol(outcome.out.c_str() + colon + 2);
}

bool worked(const test::Outcome& outcome) { return outcome.status == 0 && !outcome.timed_out; }

/// The C library's own end, where it has no memory to note what is to be done when the main thread ends (at_exit.cc).
bool ended_by_libc(const test::Outcome& outcome) {
  return outcome.err == "Fatal glibc error: failed to register TLS destructor: out of memory\n";
}

TEST(NoMemory, EachAllocationUpToTheFirstWaitFails) {
  int ended = 0;
  for (long n = 1;; ++n) {
    const test::Outcome outcome = run({"first", std::to_string(n)});
    if (ended_by_libc(outcome)) {
      ++ended;
      continue;
    }
    ASSERT_TRUE(worked(outcome)) << "first " << n << ": " << outcome.status << '\n' << outcome.out << outcome.err;
    if (count_of(outcome) >= n) continue;
    std::printf("%ld allocations\n", n - 1);
    EXPECT_GT(n, 10) << "the program refuses nothing";
    break;
  }
  EXPECT_LE(ended, 1);
}

TEST(NoMemory, TheFirstPushFindsNoneFromAnyAllocationOn) {
  for (long n = 1;; ++n) {
    const test::Outcome outcome = run({"stays", std::to_string(n)});
    ASSERT_TRUE(worked(outcome)) << "stays " << n << ": " << outcome.status << '\n' << outcome.out << outcome.err;
    if (count_of(outcome) < n) break;
  }
}

TEST(NoMemory, HalfOfWhatPushersAskForIsRefused) {
  for (long seed = 1; seed <= 20; ++seed) {
    const test::Outcome outcome = run({"pushers", std::to_string(seed)});
    ASSERT_TRUE(worked(outcome)) << "pushers " << seed << ": " << outcome.status << '\n' << outcome.out << outcome.err;
    EXPECT_GT(count_of(outcome), 100) << "pushes that failed";
  }
}

#ifndef SLUICE_SANITIZED  // the program cannot refuse threads there
TEST(NoMemory, NoThreadIsToBeHadForAWhile) {
  for (long n = 1; n <= 6; ++n)
    for (const long last : {n, n + 1, n + 4}) {
      const test::Outcome outcome = run({"threads", std::to_string(n), std::to_string(last)});
      ASSERT_TRUE(worked(outcome)) << "threads " << n << ' ' << last << ": " << outcome.status << '\n'
                                   << outcome.out << outcome.err;
    }
}

TEST(NoMemory, ALoopWhoseThreadsCannotBeStartedFailsAndNoOtherDoes) {
  const test::Outcome outcome = run({"loops", "20"});
  EXPECT_TRUE(worked(outcome)) << outcome.status << '\n' << outcome.out << outcome.err;
  EXPECT_EQ(count_of(outcome), 1);
}
#endif

}  // namespace
}  // namespace sluice
