// A made-up BERT under the names of all-MiniLM-L6-v2's file, loaded as the example does, beside a forward pass in plain
// loops. tests/minilm.sh has the real one beside transformers.
#include <functional>

#include "../../examples/minilm.h"
#include "nn_support.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice {
namespace {

using test::made_up;
using Matrix = std::vector<std::vector<double>>;
using Arrays = std::map<std::string, NDArray>;

struct Sizes {
  std::int64_t layers, heads, width, inner, vocabulary = 11, positions = 9;
};

Arrays file_of(const Sizes& s) {
  Arrays file;
  std::uint64_t seed = 1;
  const auto put = [&](const std::string& name, const Dims& shape) { file[name] = made_up(shape, seed++); };
  const auto both = [&](const std::string& name, std::int64_t out, std::int64_t in) {
    put(name + ".weight", {out, in}), put(name + ".bias", {out});
  };
  const auto norm = [&](const std::string& name) { put(name + ".weight", {s.width}), put(name + ".bias", {s.width}); };
  put("embeddings.word_embeddings.weight", {s.vocabulary, s.width});
  put("embeddings.position_embeddings.weight", {s.positions, s.width});
  put("embeddings.token_type_embeddings.weight", {2, s.width});
  norm("embeddings.LayerNorm");
  file["embeddings.position_ids"] = arange(s.positions).unsqueeze(0);
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string layer = "encoder.layer." + std::to_string(i) + ".";
    for (const char* which : {"query", "key", "value"}) both(layer + "attention.self." + which, s.width, s.width);
    both(layer + "attention.output.dense", s.width, s.width);
    norm(layer + "attention.output.LayerNorm");
    both(layer + "intermediate.dense", s.inner, s.width);
    both(layer + "output.dense", s.width, s.inner);
    norm(layer + "output.LayerNorm");
  }
  both("pooler.dense", s.width, s.width);
  return file;
}

/// The vector of one sentence, without padding.
class Plain {
 public:
  Plain(const Arrays& file, const Sizes& sizes) : sizes_(sizes) {
    for (const auto& [name, array] : file) {
      if (array.dtype() == DType::f64) arrays_[name] = array.to_vector<double>();
    }
  }
  std::vector<double> operator()(const std::vector<std::int64_t>& ids) const {
    const auto width = static_cast<std::size_t>(sizes_.width);
    Matrix x(ids.size(), std::vector<double>(width));
    for (std::size_t t = 0; t < ids.size(); ++t) {
      for (std::size_t i = 0; i < width; ++i) {
        x[t][i] = arrays_.at("embeddings.word_embeddings.weight")[static_cast<std::size_t>(ids[t]) * width + i] +
                  arrays_.at("embeddings.position_embeddings.weight")[t * width + i] +
                  arrays_.at("embeddings.token_type_embeddings.weight")[i];
      }
    }
    x = norm("embeddings.LayerNorm", x);
    for (std::int64_t i = 0; i < sizes_.layers; ++i) {
      const std::string layer = "encoder.layer." + std::to_string(i) + ".";
      x = norm(layer + "attention.output.LayerNorm", plus(x, attention(layer, x)));
      Matrix h = linear(layer + "intermediate.dense", x);
      for (auto& row : h) {
        for (double& value : row) value *= 0.5 * (1 + std::erf(value / std::sqrt(2.0)));
      }
      x = norm(layer + "output.LayerNorm", plus(x, linear(layer + "output.dense", h)));
    }
    std::vector<double> mean(width);
    double squares = 0;
    for (std::size_t i = 0; i < width; ++i) {
      for (const auto& row : x) mean[i] += row[i] / static_cast<double>(x.size());
      squares += mean[i] * mean[i];
    }
    for (double& value : mean) value /= std::sqrt(squares);
    return mean;
  }

