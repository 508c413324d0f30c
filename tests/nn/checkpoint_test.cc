// Checkpoints: a run that was interrupted goes on with the same bits, and files that do not fit are refused whole.
#include "sluice/nn/checkpoint.h"

#include <gmock/gmock.h>

#include "nn_support.h"
#include "sluice/ndarray/formats/safetensors.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice {
namespace {

using test::made_up;
using test::TemporaryDirectory;
using test::TestEngine;
using ::testing::HasSubstr;
using ::testing::Not;

struct Model {
  explicit Model(std::uint64_t seed) : stream(seed) {
    net.push_back(Linear(4, 5, stream, {.relu = true}));
    net.push_back(Linear(5, 2, stream));
    adam = std::make_unique<Adam>(net.parameters(), AdamOptions{.lr = 0.05});
  }
  void step() {
    const NDArray x = normal({6, 4}, stream);
    cross_entropy(net(x), from({0, 1, 0, 1, 0, 1}, {6})).backward();
    adam->step();
  }
  /// Of weights and state.
  std::string bits() const {
    std::string all_bits;
    for (const NamedArray& p : adam->parameters()) all_bits += test::bits(p.value);
    for (const NamedArray& s : adam->state()) all_bits += test::bits(s.value);
    return all_bits;
  }
  RandomStream stream;
  Sequential net;
  std::unique_ptr<Adam> adam;
};

TEST(Checkpoint, ARunGoesOnWithTheSameBits) {
  TestEngine engine;
  const TemporaryDirectory directory;
  const auto path = directory / "model.safetensors";
  Model whole(1);
  for (int t = 0; t < 3; ++t) whole.step();
  save_checkpoint(path, whole.net.parameters(), whole.adam->state(),
                  {{"epoch", "3"}, {"stream", to_text(whole.stream.state())}});
  for (int t = 0; t < 3; ++t) whole.step();

  Model resumed(2);
  const auto metadata = load_checkpoint(path, resumed.net.parameters(), resumed.adam->state());
  EXPECT_EQ(metadata.at("epoch"), "3");
  resumed.stream.restore(random_state(metadata.at("stream")));
  for (int t = 0; t < 3; ++t) resumed.step();
  EXPECT_TRUE(resumed.bits() == whole.bits());
  EXPECT_TRUE(resumed.net.parameters()[0].value->requires_grad());
}

TEST(Checkpoint, StateIsOptionalAndNamesArePyTorchs) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  const TemporaryDirectory directory;
  const auto path = directory / "model.safetensors";
  Model model(1);
  save_checkpoint(path, model.net.parameters(), model.adam->state());
  const Safetensors file = load_safetensors(path);
  EXPECT_NE(file.find("0.weight"), nullptr);
  EXPECT_NE(file.find("1.bias"), nullptr);
  EXPECT_NE(file.find("optimizer.1.bias.exp_avg_sq"), nullptr);
  EXPECT_EQ(file.tensors.size(), 4u + 12u);

  Model other(2);
  other.net.to(test::device(1));
  EXPECT_TRUE(load_checkpoint(path, other.net.parameters()).empty());
  EXPECT_EQ(other.net.parameters()[0].value->device(), test::device(1));
  EXPECT_EQ(other.net.parameters()[0].value->to_bytes(), model.net.parameters()[0].value->to_bytes());
}

TEST(Checkpoint, HealsWhatAFailureLeft) {
  TestEngine engine;
  const TemporaryDirectory directory;
  const auto path = directory / "model.safetensors";
  Model model(1);
  model.step();
  save_checkpoint(path, model.net.parameters(), model.adam->state());
  const auto before = model.bits();
  {
    NoGrad no_grad;
    const NDArray& weight = *model.net.parameters()[0].value;
    push_op([](ArrayContext&) { throw std::runtime_error("half written"); }, {}, {weight}, {.name = "torn"});
    EXPECT_THROW(weight.wait(), Error);
  }
  model.adam->recover();
  EXPECT_THROW(model.net.parameters()[0].value->wait(), Error) << "torn: recover leaves it";
  load_checkpoint(path, model.net.parameters(), model.adam->state());
  EXPECT_TRUE(model.bits() == before);
}

TEST(Checkpoint, RefusesWhatDoesNotFit) {
  TestEngine engine;
  const TemporaryDirectory directory;
  const auto path = directory / "model.safetensors";
  RandomStream stream(3);
  Sequential net{Linear(4, 5, stream), Linear(5, 2, stream)};
  save_checkpoint(path, net.parameters());
  const auto expect_line = [&](Sequential other, std::initializer_list<const char*> words) {
    std::vector<std::vector<std::byte>> before;
    for (const NamedParameter& p : other.parameters()) before.push_back(p.value->to_bytes());
    try {
      load_checkpoint(path, other.parameters());
      ADD_FAILURE() << "loaded";
    } catch (const FormatError& error) {
      EXPECT_THAT(error.what(), HasSubstr("model.safetensors"));
      for (const char* word : words) EXPECT_THAT(error.what(), HasSubstr(word));
      EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    }
    std::size_t i = 0;
    for (const NamedParameter& p : other.parameters()) EXPECT_EQ(p.value->to_bytes(), before[i++]) << "unchanged";
  };
  expect_line(Sequential{Linear(4, 5, stream), Linear(5, 3, stream)}, {"'1.weight'", "f32 (2, 5)", "f32 (3, 5)"});
  expect_line(Sequential{Linear(4, 5, stream), Linear(5, 2, stream, {.dtype = DType::f64})},
              {"'1.weight'", "f32", "f64"});
  expect_line(Sequential{Linear(4, 5, stream), Linear(5, 2, stream), Linear(2, 2, stream)}, {"'2.weight'", "(2, 2)"});
  expect_line(Sequential{Linear(4, 5, stream), Linear(5, 2, stream, {.bias = false})}, {"'1.bias'", "f32 (2,)"});
  EXPECT_THROW(load_checkpoint(directory / "absent.safetensors", net.parameters()), FormatError);
  Adam adam(net.parameters(), {});
  EXPECT_THROW(load_checkpoint(path, net.parameters(), adam.state()), FormatError) << "no state in the file";
}

TEST(Checkpoint, SavingAPoisonedArrayThrowsAndLeavesTheOldFile) {
  TestEngine engine;
  const TemporaryDirectory directory;
  const auto path = directory / "model.safetensors";
  NDArray w = made_up({3}, 1), bad = test::broken(w);
  save_checkpoint(path, {{"w", &w}});
  EXPECT_THROW(save_checkpoint(path, {{"w", &bad}}), Error);
  EXPECT_EQ(load_safetensors(path).find("w")->bytes, w.to_bytes());
}

TEST(Checkpoint, RandomStatesAreText) {
  const RandomStream::State state{~0ull, 5, 17};
  EXPECT_EQ(random_state(to_text(state)), state);
  for (const char* bad : {"", "1 2", "1 2 3 4", "a b c", "1 2 -3", "1 2 99999999999999999999"}) {
    EXPECT_THROW(random_state(bad), std::invalid_argument) << bad;
  }
}

}  // namespace
}  // namespace sluice
