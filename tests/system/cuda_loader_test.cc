// The loader of the CUDA backend, in processes of its own: what a program sees where there is no library, none of ours,
// or no card.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "paths.h"
#include "sluice/tests/support/program.h"

namespace sluice {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Environment = std::vector<std::pair<std::string, std::string>>;

/// Every way to a GPU says the reason, with the operator and the push site; the CPU works.
void expect_no_device(const Environment& environment, const std::string& why) {
  const test::Outcome run = test::run_program(SLUICE_BINARY_DIR "/tests/push_to_gpu", {}, {.environment = environment});
  ASSERT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_THAT(run.out, StartsWith("unavailable: " + why));
  EXPECT_THAT(run.out, ContainsRegex("transfer: \\[to\\] .*push_to_gpu\\.cc:[0-9]+.*no CUDA device: " + why));
  EXPECT_THAT(run.out, ContainsRegex("operator: \\[zeros\\] .*push_to_gpu\\.cc:[0-9]+.*no CUDA device: " + why));
  EXPECT_THAT(run.out, ContainsRegex("push: \\[scale\\] .*push_to_gpu\\.cc:[0-9]+.*no CUDA device: " + why));
  EXPECT_THAT(run.out, HasSubstr("devices: 0\n"));
  EXPECT_THAT(run.out, HasSubstr("on the CPU: 4\n"));
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 6) << run.out;
}

TEST(CudaLoader, ALibraryThatIsNotThere) {
  expect_no_device({{"SLUICE_CUDA_LIBRARY", "/nonexistent"}}, "the CUDA backend cannot be loaded: /nonexistent");
}

TEST(CudaLoader, ALibraryThatIsNotOurs) {
  expect_no_device({{"SLUICE_CUDA_LIBRARY", "libm.so.6"}}, "libm.so.6 is no CUDA backend of Sluice");
}

TEST(CudaLoader, SwitchedOff) {
  expect_no_device({{"SLUICE_CUDA", "0"}, {"SLUICE_CUDA_LIBRARY", "/nonexistent"}}, "SLUICE_CUDA=0 switches it off");
}

TEST(CudaLoader, ASwitchIsOffOrOn) {
  for (const char* const name : {"SLUICE_CUDA", "SLUICE_NVTX"}) {
    const test::Outcome run = test::run_program(SLUICE_BINARY_DIR "/tests/push_to_gpu", {},
                                                {.environment = {{name, "foo"}, {"SLUICE_CUDA_LIBRARY", "/none"}}});
    EXPECT_NE(run.status, 0);
    EXPECT_THAT(run.out + run.err, HasSubstr(std::string(name) + "=foo: 0 or 1 is wanted"));
  }
}

}  // namespace
}  // namespace sluice
