// What a step of training costs on a mesh of two logical CPUs with a thread each, beside two nets that train at once,
// each on one of them and on half of the batch: the same work on the same cores, with nothing to send.
//   bench_sharding [--layers 4] [--width 256] [--vocabulary 8192] [--length 64] [--batch 32] [--rounds 9] [--steps 2]
//                  [--samples]
// Rounds run all sides in turn. It prints medians of the time of a step with quartiles, and how many times as fast as
// the two nets each side is: 1 would be no cost at all. With --samples: a line "side<TAB>ms" for each side and round.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sluice/sluice.h"

namespace {

using namespace sluice;

struct Block {
  nn::Size width, heads;
  nn::LayerNorm norm1{width}, norm2{width};
  nn::SelfAttention attention{width, heads};
  nn::Linear up{width, 4 * width}, down{4 * width, width};
  NDArray operator()(NDArray x) const {
    x = x + attention(norm1(x), {.causal = true});
    return x + down(gelu(up(norm2(x))));
  }
};

struct Sizes {
  std::int64_t layers = 4, width = 256, heads = 4, vocabulary = 8192, length = 64, batch = 32;
};

struct Gpt {
  Sizes sizes;
  nn::Embedding token{sizes.vocabulary, sizes.width}, position{sizes.length, sizes.width};
  std::vector<Block> blocks = nn::repeat(sizes.layers, Block{sizes.width, sizes.heads});
  nn::LayerNorm norm{sizes.width};
  NDArray loss(const NDArray& x, const NDArray& y) const {
    NDArray h = token(x) + position(arange(x.size(-1)));
    for (const Block& block : blocks) h = block(h);
    return cross_entropy(token.logits(norm(h)).reshape({-1, sizes.vocabulary}), y.flatten());
  }
};

std::vector<nn::AxisLayouts> megatron(const Sizes& s, bool by_positions) {
  const auto size = s.width / s.heads;
  const Placement between = by_positions ? shard(1) : replicate;
  const std::optional<Placement> in = by_positions ? std::optional(replicate) : std::nullopt;
  return {{"tp",
           {{"*.qkv", {.weight = shard(0).by(3 * size), .bias = shard(0).by(3 * size), .in = in}},
            {"*.proj", {.weight = shard(1).by(size), .out = between}},
            {"*.up", {.weight = shard(0), .bias = shard(0), .in = in}},
            {"*.down", {.weight = shard(1), .out = between}},
            {"token", {.weight = shard(0), .out = between}},
            {"position", {.out = by_positions ? shard(0) : replicate}},
            {"norm", {.out = replicate}}}}};
}

NDArray tokens(const Sizes& s, std::int64_t rows, std::uint64_t seed) {
  RandomStream stream(seed);
  return randint({rows, s.length}, stream, 0, s.vocabulary);
}

struct Side {
  std::string name;
  std::function<void()> step;
};

/// One net on a device without a mesh.
std::function<void()> alone(const Sizes& s, Device device) {
  const DeviceScope scope(device);
  const auto net = std::make_shared<Gpt>(Gpt{s});
  nn::initialise(*net, 1, {{"*.weight", nn::normal(0.02)}, {"*norm*.weight", nn::constant(1)}});
  const auto opt = std::make_shared<nn::Optimizer>(*net, nn::AdamW{});
  const NDArray x = tokens(s, s.batch / 2, 2), y = tokens(s, s.batch / 2, 3);
  return [=] {
    const DeviceScope on(device);
    net->loss(x, y).backward();
    opt->step();
  };
}

Side on_mesh(const Sizes& s, std::string name, const Mesh& mesh, const std::vector<nn::AxisLayouts>& tables) {
  const auto net = std::make_shared<Gpt>(Gpt{s});
  nn::place(*net, mesh, tables);
  nn::initialise(*net, 1, {{"*.weight", nn::normal(0.02)}, {"*norm*.weight", nn::constant(1)}});
  const auto opt = std::make_shared<nn::Optimizer>(*net, nn::AdamW{});
  const Placements rows = mesh.name(0) == "dp" ? Placements{{"dp", shard(0)}} : Placements();
  const NDArray x = place(tokens(s, s.batch, 2), mesh, rows), y = place(tokens(s, s.batch, 3), mesh, rows);
  return {std::move(name), [=] {
            const MeshScope scope(mesh);
            net->loss(x, y).backward();
            opt->step();
          }};
}

double quantile(std::vector<double> list, double q) {
  std::sort(list.begin(), list.end());
  return list[static_cast<std::size_t>(q * static_cast<double>(list.size() - 1))];
}

}  // namespace

int main(int argc, char** argv) {
  Sizes s;
  int rounds = 9, steps = 2;
  bool samples = false;
  CLI::App app("What a step of training costs on a mesh, beside two nets that train at once.");
  app.add_option("--layers", s.layers);
  app.add_option("--width", s.width);
  app.add_option("--vocabulary", s.vocabulary);
  app.add_option("--length", s.length);
  app.add_option("--batch", s.batch);
  app.add_option("--rounds", rounds);
  app.add_option("--steps", steps, "in a round, of each side");
  app.add_flag("--samples", samples, "print each round's times alone");
  CLI11_PARSE(app, argc, argv);
  Engine engine({.threads = 1, .logical_cpus = 2});
  set_default_engine(&engine);
  {
    const Mesh dp({{"dp", 2}}), tp({{"tp", 2}});
    const auto first = alone(s, cpu(0)), second = alone(s, cpu(1));
    std::vector<Side> sides{{"two nets", [=] {
                               first();
                               second();
                             }}};
    for (const int zero : {0, 1, 2, 3}) {
      sides.push_back(on_mesh(s, "dp 2, zero " + std::to_string(zero), dp, {{.axis = "dp", .zero = zero}}));
    }
    sides.push_back(on_mesh(s, "tp 2", tp, megatron(s, false)));
    sides.push_back(on_mesh(s, "tp 2, by positions", tp, megatron(s, true)));
    std::vector<std::vector<double>> times(sides.size());
    for (int round = -1; round < rounds; ++round) {
      for (std::size_t i = 0; i < sides.size(); ++i) {
        const auto start = std::chrono::steady_clock::now();
        for (int k = 0; k < steps; ++k) sides[i].step();
        default_engine().wait_all();
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        if (round < 0) continue;
        times[i].push_back(taken.count() / steps);
        if (samples) std::printf("%s\t%.3f\n", sides[i].name.c_str(), 1e3 * times[i].back());
      }
    }
    for (std::size_t i = 0; !samples && i < sides.size(); ++i) {
      std::vector<double> ratios;
      for (std::size_t k = 0; k < times[i].size(); ++k) ratios.push_back(times[0][k] / times[i][k]);
      std::printf("%-20s %8.1f ms (%.1f to %.1f)  %.3f (%.3f to %.3f)\n", sides[i].name.c_str(),
                  1e3 * quantile(times[i], 0.5), 1e3 * quantile(times[i], 0.25), 1e3 * quantile(times[i], 0.75),
                  quantile(ratios, 0.5), quantile(ratios, 0.25), quantile(ratios, 0.75));
    }
  }
  set_default_engine(nullptr);
}
