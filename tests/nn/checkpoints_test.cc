// Checkpoints: files of a run that are written while it goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <set>
#include <thread>

#include "nn_support.h"
#include "sluice/nn/files/pace.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice {
namespace {

using test::bits;
using test::read_file;
using test::TemporaryDirectory;
using test::what_of;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CheckpointFiles : public ::testing::Test {
 protected:
  /// A net that is trained on made-up numbers, with all that a run has.
  struct Training {
    nn::Linear net{6, 3};
    nn::Optimizer opt;
    RandomStream stream{7};
    nn::Windows data;
    nn::Log log;
    nn::Patience patience;
    nn::Saved all;

    explicit Training(const std::string& folder)
        : opt((nn::initialise(net, 1), nn::to(net, test::device()), net), nn::AdamW{.lr = 0.1}),
          data(arange(200).to(cpu(0)), {.batch = 4, .length = 6, .shuffle = true, .device = test::device()}),
          log(folder + "/log.csv"),
          all{{"net", net},
              {"opt", opt},
              {"stream", stream},
              {"data", data},
              {"log", log},
              {"best", patience.best},
              {"tries", patience.tries}} {}
    void step() {
      const auto [x, y, first] = data.next();
      const nn::Training on(stream);
      const NDArray input = x.to(DType::f32) / 100 + normal(x.shape(), stream).to(x.device());
      const NDArray loss = mean(square(net(input)));
      loss.backward();
      opt.step();
      log.add(opt.steps(), {{"loss", loss}});
    }
    std::string weights() { return bits(net.weight) + bits(*net.bias); }
  };

  std::string folder() const { return (folder_ / "out").string(); }
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& file : std::filesystem::directory_iterator(folder())) {
      names.insert(file.path().filename().string());
    }
    return names;
  }
  /// By another file of that name: what was loaded from the old one may not be read yet.
  static void replace(const std::string& path, const std::string& text) {
    write_file(path + ".new", text);
    std::filesystem::rename(path + ".new", path);
  }
  test::TestEngine engine_{{.threads = 2, .logical_cpus = 4}};
  TemporaryDirectory folder_;
};

TEST_F(CheckpointFiles, HaveWhatWasThereAtTheCall) {
  Training run(folder_.path().string());
  nn::Checkpoints checkpoints(folder(), run.all, {.every = 2, .keep = 0});
  std::vector<NDArray> weights;  // read at the end: nothing waits for the copies
  for (int i = 0; i < 6; ++i) {
    run.step();
    checkpoints.step(run.opt.steps());
    weights.push_back(run.net.weight.value().detach().copy());
  }
  checkpoints.wait();
  EXPECT_THAT(files(),
              ElementsAre("step-00000002.safetensors", "step-00000004.safetensors", "step-00000006.safetensors"));
  for (const int step : {2, 4, 6}) {
    Training other((folder_ / "other").string());
    nn::load(folder() + "/step-0000000" + std::to_string(step) + ".safetensors", other.all);
    EXPECT_TRUE(bits(other.net.weight) == bits(weights[static_cast<std::size_t>(step) - 1])) << step;
    EXPECT_EQ(other.opt.steps(), step);
  }
}

TEST_F(CheckpointFiles, WaitForNothingThatIsPushed) {
  nn::Linear net{2, 2};
  nn::initialise(net, 1);
  const nn::Saved all{{"net", net}};
  nn::Checkpoints checkpoints(folder(), all, {.every = 1});
  ArrayCompletion open;
  std::promise<void> begun;
  {
    const NoGrad off;
    const NDArray late = empty(net.weight.value().shape(), DType::f32, cpu(0));
    push_op(
        [&](ArrayContext& c, ArrayCompletion done) {
          std::fill_n(c.output().as<float>(), 4, 5.0F);
          open = std::move(done);
          begun.set_value();
        },
        {}, {late}, {.name = "late"});
    net.weight.value().assign(late.to(net.weight.value().device()));
  }
  checkpoints.step(1);  // the weights are not known yet
  {
    const NoGrad off;
    net.weight.value().fill(6);
  }
  begun.get_future().get();
  EXPECT_FALSE(std::filesystem::exists(folder() + "/step-00000001.safetensors"));
  open.done();
  checkpoints.wait();
  nn::load(folder() + "/step-00000001.safetensors", all);
  EXPECT_EQ(net.weight.value().to_vector<float>(), std::vector<float>(4, 5.0F));
}

