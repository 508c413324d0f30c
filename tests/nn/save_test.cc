// Files of nets, optimisers, loaders and streams: exact both ways, all or nothing, and everything that is wrong listed.
#include "sluice/nn/files/save.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include "nn_support.h"
#include "sluice/nn/nets.h"

namespace sluice {
namespace {

using test::bits;
using test::made_up;
using test::TestEngine;
using test::what_of;
using ::testing::HasSubstr;
using ::testing::Not;

struct Net {
  nn::Linear up{3, 4}, down{4, 2};
  nn::BatchNorm norm{4};
  nn::Constant mask{{2}, nn::constant(1)};
  nn::Parameter tied = up.weight.tied();
  nn::Dropout drop{0.5};
  NDArray operator()(const NDArray& x) const { return down(drop(relu(norm(up(x))))) * mask; }
};

class SaveTest : public ::testing::Test {
 protected:
  SaveTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~SaveTest() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path path(const std::string& name = "net.safetensors") const { return folder_ / name; }
  static std::map<std::string, std::string> all_bits(const Net& net) {
    std::map<std::string, std::string> map;
    for (const nn::Named& slot : nn::contents(net).slots) map[slot.name] = bits(slot.state->value);
    return map;
  }
  TestEngine engine_{{.threads = 2, .logical_cpus = 2}};
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("sluice_save_" + std::to_string(::getpid()));
};

void train(Net& net, nn::Optimizer& opt, RandomStream& stream, int steps) {
  for (int i = 0; i < steps; ++i) {
    const nn::Training on(stream);
    sum(square(net(made_up({5, 3}, static_cast<std::uint64_t>(opt.steps()), DType::f32)))).backward();
    opt.step();
  }
}

TEST_F(SaveTest, ARunGoesOnBitForBit) {
  for (const int what : {0, 1, 2}) {  // a net that has values, one that has none, another rule
    const auto optimizer = [&](const Net& net) {
      return what == 2 ? nn::Optimizer(net, nn::Lion{.lr = 0.01}) : nn::Optimizer(net, nn::AdamW{.lr = 0.01});
    };
    Net net;
    nn::initialise(net, 1);
    nn::Optimizer opt = optimizer(net);
    RandomStream stream(3);
    train(net, opt, stream, 4);
    double best = 0.1 + 0.2;
    int number = -7;
    std::string text = "tea, \"quoted\"\n";
    nn::save(path(),
             {{"net", net}, {"opt", opt}, {"stream", stream}, {"best", best}, {"number", number}, {"text", text}});
    train(net, opt, stream, 3);

    Net other;
    if (what == 0) nn::initialise(other, 9);
    nn::Optimizer second = optimizer(other);
    RandomStream again(99);
    double best_read = 0;
    int number_read = 0;
    std::string text_read;
    nn::load(path(), {{"net", other},
                      {"opt", second},
                      {"stream", again},
                      {"best", best_read},
                      {"number", number_read},
                      {"text", text_read}});
    EXPECT_EQ(second.steps(), 4);
    EXPECT_EQ(best_read, best);
    EXPECT_EQ(number_read, -7);
    EXPECT_EQ(text_read, text);
    EXPECT_EQ(other.tied.state(), other.up.weight.state());
    EXPECT_EQ(other.drop.place.path(), "drop");
    train(other, second, again, 3);
    EXPECT_EQ(all_bits(other), all_bits(net)) << what;
  }
}

TEST_F(SaveTest, NamesAreThoseOfTheNet) {
  Net net;
  nn::initialise(net, 1);
  nn::Optimizer opt(net, nn::AdamW{});
  RandomStream stream(1);
  train(net, opt, stream, 1);
  nn::save(path(), {{"opt", opt}});
  const LoadedArrays kept = load_arrays(path());
  EXPECT_EQ(kept.arrays.size(), 3U * 6U);
  EXPECT_TRUE(kept.arrays.contains("opt.norm.bias.exp_avg_sq"));
  nn::save(path(), {{"net", net}});
  const LoadedArrays file = load_arrays(path());
  std::vector<std::string> names;
  for (const auto& [name, array] : file.arrays) names.push_back(name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"net.down.bias", "net.down.weight", "net.norm.bias", "net.norm.running_mean",
                                      "net.norm.running_var", "net.norm.weight", "net.up.bias", "net.up.weight"}))
      << "what is tied once, and no constants";
}

