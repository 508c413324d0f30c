// Runs that are killed, or told to end, go on from their newest checkpoint to the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>

#include "paths.h"
#include "sluice/tests/support/program.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice {
namespace {

using test::read_file;
using ::testing::HasSubstr;

class CheckpointRuns : public ::testing::Test {
 protected:
  /// Until it has printed so many lines, the first of which says where it begins; then it gets the signal.
  test::Outcome run(const std::string& name, int steps, int lines = -1, int signal = SIGKILL) {
    bool sent = false;
    const auto on_output = [&](pid_t process, const std::string& out) {
      if (sent || lines < 0 || std::count(out.begin(), out.end(), '\n') < lines) return;
      sent = true;
      ::kill(process, signal);
    };
    return test::run_program(std::string(SLUICE_BINARY_DIR) + "/tests/checkpoint_run",
                             {directory_ / name, std::to_string(steps)}, {.environment = {}, .on_output = on_output});
  }
  std::string whole(int steps) {
    const test::Outcome outcome = run("whole", steps);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return read_file(directory_ / "whole/final");
  }
  test::TemporaryDirectory directory_;
};

/// 3 kills; 50 where SLUICE_DEEP is set.
TEST_F(CheckpointRuns, AKillAtAnyMomentLeavesAWholeFile) {
  std::minstd_rand random(static_cast<unsigned>(::testing::UnitTest::GetInstance()->random_seed()));
  const int kills = std::getenv("SLUICE_DEEP") ? 50 : 3, steps = 200 + 60 * kills;
  const std::string end = whole(steps);
  std::string first = "from \n";
  for (int i = 0; i < kills; ++i) {
    const test::Outcome outcome = run("killed", steps, 1 + static_cast<int>(random() % 8));
    ASSERT_EQ(outcome.status, 128 + SIGKILL) << outcome.out << outcome.err;
    if (i == 0) {
      EXPECT_EQ(outcome.out.substr(0, first.size()), first);
    }
  }
  const test::Outcome outcome = run("killed", steps);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(read_file(directory_ / "killed/final") == end);
  EXPECT_EQ(read_file(directory_ / "killed/log.csv"), read_file(directory_ / "whole/log.csv"));
}

TEST_F(CheckpointRuns, ASignalEndsThemAfterAStep) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const std::string name = std::to_string(signal);
    const test::Outcome cut = run(name, 1'000'000, 5, signal);
    EXPECT_EQ(cut.status, 128 + signal) << cut.err;
    EXPECT_THAT(cut.err, HasSubstr("ends after this step; a second one ends at once"));
    const int last = std::stoi(cut.out.substr(cut.out.rfind('\n', cut.out.size() - 2) + 1));
    const test::Outcome outcome = run(name, last + 20);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const std::string digits = std::to_string(last);
    EXPECT_THAT(outcome.out.substr(0, outcome.out.find('\n')),
                HasSubstr("step-" + std::string(8 - digits.size(), '0') + digits));
    EXPECT_TRUE(read_file(directory_ / (name + "/final")) == whole(last + 20));
    std::filesystem::remove_all(directory_ / "whole");
  }
}

}  // namespace
}  // namespace sluice