/// With rests of an hour, a file is only ever finished because somebody waits for it.
TEST_F(CheckpointFiles, AreHurriedByWhoWaits) {
  const struct SlowPace {
    nn::detail::PaceRule before = nn::detail::pace_rule();
    SlowPace() { nn::detail::pace_rule() = {.rests = 1'000'000'000, .longest = std::chrono::hours(1)}; }
    ~SlowPace() { nn::detail::pace_rule() = before; }
  } slow;
  nn::Linear net{1024, 3072};  // of several parts
  nn::initialise(net, 1);
  const nn::Saved all{{"net", net}};
  {
    nn::Checkpoints checkpoints(folder(), all, {.every = 1, .keep = 0});
    checkpoints.step(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(std::filesystem::exists(folder() + "/step-00000001.safetensors")) << "it took no rest";
    checkpoints.wait();
    checkpoints.step(2);
    checkpoints.step(3);  // waits for the one before
    checkpoints.save(4);
    checkpoints.best();
    checkpoints.step(5);
  }
  EXPECT_THAT(files(),
              ElementsAre("best.safetensors", "step-00000001.safetensors", "step-00000002.safetensors",
                          "step-00000003.safetensors", "step-00000004.safetensors", "step-00000005.safetensors"));
  nn::Linear other{1024, 3072};
  nn::load(folder() + "/step-00000005.safetensors", {{"net", other}});
  EXPECT_TRUE(bits(other.weight) == bits(net.weight));
}

TEST_F(CheckpointFiles, TheNewestStay) {
  Training run(folder_.path().string());
  nn::Checkpoints checkpoints(folder(), run.all, {.every = 1, .keep = 2});
  std::filesystem::create_directories(folder());
  for (const char* name : {"step-1.safetensors", "step-00000001.txt", "step-.safetensors", "mine"}) {
    write_file(folder() + "/" + name, "not of the checkpoints");
  }
  for (int i = 0; i < 5; ++i) {
    run.step();
    checkpoints.step(run.opt.steps());
    if (i == 1) checkpoints.best();
  }
  checkpoints.step(5);  // is there
  checkpoints.wait();
  EXPECT_THAT(files(), ElementsAre("best.safetensors", "mine", "step-.safetensors", "step-00000001.txt",
                                   "step-00000004.safetensors", "step-00000005.safetensors", "step-1.safetensors"));
  Training best((folder_ / "other").string());
  nn::load(folder() + "/best.safetensors", best.all);
  EXPECT_EQ(best.opt.steps(), 2);
}

TEST_F(CheckpointFiles, TheNewestWholeOneIsTaken) {
  std::string weights;
  {
    Training run(folder_.path().string());
    nn::Checkpoints checkpoints(folder(), run.all, {.every = 1, .keep = 3});
    EXPECT_EQ(checkpoints.resume(), "");
    for (int i = 0; i < 4; ++i) {
      run.step();
      if (i == 1) weights = run.weights();
      run.patience.better(i);
      checkpoints.step(run.opt.steps());
    }
  }
  // What something else has cut, and what is empty.
  const std::string newest = folder() + "/step-00000004.safetensors";
  replace(newest, read_file(newest).substr(0, 300));
  replace(folder() + "/step-00000003.safetensors", "");
  Training run((folder_ / "other").string());
  nn::Checkpoints checkpoints(folder(), run.all, {.every = 1});
  EXPECT_EQ(checkpoints.resume(), folder() + "/step-00000002.safetensors");
  EXPECT_TRUE(run.weights() == weights);
  EXPECT_EQ(run.opt.steps(), 2);
  EXPECT_EQ(run.log.position().at("step"), 2);
  EXPECT_EQ(run.patience.best, 0);
  EXPECT_EQ(run.patience.tries, 1);
  checkpoints.step(2);  // is the one that was loaded
  run.step();
  checkpoints.save(3);  // over the broken one
  Training third((folder_ / "third").string());
  nn::Checkpoints again(folder(), third.all);
  EXPECT_EQ(again.resume(), folder() + "/step-00000003.safetensors");
  for (const char* name : {"2", "3"}) replace(folder() + "/step-0000000" + name + ".safetensors", "broken");
  EXPECT_THAT(what_of([&] { again.resume(); }), HasSubstr("step-00000004.safetensors"));
}

TEST_F(CheckpointFiles, OfAnotherRunAreNotMixedIn) {
  Training run(folder_.path().string());
  {
    nn::Checkpoints checkpoints(folder(), run.all, {.every = 1});
    checkpoints.save(9);
  }
  nn::Checkpoints checkpoints(folder(), run.all, {.every = 1});
  EXPECT_THAT(what_of([&] { checkpoints.step(3); }),
              HasSubstr("step 3, and " + folder() +
                        " has a file of step 9, which is another run's: call resume() to go on from there"));
  EXPECT_THAT(what_of([&] { checkpoints.best(); }), HasSubstr("which is another run's"));
  checkpoints.step(10);
  checkpoints.wait();
  EXPECT_THAT(files(), ElementsAre("step-00000009.safetensors", "step-00000010.safetensors"));
  // A file that fits another net is no reason to take an older one.
  nn::Linear other{5, 5};
  nn::Checkpoints of_other(folder(), {{"net", other}});
  EXPECT_THAT(what_of([&] { of_other.resume(); }), HasSubstr("step-00000010.safetensors"));
}

TEST_F(CheckpointFiles, APoisonedArrayLeavesTheFileBefore) {
  nn::Linear net{2, 2};
  nn::initialise(net, 1);
  nn::Checkpoints checkpoints(folder(), {{"net", net}}, {.every = 1, .keep = 1});
  checkpoints.step(1);
  checkpoints.wait();
  const NDArray good = net.weight.value().detach().copy();
  {
    const NoGrad off;
    net.weight.value().assign(test::broken(good));
  }
  checkpoints.step(2);
  EXPECT_THAT(what_of([&] { checkpoints.wait(); }), HasSubstr("bad batch"));
  EXPECT_THAT(files(), ElementsAre("step-00000001.safetensors"));
  checkpoints.step(3);
  EXPECT_THAT(what_of([&] { checkpoints.save(4); }), HasSubstr("bad batch"));
  {
    const NoGrad off;
    net.weight.value().assign(good);
  }
  checkpoints.save(4);
  EXPECT_THAT(files(), ElementsAre("step-00000004.safetensors"));
}

TEST_F(CheckpointFiles, AFullDiskIsSaid) {
  Training run(folder_.path().string());
  nn::Checkpoints checkpoints(folder(), run.all, {.every = 1});
  checkpoints.save(1);
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{}, least{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  least = {.rlim_cur = 200, .rlim_max = limit.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &least);
  const std::string said = what_of([&] { checkpoints.save(2); });
  ::setrlimit(RLIMIT_FSIZE, &limit);
  ::signal(SIGXFSZ, before);
  EXPECT_THAT(said, HasSubstr("step-00000002.safetensors"));
  EXPECT_THAT(files(), ElementsAre("step-00000001.safetensors"));
  checkpoints.save(2);
  EXPECT_THAT(files(), ElementsAre("step-00000001.safetensors", "step-00000002.safetensors"));
}

TEST_F(CheckpointFiles, AreNotAheadOfTheLog) {
  nn::Log log((folder_ / "log.csv").string());
  nn::Checkpoints checkpoints(folder(), {{"log", log}}, {.every = 1});
  ArrayCompletion open;
  std::promise<void> begun;
  const NDArray late = empty({}, DType::f32, cpu(0));
  push_op(
      [&](ArrayContext& c, ArrayCompletion done) {
        *c.output().as<float>() = 0.5F;
        open = std::move(done);
        begun.set_value();
      },
      {}, {late}, {.name = "late"});
  log.add(1, {{"loss", late}});
  checkpoints.step(1);
  begun.get_future().get();
  std::future<void> written = std::async(std::launch::async, [&] { checkpoints.wait(); });
  EXPECT_EQ(written.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  EXPECT_EQ(read_file((folder_ / "log.csv").string()), "step\n");
  open.done();
  written.get();
  EXPECT_THAT(files(), ElementsAre("step-00000001.safetensors"));
  EXPECT_EQ(read_file((folder_ / "log.csv").string()), "step,loss\n1,0.5\n");
}

TEST_F(CheckpointFiles, OfNumbersAlone) {
  std::int64_t n = 5;
  nn::Checkpoints checkpoints(folder(), {{"n", n}});
  checkpoints.save(1);
  n = 6;
  EXPECT_EQ(checkpoints.resume(), std::filesystem::absolute(folder() + "/step-00000001.safetensors").string());
  EXPECT_EQ(n, 5);
}

TEST_F(CheckpointFiles, OfANetOnAMeshLoadAnywhere) {
  if (test::device().kind != DeviceKind::cpu) GTEST_SKIP() << "four devices are wanted";
  const Mesh mesh({{"dp", 4}});
  nn::Linear cut{5, 7}, plain{5, 7};
  nn::place(cut, mesh, {{.axis = "dp", .zero = 3}});
  nn::initialise(cut, 3);
  nn::initialise(plain, 3);
  nn::Checkpoints checkpoints(folder(), {{"net", cut}});
  checkpoints.save(1);
  nn::Linear other{5, 7};
  nn::Checkpoints elsewhere(folder(), {{"net", other}});
  EXPECT_NE(elsewhere.resume(), "");
  EXPECT_TRUE(bits(other.weight) == bits(plain.weight));
}

TEST_F(CheckpointFiles, ADryRunWritesNothing) {
  Training run(folder_.path().string());
  nn::Checkpoints checkpoints(folder(), run.all, {.every = 1});
  (void)shapes_of([&] {
    checkpoints.step(1);
    checkpoints.best();
    return zeros({1});
  });
  EXPECT_FALSE(std::filesystem::exists(folder()));
  checkpoints.save(1);  // is another one
  EXPECT_THAT(files(), ElementsAre("step-00000001.safetensors"));
}

TEST_F(CheckpointFiles, AForkedChildWritesNone) {
  Training run(folder_.path().string());
  nn::Checkpoints checkpoints(folder(), run.all, {.every = 1});
  checkpoints.step(1);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = what_of([&] { checkpoints.step(2); }).find("forked from") != std::string::npos &&
                         what_of([&] { checkpoints.wait(); }).find("forked from") != std::string::npos;
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(CheckpointFiles, WhatIsWrongIsSaid) {
  nn::Linear net{2, 2};
  const nn::Saved all{{"net", net}};
  EXPECT_THAT(what_of([&] { nn::Checkpoints("", all); }), HasSubstr("the path of the folder is empty"));
  EXPECT_THAT(what_of([&] { nn::Checkpoints("a", all, {.every = 0}); }), HasSubstr("a file every 0 steps"));
  EXPECT_THAT(what_of([&] { nn::Checkpoints("a", all, {.keep = -1}); }), HasSubstr("keep -1 files"));
  nn::Checkpoints checkpoints(folder(), all, {.every = 1});
  EXPECT_THAT(what_of([&] { checkpoints.step(-1); }), HasSubstr("step -1"));
  EXPECT_THAT(what_of([&] { checkpoints.step(1); }), HasSubstr("'net.weight' has no value"));
  write_file((folder_ / "file").string(), "");
  nn::initialise(net, 1);
  nn::Checkpoints no_folder((folder_ / "file").string(), all);
  EXPECT_THAT(what_of([&] { no_folder.save(1); }), HasSubstr("file"));
}

}  // namespace
}  // namespace sluice