TEST_F(SaveTest, EveryFloatingDtypeIsExact) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    Net net, other, cast;
    nn::initialise(net, 1, {}, {.dtype = dtype});
    nn::save(path(), {{"net", net}});
    nn::initialise(other, 2, {}, {.dtype = dtype});
    const NDArray held = other.up.weight;
    nn::load(path(), {{"net", other}});
    EXPECT_EQ(all_bits(other), all_bits(net));
    EXPECT_TRUE(held.same_array(other.up.weight)) << "identities stay";
    nn::initialise(cast, 2);
    if (dtype != DType::f32) {
      EXPECT_THAT(what_of([&] {
                    nn::load(path(), {{"net", cast}});
                  }),
                  HasSubstr("'net.up.weight' is " + std::string(name_of(dtype))));
    }
    nn::load(path(), {{"net", cast}}, {.cast = true});
    EXPECT_EQ(bits(cast.up.weight), bits(net.up.weight.value().to(DType::f32)));
  }
}

TEST_F(SaveTest, WrongFilesChangeNothingAndAllThatIsWrongIsListed) {
  struct Wrong {
    nn::Linear up{3, 5}, down{4, 2, false}, more{1, 1};
    nn::BatchNorm norm{4};
  } wrong;
  nn::initialise(wrong, 1);
  nn::save(path(), {{"net", wrong}});
  Net net;
  nn::initialise(net, 2);
  nn::Optimizer opt(net, nn::AdamW{});
  RandomStream stream(1);
  const auto before = all_bits(net);
  const std::string line = what_of([&] { nn::load(path(), {{"net", net}, {"opt", opt}, {"stream", stream}}); });
  for (const char* part :
       {"save_test.cc", "'net.up.weight' is f32 (5, 3), wanted f32 (4, 3)", "'net.up.bias' is f32 (5,)",
        "no tensor 'net.down.bias', wanted as f32 (2,)", "'net.more.weight' (f32 (1, 1)) is not expected",
        "nothing is there for 'opt'", "nothing is there for 'stream'"}) {
    EXPECT_THAT(line, HasSubstr(part));
  }
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  EXPECT_EQ(all_bits(net), before);
  EXPECT_EQ(stream.state().seed, 1U);
  EXPECT_THAT(what_of([&] { nn::load(path("none"), {{"net", net}}); }), HasSubstr("none"));
  EXPECT_FALSE(nn::exists(path("none")));
  EXPECT_TRUE(nn::exists(path()));
}

