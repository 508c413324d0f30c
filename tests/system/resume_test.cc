// A training run that is cut anywhere goes on in a new process with the same bits: shuffled and changed images,
// dropout, batches made ahead, in the middle of an epoch and of an accumulation, running statistics and a moving
// average.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "paths.h"
#include "sluice/tests/support/program.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice {
namespace {

constexpr int kMicrobatches = 40;  // three epochs of 13 batches

class Resume : public ::testing::Test {
 protected:
  std::string run(int from, int to, int threads, const std::string& file) {
    const test::Outcome outcome =
        test::run_program(std::string(SLUICE_BINARY_DIR) + "/tests/resume_run",
                          {std::to_string(from), std::to_string(to), std::to_string(threads), directory_ / file});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out;
  }
  test::TemporaryDirectory directory_;
};

TEST_F(Resume, ACutRunHasTheBitsOfTheWholeOne) {
  std::minstd_rand random(::testing::UnitTest::GetInstance()->random_seed());
  for (const int threads : {1, 2}) {
    const std::string losses = run(0, kMicrobatches, threads, "whole");
    const std::string whole = test::read_file(directory_ / "whole");
    ASSERT_FALSE(whole.empty());
    for (int i = 0; i < 10; ++i) {
      const int cut = 1 + static_cast<int>(random() % (kMicrobatches - 1));
      const std::string name = "cut" + std::to_string(cut);
      std::string pieces = run(0, cut, threads, name);
      pieces += run(cut, kMicrobatches, threads, name);
      EXPECT_EQ(pieces, losses) << "cut at " << cut << ", threads " << threads;
      EXPECT_TRUE(test::read_file(directory_ / name) == whole) << "cut at " << cut << ", threads " << threads;
    }
  }
}

}  // namespace
}  // namespace sluice
