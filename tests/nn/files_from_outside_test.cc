// Files of other programs: names, what is ignored, what is converted, and what is wrong in them, listed.
#include <sys/resource.h>

#include <fstream>

#include "outside_files.h"

namespace sluice {
namespace {

using test::Arrays;
using test::bits;
using test::Heads;
using test::joined;
using test::kFine;
using test::made_up;
using test::Model;
using test::model;
using test::separate;
using test::values;
using test::what_of;
using test::with_proj;
using ::testing::HasSubstr;
using ::testing::Not;

class FilesFromOutside : public test::OutsideFiles {};

TEST_F(FilesFromOutside, StarsStandForOnePartOfAName) {
  struct Block {
    nn::LayerNorm norm{2}, other{2};
    nn::Parameter scale{{2}, nn::constant(0)};
  };
  struct Net {
    std::map<std::string, Block> parts = [] {
      std::map<std::string, Block> map;
      map.emplace("a", Block{}), map.emplace("bc", Block{});
      return map;
    }();
  } net;
  Arrays file;
  for (const std::string part : {"a", "bc"}) {
    for (const std::string name : {"weight", "bias"}) {
      file.emplace("m.layer_" + part + ".output." + name, made_up({2}, file.size(), DType::f32));
      file.emplace("m.layer_" + part + ".inner.output." + name, made_up({2}, file.size(), DType::f32));
    }
    file.emplace("m.layer_" + part + ".gamma", made_up({2}, file.size(), DType::f32));
  }
  file.emplace("m.pooler.weight", made_up({3}, 1));
  file.emplace("m.ids", from(std::vector<std::int64_t>{1, 2}, {2}));
  // The first would take the names of the second if its star stood for dots too. Gamma is one less in this file.
  const nn::Rename gamma{"m.layer_*.gamma", "parts.*.scale", [](const std::vector<NDArray>& x) { return x[0] + 1; }};
  const nn::LoadOptions options{
      .rename = {{"m.layer_*.output.", "parts.*.norm."}, {"m.layer_*.inner.output.", "parts.*.other."}, gamma},
      .ignore = "*.pooler.*|m.ids|m.none"};
  EXPECT_EQ(load(net, file, options), kFine);
  EXPECT_EQ(bits(net.parts.at("bc").norm.weight), bits(file.at("m.layer_bc.output.weight")));
  EXPECT_EQ(bits(net.parts.at("a").other.bias), bits(file.at("m.layer_a.inner.output.bias")));
  EXPECT_EQ(bits(net.parts.at("a").scale), bits(file.at("m.layer_a.gamma") + 1));
  EXPECT_THAT(load(net, file, {.rename = options.rename}),
              AllOf(HasSubstr("'m.ids' (i64 (2,)) is not expected"),
                    HasSubstr("'m.pooler.weight' (f64 (3,)) is not expected"), Not(HasSubstr("layer_"))));
  EXPECT_THAT(what_of([] { (void)nn::Rename("a.*.b.*", "c.*"); }),
              HasSubstr("[nn::Rename] 'a.*.b.*' and 'c.*' differ in the number of their '*'"));
  EXPECT_THAT(what_of([] { (void)nn::Rename({"a", "b"}, "c", {}); }), HasSubstr("and a conversion"));
}

TEST_F(FilesFromOutside, AllThatIsWrongIsListedAndNothingChanged) {
  const Heads of{2, 4, 2};
  const Model net = model(of);
  nn::initialise(net, 1, {}, {.dtype = DType::f64});
  const std::string before = bits(net.blocks[0].attention.qkv.weight) + bits(net.blocks[0].attention.proj.weight);
  const nn::LoadOptions options{.rename = {joined(of), {"layer.*.out.", "blocks.*.attention.proj."}}};
  Arrays file = with_proj(separate(of), of);
  file.erase("layer.0.k.weight");
  file["layer.0.v.bias"] = made_up({3}, 1);
  file["layer.0.out.bias"] = made_up({7}, 1);
  file["blocks.0.attention.proj.weight"] = file["layer.0.out.weight"];
  file["layer.1.q.weight"] = file["layer.0.q.weight"];
  const std::string line = load(net, file, options);
  for (const char* part :
       {"no tensor 'layer.0.k.weight', wanted beside 'layer.0.q.weight', 'layer.0.v.weight' for "
        "'blocks.0.attention.qkv.weight'",
        "'layer.0.q.bias', 'layer.0.k.bias', 'layer.0.v.bias' for 'blocks.0.attention.qkv.bias': [nn::Qkv] f64 (8,), "
        "f64 (4,), f64 (3,): do not fit 4 heads and 2 of keys and values",
        "'layer.0.out.bias' is f64 (7,), wanted f64 (8,)", "'layer.1.q.weight' (f64 (8, 8)) is not expected",
        "'blocks.0.attention.proj.weight' and 'layer.0.out.weight' would both become "
        "'blocks.0.attention.proj.weight'"}) {
    EXPECT_THAT(line, HasSubstr(part));
  }
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  EXPECT_EQ(bits(net.blocks[0].attention.qkv.weight) + bits(net.blocks[0].attention.proj.weight), before);
  // Parts that are not wanted may be wrong.
  nn::LoadOptions part = options;
  part.only = "*.proj.weight";
  file.erase("blocks.0.attention.proj.weight");
  EXPECT_EQ(load(net, file, part), kFine);
  EXPECT_EQ(bits(net.blocks[0].attention.proj.weight), bits(file.at("layer.0.out.weight")));
  // Shapes and dtypes that a conversion cannot take.
  const auto whole = with_proj(separate(of), of);
  const auto with = [&](const std::string& name, const NDArray& array) {
    Arrays changed = whole;
    changed[name] = array;
    return load(net, changed, options);
  };
  EXPECT_THAT(with("layer.0.k.weight", made_up({4, 7}, 1)), HasSubstr("[nn::Qkv] f64 (8, 8), f64 (4, 7), f64 (4, 8)"));
  EXPECT_THAT(with("layer.0.k.weight", made_up({4, 8}, 1, DType::f32)),
              HasSubstr("f32 (4, 8), f64 (4, 8): do not fit"));
  EXPECT_THAT(with("layer.0.k.weight", made_up({4, 8, 1}, 1)), HasSubstr("f64 (4, 8, 1)"));
  EXPECT_THAT(with("layer.0.q.weight", made_up({6, 8}, 1)),
              HasSubstr("f64 (6, 8), f64 (4, 8), f64 (4, 8): do not fit"));
  nn::LoadOptions heads = options;
  heads.rename[0].convert = nn::Qkv{.heads = 8, .kv_heads = 8};  // divides all that is there, into other heads
  EXPECT_THAT(load(net, whole, heads), HasSubstr("do not fit 8 heads and 8"));
  heads.rename[0].convert = nn::Qkv{.heads = 4, .kv_heads = 3};
  EXPECT_THAT(load(net, whole, heads), HasSubstr("do not fit 4 heads and 3"));
  EXPECT_THAT(
      load(net, whole,
           {.rename = {{{"layer.*.q.", "layer.*.k.", "layer.*.v."}, "blocks.*.attention.qkv.", nn::Transposed{}}}}),
      HasSubstr("[nn::Transposed] f64 (8,), f64 (4,), f64 (4,): one matrix or vector is wanted"));
}

TEST_F(FilesFromOutside, TensorsOfDtypesThatThereAreNot) {
  struct Net {
    nn::Parameter a{{2}, nn::constant(0)};
  } net;
  const std::string header =
      R"({"x":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"F8_E4M3","shape":[2],)"
      R"("data_offsets":[2,4]}})";
  std::ofstream out(path(), std::ios::binary);
  const std::uint64_t n = header.size();
  out.write(reinterpret_cast<const char*>(&n), 8) << header << "abcd";
  out.close();
  const auto said = [&](const nn::LoadOptions& options) {
    return what_of([&] { nn::load(path(), {{"", net}}, options); });
  };
  const auto first = [](const std::vector<NDArray>& x) { return x[0]; };
  EXPECT_THAT(said({.rename = {{{"x", "y"}, "a", first}}}),
              AllOf(HasSubstr("'x' is of a dtype F8_E4M3 that Sluice lacks"),
                    HasSubstr("'y' is of a dtype F8_E4M3 that Sluice lacks")));
  EXPECT_THAT(said({.rename = {{"x", "a"}}}), HasSubstr("'y' (F8_E4M3) is not expected"));
  EXPECT_THAT(said({.rename = {{"x", "a"}}, .ignore = "y"}), Not(HasSubstr("not expected")));
}

TEST_F(FilesFromOutside, WhatIsTiedMayBeConverted) {
  struct Net {
    nn::Embedding token{5, 3};
    nn::Linear head{.in = 3, .out = 5, .use_bias = false, .weight = token.weight.tied()};
  };
  const NDArray x = made_up({5, 3}, 1, DType::f32), y = x.swapaxes(0, 1).contiguous();
  const nn::LoadOptions options{.rename = {{"wte", "token.weight"}, {"lm", "head.weight", nn::Transposed{}}}};
  const Net net, other;
  EXPECT_EQ(load(net, {{"wte", x}, {"lm", y}}, options), kFine);
  EXPECT_EQ(bits(net.token.weight), bits(x));
  EXPECT_EQ(load(other, {{"lm", y}}, options), kFine);
  EXPECT_EQ(bits(other.head.weight), bits(x));
  EXPECT_THAT(load(other, {{"wte", x}, {"lm", y + 1}}, options),
              HasSubstr("'wte' and 'lm' differ, and are one parameter of the net"));
}

/// A file of 4 GiB, nearly all of it a hole, of which a few bytes are wanted.
TEST_F(FilesFromOutside, OnlyWhatIsWantedIsRead) {
  struct Net {
    nn::Parameter last{{4}, nn::constant(0)};
  } net;
  constexpr std::uint64_t kHole = std::uint64_t{4} << 30;
  const std::string header = R"({"hole":{"dtype":"F32","shape":[)" + std::to_string(kHole / 4) +
                             R"(],"data_offsets":[0,)" + std::to_string(kHole) +
                             R"(]},"last":{"dtype":"F32","shape":[4],"data_offsets":[)" + std::to_string(kHole) + "," +
                             std::to_string(kHole + 16) + "]}}";
  const std::uint64_t n = header.size();
  const float numbers[4] = {1, 2, 3, 4};
  std::ofstream out(path(), std::ios::binary);
  out.write(reinterpret_cast<const char*>(&n), 8) << header;
  out.seekp(static_cast<std::streamoff>(8 + n + kHole));
  out.write(reinterpret_cast<const char*>(numbers), sizeof numbers);
  out.close();
  const auto most = [] {
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    return used.ru_maxrss;  // KiB
  };
  const long before = most();
  for (const auto& options : {nn::LoadOptions{.ignore = "hole"}, nn::LoadOptions{.only = "last"}}) {
    nn::load(path(), {{"", net}}, options);
    EXPECT_EQ(values(net.last), (std::vector<double>{1, 2, 3, 4}));
  }
  EXPECT_LT(most() - before, 256 << 10);
}

}  // namespace
}  // namespace sluice
