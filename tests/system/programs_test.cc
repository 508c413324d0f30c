// The example programs, run as a newcomer runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "paths.h"
#include "sluice/tests/support/idx_files.h"
#include "sluice/tests/support/program.h"
#include "sluice/tests/support/small_fashion_mnist.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice {
namespace {

using test::gzip;
using test::idx;
using test::Outcome;
using test::ProgramOptions;
using test::read_file;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::string example(const std::string& name) { return std::string(SLUICE_BINARY_DIR) + "/examples/" + name; }

class FashionMnistProgram : public ::testing::Test {
 protected:
  static constexpr int kTrain = 640, kTest = 200;

  FashionMnistProgram() { test::write_small_fashion_mnist(data_.path(), kTrain, kTest); }

  Outcome train(std::vector<std::string> arguments, const ProgramOptions& options = {}) {
    for (const auto& [flag, value] : std::vector<std::pair<std::string, std::string>>{
             {"--data", data_.path()}, {"--out", out_ / "run"}, {"--batch", "64"}, {"--epochs", "2"}}) {
      if (std::find(arguments.begin(), arguments.end(), flag) == arguments.end())
        arguments.insert(arguments.end(), {flag, value});
    }
    return test::run_program(example("fashion_mnist"), arguments, options);
  }

  /// The model that a run with these arguments saves.
  std::string model(const std::vector<std::string>& arguments, const ProgramOptions& options = {}) {
    const Outcome run = train(arguments, options);
    EXPECT_EQ(run.status, 0) << run.err;
    return read_file(out_ / "run/model.safetensors");
  }

  void refuses(const std::vector<std::string>& arguments, const std::string& words) {
    const Outcome run = train(arguments, {.environment = {{"SLUICE_REPORT", "0"}}});
    EXPECT_FALSE(run.timed_out) << words;
    EXPECT_EQ(run.status, 2) << run.err;
    EXPECT_THAT(run.err, HasSubstr(words));
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }

  TemporaryDirectory data_, out_;
};

TEST_F(FashionMnistProgram, TrainsAndReports) {
  const Outcome run = train({"--epochs", "4"});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.err, MatchesRegex("sluice [^\n]+\n"));  // what it runs with
  EXPECT_THAT(run.out,
              ContainsRegex("training 100 %  epoch 4/4  loss [0-9.]+, [0-9.]+ steps/s, [0-9.]+ samples/s, [0-9:]+\n"));
  EXPECT_THAT(run.out, ContainsRegex("test accuracy   (0\\.[6-9]|1\\.0)[0-9]+      \\(200 images\\)\n"));
  EXPECT_THAT(run.out, ContainsRegex("throughput      [0-9]+ images/s\n"));
  EXPECT_THAT(run.out,
              ContainsRegex("bubble          [0-9.]+ %     \\(simulated with the measured F and B times and [0-9]+ "
                            "cores?: [0-9.]+ %; 1F1B formula [0-9.]+ %\\)\n"));
  EXPECT_THAT(run.out, HasSubstr("timeline        " + (out_ / "run/timeline.json").string() + "   (open in"));
  EXPECT_THAT(run.out, HasSubstr("picture         " + (out_ / "run/timeline.svg").string() + "\n"));
  EXPECT_THAT(run.out, HasSubstr("model           " + (out_ / "run/model.safetensors").string() + "\n"));
  EXPECT_THAT(read_file(out_ / "run/timeline.svg"), HasSubstr("<svg"));
  EXPECT_THAT(read_file(out_ / "run/timeline.json"), HasSubstr("traceEvents"));
}

TEST_F(FashionMnistProgram, TheModelHasTheSameBitsHoweverItIsTrained) {
  const std::string first = model({});
  EXPECT_EQ(model({}), first) << "from run to run";
  EXPECT_EQ(model({"--schedule", "gpipe"}), first);
  for (const char* schedule : {"zbv", "interleaved:2", "dynamic", "auto"}) {
    EXPECT_EQ(model({"--schedule", schedule, "--microbatches", "8"}), first) << schedule;
  }
  for (const char* stages : {"1", "3", "4"}) EXPECT_EQ(model({"--stages", stages}), first) << stages << " stages";
  for (const char* threads : {"1", "4"})
    EXPECT_EQ(model({}, {.environment = {{"SLUICE_THREADS", threads}}}), first) << threads << " threads";
  EXPECT_EQ(model({}, {.environment = {{"SLUICE_ENGINE", "serial"}}}), first) << "serial mode";
  EXPECT_NE(model({"--seed", "2"}), first);
}

