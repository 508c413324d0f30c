// Queries, keys and values of other programs' files, in any number of heads: separate, behind each other, the other way
// round, in 16 bits and in several files.
#include <fstream>

#include "outside_files.h"

namespace sluice {
namespace {

using test::Arrays;
using test::bits;
using test::Heads;
using test::joined;
using test::kFine;
using test::kHeads;
using test::made_up;
using test::Model;
using test::model;
using test::separate;
using test::values;
using test::what_of;
using test::with_proj;
using ::testing::HasSubstr;

class FilesQkv : public test::OutsideFiles {};

/// SelfAttention::qkv has these rows, in the order that attention.h says; one by one.
void expect_rows(const nn::Linear& qkv, const Arrays& file, const Heads& of, const std::string& from = "layer.0.") {
  const std::int64_t queries = of.heads / of.kv_heads, width = of.width();
  const std::vector<double> weight = values(qkv.weight), bias = values(*qkv.bias);
  std::size_t row = 0;
  for (std::int64_t group = 0; group < of.kv_heads; ++group) {
    for (std::int64_t part = 0; part < queries + 2; ++part) {
      const std::string which = part < queries ? "q" : part == queries ? "k" : "v";
      const std::vector<double> w = values(file.at(from + which + ".weight")),
                                b = values(file.at(from + which + ".bias"));
      const std::int64_t head = part < queries ? group * queries + part : group;
      for (std::int64_t i = 0; i < of.size; ++i, ++row) {
        const auto there = static_cast<std::size_t>(head * of.size + i), n = static_cast<std::size_t>(width);
        ASSERT_EQ(bias[row], b[there]) << "row " << row;
        for (std::size_t k = 0; k < n; ++k) ASSERT_EQ(weight[row * n + k], w[there * n + k]) << row << ", " << k;
      }
    }
  }
  EXPECT_EQ(row, bias.size());
}

TEST_F(FilesQkv, QueriesKeysAndValuesOfAnyHeads) {
  const nn::Rename proj{"layer.*.out.", "blocks.*.attention.proj."};
  for (const Heads& of : kHeads) {
    const Arrays file = with_proj(separate(of), of);
    // Separate.
    const Model one = model(of);
    EXPECT_EQ(load(one, file, {.rename = {joined(of), proj}}), kFine);
    expect_rows(one.blocks[0].attention.qkv, file, of);
    EXPECT_EQ(one.blocks[0].attention.qkv.weight.path(), "blocks.0.attention.qkv.weight");
    EXPECT_TRUE(one.blocks[0].attention.qkv.weight.value().is_contiguous());
    EXPECT_TRUE(one.blocks[0].attention.qkv.weight.value().requires_grad());
    // Behind each other, as PyTorch's in_proj; into a net that has values.
    const auto behind = [&](const std::string& name) {
      return concat({file.at("layer.0.q." + name), file.at("layer.0.k." + name), file.at("layer.0.v." + name)});
    };
    const Arrays in_proj{{"layer.0.in_proj_weight", behind("weight")},
                         {"layer.0.in_proj_bias", behind("bias")},
                         {"layer.0.out.weight", file.at("layer.0.out.weight")},
                         {"layer.0.out.bias", file.at("layer.0.out.bias")}};
    const Model two = model(of);
    nn::initialise(two, 1, {}, {.dtype = DType::f64});
    EXPECT_EQ(load(two, in_proj,
                   {.rename = {{"layer.*.in_proj_", "blocks.*.attention.qkv.",
                                nn::Qkv{.heads = of.heads, .kv_heads = of.kv_heads}},
                               proj}}),
              kFine);
    expect_rows(two.blocks[0].attention.qkv, file, of);
    // The other way round, as GPT-2's Conv1D, onto another device.
    const Arrays conv1d{{"h.0.c_attn.weight", behind("weight").swapaxes(0, 1).contiguous()},
                        {"h.0.c_attn.bias", behind("bias")},
                        {"h.0.c_proj.weight", file.at("layer.0.out.weight").swapaxes(0, 1).contiguous()},
                        {"h.0.c_proj.bias", file.at("layer.0.out.bias")}};
    const Model three = model(of);
    {
      const DeviceScope scope(test::device(1));
      EXPECT_EQ(load(three, conv1d,
                     {.rename = {{"h.*.c_attn.", "blocks.*.attention.qkv.",
                                  nn::Qkv{.heads = of.heads, .kv_heads = of.kv_heads, .transposed = true}},
                                 {"h.*.c_proj.", "blocks.*.attention.proj.", nn::Transposed{}}}}),
                kFine);
    }
    EXPECT_EQ(three.blocks[0].attention.qkv.weight.value().device(), test::device(1));
    expect_rows(three.blocks[0].attention.qkv, file, of);
    EXPECT_EQ(bits(three.blocks[0].attention.proj.weight), bits(file.at("layer.0.out.weight")));
    EXPECT_TRUE(three.blocks[0].attention.proj.weight.value().is_contiguous());
    // As it was saved by Sluice it comes back without any of it.
    const Model four = model(of);
    nn::save(path("own"), {{"net", one}});
    nn::load(path("own"), {{"net", four}});
    EXPECT_EQ(bits(four.blocks[0].attention.qkv.weight), bits(one.blocks[0].attention.qkv.weight));
  }
}

TEST_F(FilesQkv, TheLayerComputesWhatTheFilesRowsMean) {
  for (const Heads& of : kHeads) {
    const Arrays file = with_proj(separate(of), of);
    const Model net = model(of);
    EXPECT_EQ(load(net, file, {.rename = {joined(of), {"layer.*.out.", "blocks.*.attention.proj."}}}), kFine);
    const std::int64_t n = 4, width = of.width();
    const NDArray x = made_up({1, n, width}, 20);
    const auto affine = [&](const std::string& name, const std::vector<double>& in) {
      const std::vector<double> w = values(file.at("layer.0." + name + ".weight")),
                                b = values(file.at("layer.0." + name + ".bias"));
      std::vector<double> out;
      const auto k = static_cast<std::size_t>(width);
      for (std::size_t row = 0; row < static_cast<std::size_t>(n); ++row) {
        for (std::size_t j = 0; j < b.size(); ++j) {
          out.push_back(b[j]);
          for (std::size_t i = 0; i < k; ++i) out.back() += w[j * k + i] * in[row * k + i];
        }
      }
      return out;
    };
    const std::vector<double> q = affine("q", values(x)), k = affine("k", values(x)), v = affine("v", values(x));
    std::vector<double> seen(static_cast<std::size_t>(n * width));
    for (std::int64_t head = 0; head < of.heads; ++head) {
      const std::int64_t group = head / (of.heads / of.kv_heads), columns = of.kv_heads * of.size;
      const auto key = [&](std::int64_t at, std::int64_t e) {
        return static_cast<std::size_t>(at * columns + group * of.size + e);
      };
      for (std::int64_t i = 0; i < n; ++i) {
        std::vector<double> weights;
        double all = 0;
        for (std::int64_t j = 0; j < n; ++j) {
          double score = 0;
          for (std::int64_t e = 0; e < of.size; ++e)
            score += q[static_cast<std::size_t>(i * width + head * of.size + e)] * k[key(j, e)];
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(of.size))));
          all += weights.back();
        }
        for (std::int64_t j = 0; j < n; ++j) {
          for (std::int64_t e = 0; e < of.size; ++e)
            seen[static_cast<std::size_t>(i * width + head * of.size + e)] +=
                weights[static_cast<std::size_t>(j)] / all * v[key(j, e)];
        }
      }
    }
    test::expect_close(values(net.blocks[0].attention(x)), affine("out", seen), 1e-12);
  }
}

