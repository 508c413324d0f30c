// A small GPT for the tests of nets on a mesh.
#pragma once

#include "nn_support.h"

namespace sluice::test {

struct GptBlock {
  nn::Size width, heads;
  double p;
  nn::LayerNorm norm1{width}, norm2{width};
  nn::SelfAttention attention{width, heads, p};
  nn::Linear up{width, 4 * width}, down{4 * width, width};
  nn::Dropout drop{p};
  NDArray operator()(NDArray x) const {
    x = x + attention(norm1(x), {.causal = true});
    return x + drop(down(gelu(up(norm2(x)))));
  }
};

/// The text of a program for one device: whole sizes, no mesh.
struct Gpt {
  std::int64_t vocabulary = 53, context = 7, layers = 2, heads = 6, width = 18;
  double p = 0.2;
  nn::Embedding token{vocabulary, width}, position{context, width};
  nn::Dropout drop{p};
  std::vector<GptBlock> blocks = nn::repeat(layers, GptBlock{width, heads, p});
  nn::LayerNorm norm{width};
  NDArray operator()(const NDArray& tokens) const {
    NDArray x = drop(token(tokens) + position(arange(tokens.size(-1))));
    for (const GptBlock& block : blocks) x = block(x);
    return token.logits(norm(x));
  }
  NDArray loss(const NDArray& x, const NDArray& y) const {
    return cross_entropy((*this)(x).reshape({-1, vocabulary}), y.flatten());
  }
};

/// Megatron's layouts: heads and hidden units are cut. `between` blocks activations are replicated over tp, or cut by
/// positions.
inline std::vector<nn::AxisLayouts> megatron(const Gpt& net, Placement between) {
  const int rows = static_cast<int>(3 * net.width / net.heads), size = static_cast<int>(net.width / net.heads);
  const auto entered = between == replicate ? std::optional<Placement>() : replicate;
  return {{"tp",
           {{"*.qkv", {.weight = shard(0).by(rows), .bias = shard(0).by(rows), .in = entered}},
            {"*.proj", {.weight = shard(1).by(size), .out = between}},
            {"*.up", {.weight = shard(0), .bias = shard(0), .in = entered}},
            {"*.down", {.weight = shard(1), .out = between}},
            {"token", {.out = between}},
            {"position", {.out = between == replicate ? replicate : shard(0)}},
            {"norm", {.out = replicate}}}}};
}

inline nn::Optimizer adam(const Gpt& net, nn::OptimizerOptions options = {}) {
  return {net,
          nn::AdamW{.lr = 1e-2, .weight_decay = 0.1},
          {{[](const nn::Named& p) { return !nn::matrices(p); }, [](nn::AdamW& r) { r.weight_decay = 0; }}},
          options};
}

inline NDArray tokens(std::int64_t rows, std::int64_t length, std::uint64_t seed, std::int64_t n) {
  RandomStream stream(seed);
  return randint({rows, length}, stream, 0, n);
}

/// The largest difference of parameters, relative to the largest element of each.
template <class Net>
double apart(const Net& a, const Net& b) {
  double far = 0;
  const auto x = nn::contents(a).slots, y = nn::contents(b).slots;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const NDArray one = gathered(x[i].state->value).to(DType::f64), other = gathered(y[i].state->value).to(DType::f64);
    const NoGrad off;
    const double scale = max(abs(other)).item<double>();
    far = std::max(far, max(abs(one - other)).item<double>() / std::max(scale, 1e-3));
  }
  return far;
}

}  // namespace sluice::test