TEST_F(FashionMnistProgram, ShowsItsPlanAndEnds) {
  const Outcome run = train({"--plan"});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("layer                             F us      I us      W us     weights"));
  EXPECT_THAT(run.out, ContainsRegex("\n7 Linear +[0-9.]+ +[0-9.]+ +[0-9.]+   15.12 KiB "));
  EXPECT_THAT(run.out, ContainsRegex("\n\\* [a-z0-9:,-]+ +[0-9]+ +[0-9.]+ +[0-9]+ +[0-9.]+ %"));
  EXPECT_THAT(run.out, testing::Not(HasSubstr("training")));
  // So little that no cut fits it, with whatever workspace the library's convolutions want.
  EXPECT_THAT(train({"--plan", "--memory", "1"}).out,
              ContainsRegex("  gpipe +1  refused: device [01] needs [0-9.]+ MiB of 1.00 MiB\n"));
}

TEST_F(FashionMnistProgram, ComparesSchedules) {
  const Outcome run = train({"--compare", "--stages", "4", "--microbatches", "4", "--batch", "16"});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, ContainsRegex("\n1f1b +[0-9]+ +[0-9]+ +1\\.000 +[0-9.]+ % +[0-9.]+ % "));
  EXPECT_THAT(run.out, ContainsRegex("\ndynamic +[0-9]+ +[0-9]+ +[0-9.]+ +[0-9.]+ % +[0-9.]+ % "));
}

TEST_F(FashionMnistProgram, GoesOnAfterCtrlC) {
  const std::string whole = model({"--epochs", "6"});
  const std::string kept = out_ / "kept.safetensors";
  bool sent = false;
  ProgramOptions interrupting;
  interrupting.on_output = [&](pid_t process, const std::string& out) {
    if (!sent && out.find("training") != std::string::npos) {
      sent = true;
      ::kill(process, SIGINT);
    }
  };
  const Outcome run = train({"--epochs", "6", "--save", kept}, interrupting);
  EXPECT_EQ(run.status, 130) << run.out << run.err;
  EXPECT_THAT(run.out,
              MatchesRegex("plan            1f1b, layers [0-9 |-]+: [0-9]+ images/s, at most [0-9.]+ MiB on a device\n"
                           "Fashion-MNIST   640 training images; network with [0-9]+ weights; 2 stages, 8 microbatches "
                           "of 8, 1f1b\n(training +[0-9]+ %  epoch [1-6]/6  loss [0-9.]+, [0-9.]+ steps/s, [0-9.]+ "
                           "samples/s, [0-9:]+( left)?\n)+interrupted after step [0-9]+ of 60\ncheckpoint      " +
                           kept + "   \\(go on with --resume " + kept + "\\)\n"));
  EXPECT_THAT(run.err, HasSubstr("\nSIGINT: ends after this step; a second one ends at once\n"));
  EXPECT_EQ(model({"--epochs", "6", "--resume", kept}), whole);
}