 private:
  static Matrix plus(Matrix a, const Matrix& b) {
    for (std::size_t t = 0; t < a.size(); ++t) {
      for (std::size_t i = 0; i < a[t].size(); ++i) a[t][i] += b[t][i];
    }
    return a;
  }
  Matrix linear(const std::string& name, const Matrix& x) const {
    const std::vector<double>&w = arrays_.at(name + ".weight"), &b = arrays_.at(name + ".bias");
    Matrix y;
    for (const auto& row : x) {
      y.push_back(b);
      for (std::size_t j = 0; j < b.size(); ++j) {
        for (std::size_t i = 0; i < row.size(); ++i) y.back()[j] += w[j * row.size() + i] * row[i];
      }
    }
    return y;
  }
  Matrix norm(const std::string& name, Matrix x) const {
    for (auto& row : x) {
      const auto n = static_cast<double>(row.size());
      double mean = 0, variance = 0;
      for (const double value : row) mean += value / n;
      for (const double value : row) variance += (value - mean) * (value - mean) / n;
      for (std::size_t i = 0; i < row.size(); ++i) {
        row[i] = (row[i] - mean) / std::sqrt(variance + 1e-12) * arrays_.at(name + ".weight")[i] +
                 arrays_.at(name + ".bias")[i];
      }
    }
    return x;
  }
  Matrix attention(const std::string& layer, const Matrix& x) const {
    const std::string self = layer + "attention.self.";
    const Matrix q = linear(self + "query", x), k = linear(self + "key", x), v = linear(self + "value", x);
    const auto size = static_cast<std::size_t>(sizes_.width / sizes_.heads);
    Matrix seen(x.size(), std::vector<double>(x[0].size()));
    for (std::size_t head = 0; head < static_cast<std::size_t>(sizes_.heads); ++head) {
      for (std::size_t t = 0; t < x.size(); ++t) {
        std::vector<double> weights;
        double all = 0;
        for (std::size_t u = 0; u < x.size(); ++u) {
          double score = 0;
          for (std::size_t i = head * size; i < (head + 1) * size; ++i) score += q[t][i] * k[u][i];
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(size))));
          all += weights.back();
        }
        for (std::size_t u = 0; u < x.size(); ++u) {
          for (std::size_t i = head * size; i < (head + 1) * size; ++i) seen[t][i] += weights[u] / all * v[u][i];
        }
      }
    }
    return linear(layer + "attention.output.dense", seen);
  }

  Sizes sizes_;
  std::map<std::string, std::vector<double>> arrays_;
};

TEST(MiniLmNames, TheVectorsAreThoseOfPlainLoops) {
  const test::TestEngine engine;
  const test::TemporaryDirectory folder;
  const std::string path = folder / "minilm.safetensors";
  // No sentence, one token, no padding, and padding of each length; 0 is behind the end.
  const std::vector<std::vector<std::int64_t>> sentences{{3}, {1, 2, 3, 4, 5}, {9, 8}, {10, 1, 1, 7}};
  std::vector<std::int64_t> ids;
  for (const auto& sentence : sentences) {
    for (std::size_t t = 0; t < 5; ++t) ids.push_back(t < sentence.size() ? sentence[t] : 0);
  }
  for (const Sizes& s : {Sizes{2, 3, 12, 20}, Sizes{1, 5, 10, 8}, Sizes{3, 8, 16, 16}}) {
    const Arrays file = file_of(s);
    save_arrays(path, file);
    const MiniLm net{.vocabulary = s.vocabulary,
                     .positions = s.positions,
                     .layers = s.layers,
                     .heads = s.heads,
                     .width = s.width,
                     .inner = s.inner};
    nn::initialise(net, 1, {}, {.dtype = DType::f64});
    load_minilm(path, net);
    const nn::Evaluation off;
    const std::vector<double> vectors = net(from(ids, {4, 5})).to_vector<double>();
    const Plain plain(file, s);
    std::vector<double> expected;
    for (const auto& sentence : sentences) {
      const std::vector<double> one = plain(sentence);
      expected.insert(expected.end(), one.begin(), one.end());
    }
    test::expect_close(vectors, expected, 1e-11);
    EXPECT_EQ(net(empty({0, 5}, DType::i64)).shape(), (Dims{0, s.width}));
  }
}

}  // namespace
}  // namespace sluice
