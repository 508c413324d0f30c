// The quickstart's program on the double of CUDA.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "paths.h"
#include "sluice/tests/support/program.h"
#include "sluice/tests/support/small_fashion_mnist.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice {
namespace {

using test::Outcome;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class FashionMnistOnCuda : public ::testing::Test {
 protected:
  FashionMnistOnCuda() { test::write_small_fashion_mnist(data_.path(), 32, 10); }

  Outcome train(std::vector<std::string> arguments, std::vector<std::pair<std::string, std::string>> environment = {}) {
    arguments.insert(arguments.end(), {"--device", "cuda", "--data", data_.path(), "--out", out_ / "run", "--batch",
                                       "16", "--epochs", "1", "--microbatches", "2"});
    environment.emplace_back("SLUICE_REPORT", "0");  // stderr holds what goes wrong, and no report
    return test::run_program(SLUICE_BINARY_DIR "/tests/fashion_mnist_on_double", arguments,
                             {.environment = std::move(environment)});
  }

  /// The model that a run saves. Nothing may be on stderr, where the double reports.
  std::string model(const std::vector<std::string>& arguments,
                    std::vector<std::pair<std::string, std::string>> environment = {}) {
    const Outcome run = train(arguments, std::move(environment));
    EXPECT_EQ(run.status, 0) << run.out;
    EXPECT_EQ(run.err, "");
    EXPECT_THAT(run.out, ContainsRegex("test accuracy   [01]\\.[0-9]+      \\(10 images\\)\n"));
    EXPECT_THAT(run.out, ContainsRegex("throughput      [0-9]+ images/s\n"));
    return test::read_file(out_ / "run/model.safetensors");
  }

  test::TemporaryDirectory data_, out_;
};

// Of one card two stages make two devices; of two cards each stage has one.
TEST_F(FashionMnistOnCuda, TheModelHasTheSameBitsOnOneAndTwoDevices) {
  const std::string one = model({"--stages", "1"});
  EXPECT_EQ(model({"--stages", "2"}), one);
  EXPECT_EQ(model({"--stages", "2"}, {{"SLUICE_CUDA_DOUBLE_DEVICES", "2"}}), one);
}

TEST_F(FashionMnistOnCuda, DrawsWhatTheDevicesDid) {
  const Outcome run = train({"--stages", "2"}, {{"SLUICE_LOGICAL_GPUS", "2"}});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, ContainsRegex("bubble          [0-9.]+ %     \\(simulated with the measured F and B times and "
                                     "1 card: [0-9.]+ %; 1F1B formula [0-9.]+ %\\)\n"));
  const std::string picture = test::read_file(out_ / "run/timeline.svg");
  EXPECT_THAT(picture, HasSubstr("gpu(0)"));
  EXPECT_THAT(picture, HasSubstr("gpu(1)"));
  EXPECT_THAT(picture, HasSubstr("by the devices&#39; clocks"));
  const std::string trace = test::read_file(out_ / "run/timeline.json");
  EXPECT_THAT(trace, HasSubstr("\"gpu(0) compute (device)\""));
  EXPECT_THAT(trace, HasSubstr("\"gpu(1) compute (device)\""));
}

TEST_F(FashionMnistOnCuda, WhatItCannotDoIsOneLine) {
  const Outcome few = train({"--stages", "2"}, {{"SLUICE_LOGICAL_GPUS", "1"}});
  EXPECT_EQ(few.status, 2);
  EXPECT_EQ(few.err, "fashion_mnist: --stages 2: 2 devices are wanted, and SLUICE_LOGICAL_GPUS makes 1\n");
  const Outcome off = train({}, {{"SLUICE_CUDA", "0"}});
  EXPECT_EQ(off.status, 1);
  EXPECT_EQ(off.err, "fashion_mnist: no CUDA device: SLUICE_CUDA=0 switches it off\n");
}

}  // namespace
}  // namespace sluice
