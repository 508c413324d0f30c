// What two things of nets cost beside their work: batches whose maps are slow, and tokens that are written one by one.
//   bench_nets_costs [TOKENS]
// The maps: each sample sleeps 5 ms, in batches of 64 that two threads make, while a step takes as long as its batch on
// those two threads. It prints how long steps waited for their batches. The tokens: a GPT with a cache of keys and
// values, which begins anew behind 64 tokens, as in example char_gpt, or never; it prints the seconds of each quarter.
// They should be the same but for attention over what came before.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "sluice/sluice.h"

namespace {

using namespace sluice;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void slow_maps() {
  constexpr int kBatch = 64, kSteps = 30;
  constexpr auto kSample = std::chrono::milliseconds(5);
  Engine engine({.threads = 4, .logical_cpus = 2});
  set_default_engine(&engine);
  {
    const nn::Table table{zeros({kBatch * kSteps, 8}, DType::f32), zeros({kBatch * kSteps}, DType::i64)};
    nn::Loader loader(table, {.batch = kBatch,
                              .prefetch = 2,
                              .x = nn::Map([&](const TensorView& in, const TensorView& out, const RandomKey&) {
                                std::this_thread::sleep_for(kSample);
                                std::copy_n(in.as<float>(), 8, out.as<float>());
                              }),
                              .workers = cpu(1)});
    double waited = 0, first = 0;
    const auto begin = Clock::now();
    for (int step = 0; step < kSteps; ++step) {
      const auto start = Clock::now();
      loader.next().x.wait();
      (step == 0 ? first : waited) += since(start);
      std::this_thread::sleep_for(kSample * kBatch / 2);  // as on a device beside the host
    }
    const double maps = 5e-3 * kBatch;
    std::printf(
        "maps of 5 ms, batch %d, 2 threads: the first batch %.0f ms; then a step waits %.1f ms, %.1f %% of the "
        "%.0f ms that its maps take; all %d steps %.2f s\n",
        kBatch, 1e3 * first, 1e3 * waited / (kSteps - 1), 100 * waited / (kSteps - 1) / maps, 1e3 * maps, kSteps,
        since(begin));
  }
  engine.wait_all();
  set_default_engine(nullptr);
}

struct Block {
  nn::Size width, heads;
  nn::LayerNorm norm1{width}, norm2{width};
  nn::SelfAttention attention{width, heads};
  nn::Linear up{width, 4 * width}, down{4 * width, width};
  NDArray operator()(NDArray x, nn::KvCache* cache) const {
    x = x + attention(norm1(x), {.causal = true, .cache = cache});
    return x + down(gelu(up(norm2(x))));
  }
};

struct Gpt {
  std::int64_t width = 128;
  nn::Embedding token{256, width};
  std::vector<Block> blocks = nn::repeat(4, Block{width, 4});
  nn::LayerNorm norm{width};
  NDArray operator()(const NDArray& tokens, std::vector<nn::KvCache>& caches) const {
    NDArray x = token(tokens);
    for (std::size_t i = 0; i < blocks.size(); ++i) x = blocks[i](x, &caches[i]);
    return token.logits(norm(x));
  }
};

void tokens(int count, int context) {
  Gpt net;
  nn::initialise(net, 1, {{"*.weight", nn::normal(0.02)}});
  const nn::Evaluation off;
  for (int round = 0; round < 3; ++round) {
    std::vector<nn::KvCache> caches;
    RandomStream stream(1);
    NDArray next = full({1, 1}, std::int64_t{10}, DType::i64);
    double quarters[4] = {};
    for (int i = 0; i < count; ++i) {
      if (i % context == 0) caches = std::vector<nn::KvCache>(net.blocks.size());
      const auto start = Clock::now();
      next = categorical(net(next, caches)(all, -1), stream).unsqueeze(1);
      (void)next.item<std::int64_t>();
      quarters[4 * i / count] += since(start);
    }
    std::printf(
        "%d tokens, a cache of up to %d: a quarter each %.3f %.3f %.3f %.3f s; all of them take %.2f times twice "
        "the first half\n",
        count, std::min(context, count), quarters[0], quarters[1], quarters[2], quarters[3],
        (quarters[0] + quarters[1] + quarters[2] + quarters[3]) / (2 * (quarters[0] + quarters[1])));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::max(4, std::atoi(argv[1])) : 1000;
  tokens(count, 64);
  tokens(count, count);
  slow_maps();
}
