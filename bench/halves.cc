// What backward in two halves costs: (F + I + W) / (F + B) for the quickstart's network and for a transformer block.
//   bench_halves [ROUNDS] [IMAGES] [SEQUENCES]
// F is forward, B a whole backward, I and W are its halves. Each round runs both sides, so that they share what the
// machine does meanwhile; within a round each part is waited for, so that it can be timed. It prints medians, and the
// bytes that wait between F and I and between I and W.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>

#include "quickstart.h"

namespace {

using namespace sluice;

struct Network {
  const char* name;
  NDArray input;  ///< a leaf, as the input of a stage that is not the first
  std::function<NDArray(const NDArray& x)> forward;
};

struct Times {
  double forward = 0, whole = 0, inputs = 0, weights = 0;
  std::size_t bytes_to_inputs = 0, bytes_to_weights = 0;
};

/// Seconds until what f pushes is done.
template <class F>
double seconds(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  default_engine().wait_all();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Times round_of(const Network& network, const NDArray& gradient) {
  Times t;
  NDArray y;
  t.forward = seconds([&] { y = network.forward(network.input); });
  t.whole = seconds([&] { backward({y}, {gradient}); });
  y = NDArray();
  t.forward += seconds([&] { y = network.forward(network.input); });
  t.forward /= 2;
  t.bytes_to_inputs = kept_bytes({y}, {network.input});
  WeightGradients later;
  t.inputs = seconds([&] { later = backward_inputs({y}, {gradient}, {network.input}); });
  y = NDArray();
  t.bytes_to_weights = later.bytes();
  t.weights = seconds([&] { later.run(); });
  return t;
}

Network quickstart(std::int64_t images) {
  const auto net = std::make_shared<nn::Sequential>(bench::quickstart_net());
  return {"quickstart", bench::quickstart_batch(images, 1).first.with_grad(),
          [net](const NDArray& x) { return (*net)(x); }};
}

/// Before the attention and the two dense layers a norm, and a sum around each; 4 heads, 64 tokens of 128 numbers.
Network transformer_block(std::int64_t sequences) {
  constexpr std::int64_t kTokens = 64, kWidth = 128, kHeads = 4;
  RandomStream random(2, 1);
  const auto weight = [&](std::int64_t out, std::int64_t in) {
    return (normal({out, in}, random) * 0.05).detach().with_grad();
  };
  const NDArray q = weight(kWidth, kWidth), k = weight(kWidth, kWidth), v = weight(kWidth, kWidth),
                out = weight(kWidth, kWidth), up = weight(4 * kWidth, kWidth), down = weight(kWidth, 4 * kWidth),
                up_bias = zeros({4 * kWidth}).with_grad(), down_bias = zeros({kWidth}).with_grad(),
                scale = ones({kWidth}).with_grad(), shift = zeros({kWidth}).with_grad(),
                scale2 = ones({kWidth}).with_grad(), shift2 = zeros({kWidth}).with_grad();
  const auto heads = [=](const NDArray& x) {
    return x.reshape({sequences, kTokens, kHeads, kWidth / kHeads}).permute({0, 2, 1, 3});
  };
  return {
      "transformer block", normal({sequences * kTokens, kWidth}, random).detach().with_grad(), [=](const NDArray& x) {
        const NDArray h = layer_norm(x, scale, shift);
        const NDArray a = attention(heads(linear(h, q)), heads(linear(h, k)), heads(linear(h, v)), {.causal = true});
        const NDArray y = x + linear(a.permute({0, 2, 1, 3}).reshape(x.shape()), out);
        return y + linear(gelu(linear(layer_norm(y, scale2, shift2), up, up_bias)), down, down_bias);
      }};
}

template <class F>
double median(const std::vector<Times>& rounds, F&& f) {
  std::vector<double> list;
  for (const Times& t : rounds) list.push_back(f(t));
  std::sort(list.begin(), list.end());
  return list[list.size() / 2];
}

void measure(const Network& network, std::size_t rounds) {
  const NDArray y = network.forward(network.input), gradient = ones(y.shape());
  round_of(network, gradient);  // makes the gradients, and fills caches
  std::vector<Times> all;
  for (std::size_t i = 0; i < rounds; ++i) all.push_back(round_of(network, gradient));
  const auto ratio = [](const Times& t) { return (t.forward + t.inputs + t.weights) / (t.forward + t.whole); };
  const auto ms = [&](double Times::*part) { return median(all, [&](const Times& t) { return t.*part * 1e3; }); };
  std::cout << network.name << ": (F + I + W) / (F + B) " << median(all, ratio) << "; in ms F " << ms(&Times::forward)
            << ", B " << ms(&Times::whole) << ", I " << ms(&Times::inputs) << ", W " << ms(&Times::weights)
            << "; kept F to I " << all[0].bytes_to_inputs / 1024 << " KiB, I to W " << all[0].bytes_to_weights / 1024
            << " KiB (" << rounds << " rounds)\n";
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, std::int64_t other) { return argc > i ? std::atoll(argv[i]) : other; };
  const auto rounds = static_cast<std::size_t>(std::max<std::int64_t>(1, argument(1, 21)));
  measure(quickstart(argument(2, 128)), rounds);
  measure(transformer_block(argument(3, 16)), rounds);
}