TEST_F(FashionMnistProgram, WritesCheckpointsALogAndAProfile) {
  const Outcome run = train(
      {"--epochs", "3", "--every", "5", "--log", out_ / "rows.csv", "--tensorboard", out_ / "board", "--profile"});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, ContainsRegex("\nlayer +ms/step +% "));
  const std::string rows = read_file(out_ / "rows.csv");
  EXPECT_THAT(rows, MatchesRegex("step,loss\n(([0-9]+),[0-9.e-]+\n)+"));
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 31);
  EXPECT_FALSE(std::filesystem::is_empty(out_ / "board"));
  const std::string whole = read_file(out_ / "run/model.safetensors"), from = out_ / "run/step-00000025.safetensors";
  EXPECT_FALSE(std::filesystem::exists(out_ / "run/step-00000020.safetensors"));
  EXPECT_EQ(model({"--epochs", "3", "--resume", from, "--log", out_ / "rows.csv"}), whole);
  EXPECT_EQ(read_file(out_ / "rows.csv"), rows);
  // Another run into the same folder: its checkpoints take the place of those of later steps.
  EXPECT_EQ(model({"--every", "5", "--epochs", "1"}).size(), whole.size());
  EXPECT_TRUE(std::filesystem::exists(out_ / "run/step-00000010.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(from));
}

TEST_F(FashionMnistProgram, HelpNamesEveryFlag) {
  const Outcome run = test::run_program(example("fashion_mnist"), {"--help"});
  EXPECT_EQ(run.status, 0);
  for (const char* flag :
       {"--stages", "--schedule", "--microbatches", "--epochs", "--batch", "--lr", "--seed", "--data", "--save",
        "--resume", "--device", "--plan", "--compare", "--memory", "--every", "--log", "--tensorboard", "--profile"})
    EXPECT_THAT(run.out, HasSubstr(flag));
}

TEST_F(FashionMnistProgram, FailedTrainingIsAFailure) {
  const Outcome run = train({"--lr", "1e30"});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.err, HasSubstr("training failed: the loss is"));
}

TEST_F(FashionMnistProgram, WithoutAGpuItSaysWhy) {
  const Outcome run = train({"--device", "cuda"}, {.environment = {{"SLUICE_CUDA_LIBRARY", "/nonexistent/sluice.so"}}});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.err, HasSubstr("fashion_mnist: no CUDA device: the CUDA backend cannot be loaded: /nonexistent/"));
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
}

TEST_F(FashionMnistProgram, BadArgumentsAreOneLine) {
  refuses({"--stagse", "2"}, "--stagse");
  refuses({"--stages", "5"}, "--stages");
  refuses({"--stages", "two"}, "--stages");
  refuses({"--schedule", "2f2b"}, "--schedule");
  refuses(
      {"--schedule", "interleaved:2", "--microbatches", "7"},
      "--schedule interleaved:2: schedule 'interleaved:2' needs a multiple of its 2 devices as microbatches, not 7");
  refuses({"--schedule", "interleaved:5"}, "--schedule interleaved:5: 10 stages want as many layers, and there are 8");
  refuses({"--memory", "1"}, "--schedule 1f1b: device ");
  refuses({"--lr", "-1"}, "--lr");
  refuses({"--epochs"}, "--epochs");
  refuses({"--device", "tpu"}, "--device");
  refuses({"--microbatches", "65"}, "--microbatches 65: more than --batch 64");
  refuses({"--batch", "641"}, "--batch 641: more than the 640 training images");
  refuses({"--out", data_ / "train-labels-idx1-ubyte.gz"}, "not a folder");
  refuses({"--data", data_ / "nowhere"}, "nowhere: no such directory");
}

TEST_F(FashionMnistProgram, BadDataAreOneLine) {
  const std::string name = "train-images-idx3-ubyte.gz";
  const std::string good = read_file(data_ / name);
  write_file(data_ / name, good.substr(0, good.size() / 2));
  refuses({}, name);
  std::string corrupt = good;
  for (std::size_t i = corrupt.size() / 2; i < corrupt.size() / 2 + 64; ++i)
    corrupt[i] = static_cast<char>(~corrupt[i]);
  write_file(data_ / name, corrupt);
  refuses({}, name);
  write_file(data_ / name, gzip(idx(0x08, {kTrain, 28, 28}, std::string(1000, '\0'))));
  refuses({}, name);
  write_file(data_ / name, gzip(idx(0x08, {kTrain - 1, 28, 28}, std::string((kTrain - 1) * 784, '\0'))));
  refuses({}, "holds 640 labels, train-images-idx3-ubyte.gz holds 639 images");
  write_file(data_ / name, gzip("\x01\x02\x03\x04 no IDX"));
  refuses({}, name);
  std::filesystem::remove(data_ / name);
  refuses({}, name);
}