TEST_F(SaveTest, FilesThatWereCutChangeNothing) {
  Net net, other;
  nn::initialise(net, 1);
  nn::initialise(other, 2);
  nn::save(path(), {{"net", net}});
  std::ifstream in(path(), std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const auto before = all_bits(other);
  for (std::size_t n = 0; n < whole.size(); n += n < 900 ? 1 : 37) {
    std::ofstream(path("cut"), std::ios::binary | std::ios::trunc) << whole.substr(0, n);
    EXPECT_NE(what_of([&] { nn::load(path("cut"), {{"net", other}}); }), "nothing was thrown") << n;
  }
  EXPECT_EQ(all_bits(other), before);
}

TEST_F(SaveTest, AFileStaysWhereWritingFails) {
  Net net;
  EXPECT_THAT(what_of([&] { nn::save(path(), {{"net", net}}); }), HasSubstr("'net.up.weight' has no value"));
  nn::initialise(net, 1);
  nn::save(path(), {{"net", net}});
  const auto size = std::filesystem::file_size(path());
  {
    const NoGrad off;
    net.up.bias->value().assign(test::broken(ones({4})));
  }
  EXPECT_THAT(what_of([&] { nn::save(path(), {{"net", net}}); }), HasSubstr("bad batch"));
  EXPECT_EQ(std::filesystem::file_size(path()), size);
  nn::recover(net);
  EXPECT_NE(what_of([&] { nn::save(folder_ / "no" / "such", {{"net", net}}); }), "nothing was thrown");
  EXPECT_THAT(what_of([&] { nn::save(path(), {{"a", net}, {"a", net}}); }), HasSubstr("two items have the name 'a'"));
  EXPECT_THAT(what_of([&] { nn::save(path(), {{"a.b", net}}); }), HasSubstr("a dot"));
}

TEST_F(SaveTest, WhatRecoverLeavesIsHealed) {
  Net net;
  nn::initialise(net, 1);
  nn::save(path(), {{"net", net}});
  const auto before = all_bits(net);
  {
    const NoGrad off;
    push_op([](ArrayContext&) { throw std::runtime_error("half written"); }, {}, {net.up.weight.value()},
            {.name = "torn"});
  }
  EXPECT_THROW(net.up.weight.value().wait(), Error);
  nn::recover(net);
  EXPECT_THROW(net.up.weight.value().wait(), Error) << "torn";
  nn::load(path(), {{"net", net}});
  EXPECT_EQ(all_bits(net), before);
}

TEST_F(SaveTest, ValuesComeToTheDeviceOfTheNet) {
  Net net, other;
  nn::initialise(net, 1);
  nn::save(path(), {{"net", net}});
  nn::initialise(other, 2);
  nn::to(other, test::device(1));
  nn::load(path(), {{"net", other}});
  for (const nn::Named& slot : nn::contents(other).slots) EXPECT_EQ(slot.state->value.device(), test::device(1));
  EXPECT_EQ(all_bits(other), all_bits(net));
}

TEST_F(SaveTest, WhatIsTiedMayHaveAnyOfItsPaths) {
  struct Head {
    nn::Embedding token{5, 3};
    nn::Linear head{.in = 3, .out = 5, .use_bias = false, .weight = token.weight.tied()};
    nn::Parameter third = token.weight.tied();
  };
  const NDArray values = made_up({5, 3}, 1, DType::f32), others = made_up({5, 3}, 2, DType::f32);
  using Arrays = std::map<std::string, NDArray>;
  const auto load_into = [&](const Head& net, const Arrays& file, const nn::LoadOptions& options = {}) {
    save_arrays(path(), file);
    return what_of([&] { nn::load(path(), {{"", net}}, options); });
  };
  for (const Arrays& file : {Arrays{{"token.weight", values}}, Arrays{{"head.weight", values}},
                             Arrays{{"third", values}}, Arrays{{"token.weight", values}, {"head.weight", values}},
                             Arrays{{"third", values}, {"head.weight", values}}}) {
    const Head net;
    EXPECT_EQ(load_into(net, file), "nothing was thrown");
    EXPECT_EQ(bits(net.head.weight), bits(values));
    EXPECT_EQ(net.head.weight.state(), net.token.weight.state());
    EXPECT_EQ(net.head.weight.path(), "token.weight");
  }
  const Head net;
  EXPECT_THAT(load_into(net, {{"token.weight", values}, {"head.weight", others}}),
              HasSubstr("'token.weight' and 'head.weight' differ, and are one parameter of the net"));
  EXPECT_THAT(load_into(net, {{"token.weight", values}, {"third", values.to(DType::f64)}}), HasSubstr("differ"));
  EXPECT_THAT(load_into(net, {{"head.weight", ones({3, 5})}}),
              HasSubstr("'head.weight' is f32 (3, 5), wanted f32 (5, 3)"));
  EXPECT_THAT(load_into(net, {{"body.weight", values}}), HasSubstr("no tensor 'token.weight'"));
  EXPECT_FALSE(net.token.weight.state()->value.defined()) << "nothing was changed";
  EXPECT_EQ(load_into(net, {{"lm.weight", values}, {"more", values}}, {.only = "head.*", .rename = {{"lm.", "head."}}}),
            "nothing was thrown");
  EXPECT_EQ(bits(net.token.weight), bits(values));
}

TEST_F(SaveTest, TextsThatAreNoStreamAreRefused) {
  RandomStream stream(RandomStream::State{~std::uint64_t{0}, 5, 17}), again(1);
  nn::save(path(), {{"stream", stream}});
  nn::load(path(), {{"stream", again}});
  EXPECT_EQ(again.state(), stream.state());
  for (const char* bad : {"", "1 2", "1 2 3 4", "1 2 3 ", "a b c", "1 2 -3", "1 2 99999999999999999999"}) {
    save_arrays(path(), {}, {{"stream", bad}});
    EXPECT_THAT(what_of([&] { nn::load(path(), {{"stream", again}}); }), HasSubstr("seed, stream and draw are wanted"));
    EXPECT_EQ(again.state(), stream.state()) << bad;
  }
}

TEST_F(SaveTest, NumbersOfEachTypeComeBackOrAreRefused) {
  std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  std::int64_t least = std::numeric_limits<std::int64_t>::min();
  bool yes = true;
  double third = 1.0 / 3;
  nn::save(path(), {{"most", most}, {"least", least}, {"yes", yes}, {"third", third}});
  most = 0, least = 0, yes = false, third = 0;
  nn::load(path(), {{"most", most}, {"least", least}, {"yes", yes}, {"third", third}});
  EXPECT_EQ(most, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(least, std::numeric_limits<std::int64_t>::min());
  EXPECT_TRUE(yes);
  EXPECT_EQ(third, 1.0 / 3);
  const auto refused = [&](const char* name, auto value) {
    const auto before = value;
    const std::string said = what_of([&] { nn::load(path(), {{name, value}}); });
    EXPECT_EQ(value, before);
    return said;
  };
  EXPECT_THAT(refused("most", std::int64_t{5}), HasSubstr("'most' is '18446744073709551615', no whole number"));
  EXPECT_THAT(refused("least", std::uint64_t{5}),
              HasSubstr("'least' is '-9223372036854775808', no whole number from 0"));
  EXPECT_THAT(refused("least", 5), HasSubstr("'least' is -9223372036854775808, which does not fit its type"));
  EXPECT_THAT(refused("third", 5), HasSubstr("'third' is '0.333"));
}

TEST_F(SaveTest, PartsAndOtherNames) {
  Net net, other;
  nn::initialise(net, 1);
  nn::initialise(other, 2);
  nn::save(path(), {{"", net}});  // names at the top, as other programs write them
  const auto before = all_bits(other);
  nn::load(path(), {{"", other}}, {.only = "down.*"});
  EXPECT_EQ(bits(other.down.weight), bits(net.down.weight));
  EXPECT_EQ(bits(other.up.weight), before.at("up.weight"));
  EXPECT_THAT(what_of([&] {
                nn::load(path(), {{"", other}}, {.only = "dwn.*"});
              }),
              HasSubstr("'dwn.*': matches nothing"));
  struct Renamed {
    struct Inner {
      nn::Linear first{3, 4}, down{4, 2};
      nn::BatchNorm norm{4};
    } body{};
  } renamed;
  nn::load(path(), {{"", renamed}}, {.rename = {{"up.", "body.first."}, {"", "body."}}});
  EXPECT_EQ(bits(renamed.body.first.weight), bits(net.up.weight));
  EXPECT_EQ(bits(renamed.body.norm.running_var), bits(net.norm.running_var));
  EXPECT_EQ(renamed.body.down.bias->path(), "body.down.bias");
  EXPECT_TRUE(renamed.body.down.weight.value().requires_grad());
  EXPECT_FALSE(renamed.body.norm.running_mean.value().requires_grad());
}

TEST_F(SaveTest, APartThatIsLoadedAloneHasItsWholePathLater) {
  Net net;
  nn::initialise(net, 1);
  nn::save(path(), {{"", net.up}});
  Net whole;
  nn::load(path(), {{"", whole.up}});
  EXPECT_EQ(whole.up.weight.path(), "weight");
  nn::complete(whole, 2);
  EXPECT_EQ(whole.up.weight.path(), "up.weight");
  EXPECT_EQ(bits(whole.up.weight), bits(net.up.weight));
}

TEST_F(SaveTest, ModelsInSeveralFiles) {
  Net net, other;
  nn::initialise(net, 1);
  std::map<std::string, NDArray> one, two;
  std::string index = "{\"metadata\": {}, \"weight_map\": {";
  for (const nn::Named& slot : nn::contents(net).slots) {
    if (slot.state->kind == nn::Kind::constant) continue;
    const bool first = one.size() <= two.size();
    (first ? one : two).emplace(slot.name, slot.state->value);
    index += "\"" + slot.name + "\": \"" + (first ? "one" : "two") + ".safetensors\", ";
  }
  save_arrays(path("one.safetensors"), one);
  save_arrays(path("two.safetensors"), two);
  std::ofstream(path("model.safetensors.index.json")) << index.substr(0, index.size() - 2) << "}}";
  nn::load(path("model.safetensors.index.json"), {{"", other}});
  EXPECT_EQ(bits(other.up.weight), bits(net.up.weight));
  EXPECT_EQ(bits(other.norm.running_mean), bits(net.norm.running_mean));
  std::ofstream(path("bad.json")) << "{\"weight_map\": {\"a\": \"../../etc/passwd\"}}";
  EXPECT_THAT(what_of([&] {
                nn::load(path("bad.json"), {{"", other}});
              }),
              HasSubstr("no name of a file in the same folder"));
  std::ofstream(path("worse.json")) << "[1, 2";
  EXPECT_THAT(what_of([&] { nn::load(path("worse.json"), {{"", other}}); }), HasSubstr("holds no index"));
}

TEST_F(SaveTest, OptimisersSayWhatDoesNotFit) {
  Net net;
  nn::initialise(net, 1);
  nn::Optimizer opt(net, nn::AdamW{});
  RandomStream stream(1);
  train(net, opt, stream, 1);
  nn::save(path(), {{"opt", opt}});
  Net other;
  nn::initialise(other, 1);
  nn::Optimizer lion(other, nn::Lion{});
  const std::string line = what_of([&] { nn::load(path(), {{"opt", lion}}); });
  EXPECT_THAT(line, HasSubstr("'up.weight.exp_avg_sq' is not expected"));
  EXPECT_THAT(line, HasSubstr("'up.weight.step' is not expected"));
  EXPECT_EQ(lion.steps(), 0);
  EXPECT_FALSE(lion.kept("up.weight", "exp_avg").defined());
}

TEST_F(SaveTest, APositionThatDoesNotFitIsRefused) {
  const DeviceScope host(cpu(0));
  const nn::Table table{ones({10, 2}), ones({10})};
  nn::Loader loader(table, {.batch = 2}), shorter({ones({4, 2}), ones({4})}, {.batch = 2});
  for (int i = 0; i < 4; ++i) (void)loader.next();
  nn::save(path(), {{"data", loader}});
  EXPECT_THAT(what_of([&] { nn::load(path(), {{"data", shorter}}); }), HasSubstr("a batch below 2"));
  EXPECT_EQ(shorter.position().at("batch"), 0);
  nn::Loader same(table, {.batch = 2});
  nn::load(path(), {{"data", same}});
  EXPECT_EQ(same.position(), loader.position());
}

}  // namespace
}  // namespace sluice
