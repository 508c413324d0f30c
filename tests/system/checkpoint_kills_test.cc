// Runs that are killed, or told to end, go on from their newest checkpoint to the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>

#include "paths.h"
#include "sluice/ndarray/formats/safetensors.h"
#include "sluice/tests/support/program.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice {
namespace {

using test::read_file;
using ::testing::HasSubstr;

class CheckpointRuns : public ::testing::Test {
 protected:
  /// Until it has printed so many lines, the first of which says where it begins, and a little longer; then it gets the
  /// signal.
  test::Outcome run(const std::string& name, int steps, int lines = -1, int signal = SIGKILL,
                    std::chrono::microseconds longer = {}) {
    bool sent = false;
    const auto on_output = [&](pid_t process, const std::string& out) {
      if (sent || lines < 0 || std::count(out.begin(), out.end(), '\n') < lines) return;
      sent = true;
      std::this_thread::sleep_for(longer);  // anywhere in a step, or in the file that is being written
      ::kill(process, signal);
    };
    return test::run_program(std::string(SLUICE_BINARY_DIR) + "/tests/checkpoint_run",
                             {directory_ / name, std::to_string(steps)}, {.environment = {}, .on_output = on_output});
  }
  /// The step of the file that a run says it goes on from; 0 where it begins anew.
  static int first_step(const test::Outcome& outcome) {
    const std::string line = outcome.out.substr(0, outcome.out.find('\n'));
    EXPECT_TRUE(line.starts_with("from ")) << outcome.out;
    const std::size_t at = line.rfind("/step-");
    return at == std::string::npos ? 0 : std::stoi(line.substr(at + 6));
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
  const std::filesystem::path best = directory_ / "killed/best.safetensors";
  int newest = 0;  // of a file that was whole before
  for (int i = 0; i < kills; ++i) {
    const test::Outcome outcome =
        run("killed", steps, 1 + static_cast<int>(random() % 8), SIGKILL, std::chrono::microseconds(random() % 4000));
    ASSERT_EQ(outcome.status, 128 + SIGKILL) << outcome.out << outcome.err;
    const int first = first_step(outcome);
    EXPECT_GE(first, newest) << "a file that was whole is lost, after kill " << i;
    EXPECT_TRUE(i > 0 || first == 0);
    newest = std::max(newest, first);
    if (std::filesystem::exists(best)) {
      EXPECT_GT(load_safetensors(best).tensors.size(), 4U);  // throws where it is not whole
    }
  }
  if (kills > 3) {
    EXPECT_GT(newest, 0) << "no run went on from a file";
  }
  const test::Outcome outcome = run("killed", steps);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_GE(first_step(outcome), newest);
  EXPECT_TRUE(read_file(directory_ / "killed/final") == end);
  EXPECT_TRUE(read_file(best) == read_file(directory_ / "whole/best.safetensors"));
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