TEST_F(FashionMnistProgram, BadCheckpointsAreOneLine) {
  refuses({"--resume", out_ / "nothing.safetensors"}, "nothing.safetensors");
  write_file(out_ / "text.safetensors", "no tensors here");
  refuses({"--resume", out_ / "text.safetensors"}, "text.safetensors");
  const std::string kept = out_ / "kept.safetensors";
  ASSERT_EQ(train({"--save", kept}).status, 0);
  refuses({"--resume", kept, "--seed", "2"}, "made with --batch 64 --seed 1");
  refuses({"--resume", kept, "--batch", "32"}, "made with --batch 64 --seed 1");
  refuses({"--resume", kept, "--epochs", "1"}, "is at step 20, past the 10 wanted");
  const auto refuses_with = [&](const std::string& name, const std::string& other, const std::string& words) {
    std::string file = read_file(kept);
    const std::size_t at = file.find(name);
    ASSERT_NE(at, std::string::npos) << name;
    write_file(out_ / "changed.safetensors", file.replace(at, name.size(), other));
    refuses({"--resume", out_ / "changed.safetensors"}, "changed.safetensors: " + words);
  };
  refuses_with("\"net.2.weight\"", "\"net.3.height\"", "no tensor 'net.2.weight', wanted as f32 (32, 32, 3, 3); ");
  refuses_with("\"opt.7.bias.momentum\"", "\"opt.7.bias.momenta_\"", "opt: no tensor '7.bias.momentum'; ");
  refuses_with("\"data.epoch\"", "\"data.reach\"", "data: [nn::Feed::set_position] fashion_mnist_data.h:");
  refuses_with("\"batch\"", "\"match\"", "nothing is there for 'batch'\n");
  const Outcome again = train({"--resume", kept});  // nothing left to do: the test alone
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("test accuracy"));
}

TEST(OtherPrograms, LinearRegressionFits) {
  const Outcome run = test::run_program(example("linear_regression"), {});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, ContainsRegex("fitted  y = (2\\.9|3\\.0)[0-9]+ x \\+ 0\\.(4|5)[0-9]+\n"));
}

TEST(OtherPrograms, OwnOperatorTrains) {
  const Outcome run = test::run_program(example("own_operator"), {});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, ContainsRegex("step   0  loss 0\\.[67][0-9]+  right  [45][0-9]\\.[0-9] %\n"));
  EXPECT_THAT(run.out, ContainsRegex("step 300  loss 0\\.0[0-9]+  right ( 99|100)\\.[0-9] %\n"));
  EXPECT_THAT(run.out,
              HasSubstr(" in 0: (1, 3) x (40, 2): points and centres differ in their number of coordinates\n"));
}

TEST(OtherPrograms, FlopsByLayerCountsForwardAndBackward) {
  const Outcome run = test::run_program(example("flops_by_layer"), {});
  EXPECT_EQ(run.status, 0) << run.err;
  // Products of 64 x 784 x 256, of which backward makes one more (the image has no gradient), and of 64 x 256 x 10, of
  // which it makes two more; and what the elementwise calls add.
  EXPECT_THAT(run.out, ContainsRegex("hidden +51\\.4"));
  EXPECT_THAT(run.out, ContainsRegex("classes +0\\.98"));
}

TEST(OtherPrograms, TanhGeluIsAnotherGradientButNear) {
  const Outcome run = test::run_program(example("tanh_gelu"), {});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
}

TEST(OtherPrograms, InF64NamesTheCarelessLayer) {
  const Outcome run = test::run_program(example("in_f64"), {});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_THAT(run.out, ContainsRegex("f32 and f64 agree\nblock\\.2: careless_softplus gave inf, in f64 [0-9.]+; "));
}

TEST(OtherPrograms, EngineTourShowsWhatItSays) {
  const Outcome run = test::run_program(example("engine_tour"), {});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("the camera is unplugged\n   after the next draw the frame is good again\n"));
  EXPECT_THAT(run.out, HasSubstr("updates frame) waits for frame behind a borrow of frame (engine_tour.cc:"));
  EXPECT_THAT(run.out, HasSubstr("cancelled: yes. [blur]"));
  EXPECT_EQ(test::run_program(example("engine_tour"), {}, {.environment = {{"SLUICE_ENGINE", "serial"}}}).out, run.out);
}

}  // namespace
}  // namespace sluice