TEST_F(FilesQkv, KeysAndValuesOfCrossAttention) {
  struct Cross {
    nn::CrossAttention attention{.width = 8, .heads = 4, .context = 6, .kv_heads = 2};
  };
  const Arrays file{{"q.weight", made_up({8, 8}, 1)},   {"q.bias", made_up({8}, 2)},
                    {"k.weight", made_up({4, 6}, 3)},   {"k.bias", made_up({4}, 4)},
                    {"v.weight", made_up({4, 6}, 5)},   {"v.bias", made_up({4}, 6)},
                    {"out.weight", made_up({8, 8}, 7)}, {"out.bias", made_up({8}, 8)}};
  const Cross net;
  EXPECT_EQ(load(net, file,
                 {.rename = {{{"k.", "v."}, "attention.kv.", nn::Qkv{.heads = 4, .kv_heads = 2}},
                             {"q.", "attention.q."},
                             {"out.", "attention.proj."}}}),
            kFine);
  const std::vector<double> kv = values(*net.attention.kv.bias), k = values(file.at("k.bias")),
                            v = values(file.at("v.bias"));
  EXPECT_EQ(kv, (std::vector<double>{k[0], k[1], v[0], v[1], k[2], k[3], v[2], v[3]}));
}

TEST_F(FilesQkv, SixteenBitsInSeveralFilesByCast) {
  const Heads of{2, 8, 2};
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Arrays file = with_proj(separate(of, "layer.0.", dtype), of, dtype);
    Arrays one, two;
    std::string index;
    for (const auto& [name, array] : file) {
      const bool first = name.find(".q.") != name.npos;  // keys and values are in another file
      (first ? one : two).emplace(name, array);
      index += (index.empty() ? "" : ", ") + ("\"" + name + "\": \"" + (first ? "one" : "two") + ".safetensors\"");
    }
    save_arrays(path("one.safetensors"), one);
    save_arrays(path("two.safetensors"), two);
    std::ofstream(path("model.safetensors.index.json")) << "{\"weight_map\": {" << index << "}}";
    const nn::LoadOptions options{.rename = {joined(of), {"layer.*.out.", "blocks.*.attention.proj."}}};
    nn::LoadOptions cast = options;
    cast.cast = true;
    const Model net = model(of), kept = model(of), refused = model(of);
    nn::load(path("model.safetensors.index.json"), {{"", net}}, cast);
    EXPECT_EQ(net.blocks[0].attention.qkv.weight.value().dtype(), DType::f32);
    expect_rows(net.blocks[0].attention.qkv, file, of);
    nn::load(path("model.safetensors.index.json"), {{"", kept}}, options);
    EXPECT_EQ(kept.blocks[0].attention.qkv.weight.value().dtype(), dtype) << "a net without values takes the file's";
    nn::initialise(refused, 1);
    EXPECT_THAT(what_of([&] {
                  nn::load(path("model.safetensors.index.json"), {{"", refused}}, options);
                }),
                HasSubstr("'layer.0.q.bias', 'layer.0.k.bias', 'layer.0.v.bias' gives " + std::string(name_of(dtype)) +
                          " (24,), wanted f32 (24,) for 'blocks.0.attention.qkv.bias'"));
  }
}

}  // namespace
}  // namespace sluice
