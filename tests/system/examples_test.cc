// The examples that train, with what they have in common (examples/run.h): a log, checkpoints, a profile, an orderly
// end at a signal; and that a second run goes on where the first ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "paths.h"
#include "sluice/tests/support/program.h"
#include "sluice/tests/support/small_fashion_mnist.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice {
namespace {

using test::Outcome;
using test::read_file;
using test::write_file;
using ::testing::HasSubstr;

std::string program(const std::string& name) { return std::string(SLUICE_BINARY_DIR) + "/examples/" + name; }

/// Words in no order, of about so many bytes.
std::string words(std::size_t bytes) {
  const std::vector<std::string> list{"the", "loop", "waits", "for", "arrays", "that", "other", "threads", "write"};
  std::string text;
  for (std::size_t i = 0; text.size() < bytes; i = i * 5 + 3) text += list[i % list.size()] + (i % 11 ? " " : ".\n");
  return text;
}

/// CIFAR-10's files, with so many pictures each: a class, and 3,072 numbers.
void write_small_cifar(const std::filesystem::path& folder, int pictures) {
  for (const char* name :
       {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"}) {
    std::string bytes;
    for (int i = 0; i < pictures; ++i) {
      bytes += static_cast<char>(i % 10);
      for (int k = 0; k < 3072; ++k) bytes += static_cast<char>((i % 10) * 20 + k % 13);
    }
    write_file(folder / (std::string(name) + ".bin"), bytes);
  }
}

struct Case {
  std::string name, program, data;         ///< what --data or --text is: "images", "cifar" or "text"
  std::vector<std::string> first, second;  ///< arguments of two runs
  int first_steps, second_steps;           ///< of the optimiser, after each
};

class ExampleRuns : public ::testing::Test {
 protected:
  ExampleRuns() {
    const std::filesystem::path images = folder_ / "images", cifar = folder_ / "cifar";
    std::filesystem::create_directories(images);
    std::filesystem::create_directories(cifar);
    test::write_small_fashion_mnist(images, 256, 64);
    write_small_cifar(cifar, 8);
    write_file(folder_ / "text", words(20000));
  }
  Outcome run(const std::string& name, const std::string& data, std::vector<std::string> arguments,
              const test::ProgramOptions& options = {}) {
    arguments.insert(arguments.end(), {data == "text" ? "--text" : "--data", folder_ / data, "--out", folder_ / "out"});
    return test::run_program(program(name), arguments, options);
  }
  /// The first column of the log, without its name.
  std::vector<std::int64_t> logged() const {
    const std::string text = read_file(folder_ / "log.csv");
    std::vector<std::int64_t> steps;
    for (std::size_t at = text.find('\n'); at + 1 < text.size(); at = text.find('\n', at + 1)) {
      steps.push_back(std::stoll(text.substr(at + 1)));
    }
    return steps;
  }
  static std::vector<std::int64_t> up_to(int n) {
    std::vector<std::int64_t> steps;
    for (int i = 1; i <= n; ++i) steps.push_back(i);
    return steps;
  }
  test::TemporaryDirectory folder_;
};

class Examples : public ExampleRuns, public ::testing::WithParamInterface<Case> {};

TEST_P(Examples, GoOnWithALogCheckpointsAndAProfile) {
  const Case& c = GetParam();
  for (const bool again : {false, true}) {
    std::vector<std::string> arguments = again ? c.second : c.first;
    arguments.insert(arguments.end(), {"--log", folder_ / "log.csv", "--every", "1", "--profile"});
    const Outcome outcome = run(c.program, c.data, arguments);
    ASSERT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    // What the run was made with.
    EXPECT_TRUE(outcome.err.starts_with("sluice ")) << outcome.err;
    EXPECT_THAT(outcome.err, ::testing::ContainsRegex("(avx512|avx2|default)"));
    for (const char* library : {"oneTBB ", "oneDNN ", "OpenBLAS ", "zlib ", "libpng ", "libjpeg"}) {
      EXPECT_THAT(outcome.err, HasSubstr(library));
    }
    EXPECT_EQ(outcome.out.find("goes on from step " + std::to_string(c.first_steps)) != std::string::npos, again)
        << outcome.out;
    EXPECT_EQ(logged(), up_to(again ? c.second_steps : c.first_steps));
    EXPECT_TRUE(std::filesystem::exists(folder_ / "out/model.safetensors"));
    EXPECT_THAT(read_file(folder_ / "out/loss.svg"), HasSubstr("<svg"));
    if (!again && c.first_steps >= 8) {  // the profile is of the fourth to the eighth step
      EXPECT_THAT(outcome.out, HasSubstr("ms"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    , Examples,
    ::testing::Values(
        Case{"mlp", "mlp", "images", {"--epochs", "4"}, {"--epochs", "5"}, 8, 10},
        Case{"char_gpt", "char_gpt", "text", {"--steps", "2", "--batch", "2"}, {"--steps", "3", "--batch", "2"}, 2, 3},
        Case{"lstm", "lstm", "text", {"--steps", "2", "--batch", "2"}, {"--steps", "3", "--batch", "2"}, 2, 3},
        Case{"train_gpt",
             "train_gpt",
             "text",
             {"--steps", "2", "--batch", "4", "--layers", "1", "--width", "32", "--heads", "2", "--dp", "2"},
             {"--steps", "3", "--batch", "4", "--layers", "1", "--width", "32", "--heads", "2", "--tp", "2"},
             2,
             3},
        Case{"resnet18",
             "resnet18",
             "images",
             {"--epochs", "1", "--limit", "16", "--batch", "8"},
             {"--epochs", "2", "--limit", "16", "--batch", "8"},
             2,
             4},
        Case{"resnet18_cifar",
             "resnet18",
             "cifar",
             {"--epochs", "1", "--limit", "16", "--batch", "8"},
             {"--epochs", "2", "--limit", "16", "--batch", "8"},
             2,
             4}),
    [](const auto& of) { return of.param.name; });

TEST_F(ExampleRuns, ASignalSavesTheStepAndIsTheStatus) {
  bool sent = false;
  const auto interrupt = [&](pid_t process, const std::string& out) {
    if (sent || out.find("mlp") == std::string::npos) return;
    sent = true;
    ::kill(process, SIGTERM);
  };
  const Outcome cut = run("mlp", "images", {"--epochs", "1000"}, {.environment = {}, .on_output = interrupt});
  EXPECT_EQ(cut.status, 128 + SIGTERM) << cut.out << cut.err;
  EXPECT_THAT(cut.out, HasSubstr("interrupted: step "));
  const std::string saved =
      "step " + std::to_string(std::stoi(cut.out.substr(cut.out.find("interrupted: step ") + 18)));
  const Outcome again = run("mlp", "images", {"--epochs", "1"});
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("goes on from " + saved));
}

}  // namespace
}  // namespace sluice
