// What the tests of other programs' files share: a folder, layers of several heads, and their tensors.
#pragma once

#include <gmock/gmock.h>

#include <filesystem>
#include <map>

#include "nn_support.h"
#include "sluice/nn/files/save.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice::test {

using Arrays = std::map<std::string, NDArray>;

class OutsideFiles : public ::testing::Test {
 protected:
  std::filesystem::path path(const std::string& name = "model.safetensors") const { return folder_ / name; }
  /// What loading a file of these arrays says.
  template <class Net>
  std::string load(const Net& net, const Arrays& file, const nn::LoadOptions& options) const {
    save_arrays(path(), file);
    return what_of([&] { nn::load(path(), {{"", net}}, options); });
  }
  TestEngine engine_{{.threads = 2, .logical_cpus = 2}};
  TemporaryDirectory folder_;
};
inline constexpr const char* kFine = "nothing was thrown";

inline std::vector<double> values(const NDArray& x) { return x.to(DType::f64).to_vector<double>(); }

struct Heads {
  std::int64_t size, heads, kv_heads;
  std::int64_t width() const { return size * heads; }
};
inline constexpr Heads kHeads[] = {{3, 8, 8}, {2, 8, 2}, {3, 5, 5}, {4, 5, 1}, {3, 1, 1}};

/// Queries, keys and values, weight and bias, of a layer of these heads.
inline Arrays separate(const Heads& of, const std::string& to = "layer.0.", DType dtype = DType::f64) {
  Arrays arrays;
  std::uint64_t seed = 1;
  for (const char* which : {"q", "k", "v"}) {
    const std::int64_t rows = (*which == 'q' ? of.heads : of.kv_heads) * of.size;
    arrays.emplace(to + which + ".weight", made_up({rows, of.width()}, seed++, dtype));
    arrays.emplace(to + which + ".bias", made_up({rows}, seed++, dtype));
  }
  return arrays;
}

struct Layer {
  nn::SelfAttention attention;
};
struct Model {
  std::vector<Layer> blocks;
};
inline Model model(const Heads& of) {
  Model net;
  net.blocks.push_back({nn::SelfAttention{.width = of.width(), .heads = of.heads, .kv_heads = of.kv_heads}});
  return net;
}
inline nn::Rename joined(const Heads& of) {
  return {{"layer.*.q.", "layer.*.k.", "layer.*.v."},
          "blocks.*.attention.qkv.",
          nn::Qkv{.heads = of.heads, .kv_heads = of.kv_heads}};
}
inline Arrays with_proj(Arrays arrays, const Heads& of, DType dtype = DType::f64) {
  arrays.emplace("layer.0.out.weight", made_up({of.width(), of.width()}, 8, dtype));
  arrays.emplace("layer.0.out.bias", made_up({of.width()}, 9, dtype));
  return arrays;
}

}  // namespace sluice::test
