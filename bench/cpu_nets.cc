// Steps of training of five networks on one CPU device, for bench/cpu.sh: in f32, with random inputs made before. And
// of two programs (cpu_learning.h).
//   bench_cpu_nets mlp | cnn | resnet18 | gpt | lstm | gan | rl SECONDS
// Prints the median of the milliseconds of a step, over as many steps as fit SECONDS after five, and by how many MiB
// they raise the most memory that the process had (resident) above that after an addition of two numbers. A step of a
// network clears gradients, computes forward, cross-entropy, backward and the optimiser, and waits.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpu_learning.h"
#include "sluice/sluice.h"

namespace {

using namespace sluice;

struct Mlp {
  nn::Linear a{784, 256}, b{256, 128}, c{128, 10};
  NDArray operator()(const NDArray& x) const { return c(relu(b(relu(a(x))))); }
};

struct Cnn {
  nn::Conv2d a{.in = 1, .out = 32, .kernel = 3}, b{.in = 32, .out = 64, .kernel = 3};
  nn::MaxPool2d pool{2, 2, 0};
  nn::Linear c{1600, 128}, d{128, 10};
  NDArray operator()(const NDArray& x) const {
    return d(relu(c(pool(relu(b(pool(relu(a(x)))))).reshape({x.size(0), -1}))));
  }
};

struct ConvNorm {
  nn::Size in, out, kernel, stride = 1;
  nn::Conv2d conv{.in = in, .out = out, .kernel = kernel, .stride = stride, .padding = kernel / 2, .use_bias = false};
  nn::BatchNorm norm{out};
  NDArray operator()(const NDArray& x) const { return norm(conv(x)); }
};
struct ResidualBlock {
  nn::Size in, out, stride = 1;
  ConvNorm first{in, out, 3, stride}, second{out, out, 3};
  std::optional<ConvNorm> shortcut =
      stride != 1 || in != out ? std::optional(ConvNorm{in, out, 1, stride}) : std::nullopt;
  NDArray operator()(const NDArray& x) const { return relu(second(relu(first(x))) + (shortcut ? (*shortcut)(x) : x)); }
};
struct ResNet18 {
  ConvNorm stem{3, 64, 3};
  std::vector<ResidualBlock> blocks = make();
  nn::Linear head{512, 10};
  NDArray operator()(NDArray x) const {
    x = relu(stem(x));
    for (const ResidualBlock& block : blocks) x = block(x);
    return head(mean(x, {2, 3}));
  }
  static std::vector<ResidualBlock> make() {
    std::vector<ResidualBlock> blocks;
    for (std::int64_t k = 0, in = 64; k < 4; in = std::int64_t{64} << k++) {
      blocks.push_back({in, std::int64_t{64} << k, k ? 2 : 1});
      blocks.push_back({std::int64_t{64} << k, std::int64_t{64} << k});
    }
    return blocks;
  }
};

struct GptBlock {
  nn::Size width, heads;
  nn::LayerNorm norm1{width}, norm2{width};
  nn::SelfAttention attention{width, heads};
  nn::Linear up{width, 4 * width}, down{4 * width, width};
  NDArray operator()(NDArray x) const {
    x = x + attention(norm1(x), {.causal = true});
    return x + down(gelu(up(norm2(x))));
  }
};
struct Gpt {
  nn::Embedding token{96, 192}, position{128, 192};
  std::vector<GptBlock> blocks = nn::repeat(4, GptBlock{192, 6});
  nn::LayerNorm norm{192};
  nn::Linear head{192, 96};
  NDArray operator()(const NDArray& tokens) const {
    NDArray x = token(tokens) + position(arange(tokens.size(-1)));
    for (const GptBlock& block : blocks) x = block(x);
    return head(norm(x)).reshape({-1, 96});
  }
};

struct Recurrent {
  nn::Lstm lstm{96, 256};
  nn::Linear head{256, 96};
  NDArray operator()(const NDArray& x) const { return head(lstm(x, lstm.begin(x.size(1))).outputs).reshape({-1, 96}); }
};

template <class Net, class Rule>
std::function<void()> training(Rule rule, NDArray x, NDArray y) {
  struct Run {
    Net net{};
    nn::Optimizer opt;
    RandomStream stream{1};
    explicit Run(Rule r) : opt((nn::initialise(net, 1), net), r) {}
  };
  const auto run = std::make_shared<Run>(rule);
  return [run, x = std::move(x), y = std::move(y)] {
    const nn::Training on(run->stream);
    const NDArray loss = cross_entropy(run->net(x), y);
    loss.backward();
    run->opt.step();
    default_engine().wait_all();
  };
}

template <class Program>
std::function<void()> program() {
  return [run = std::make_shared<Program>()] {
    run->step();
    default_engine().wait_all();
  };
}

std::function<void()> step_of(const std::string& name) {
  RandomStream random(7);
  const auto labels = [&](std::int64_t n, std::int64_t classes) {
    return randint({n}, random, 0, classes, DType::i64);
  };
  const auto drawn = [&](const Dims& shape) { return normal(shape, random); };
  const auto sgd = [](double lr) { return nn::Sgd{.lr = lr, .momentum = 0.9}; };
  if (name == "mlp") return training<Mlp>(sgd(0.1), drawn({64, 784}), labels(64, 10));
  if (name == "cnn") return training<Cnn>(sgd(0.05), drawn({64, 1, 28, 28}), labels(64, 10));
  if (name == "resnet18") return training<ResNet18>(sgd(0.05), drawn({16, 3, 32, 32}), labels(16, 10));
  if (name == "gpt")
    return training<Gpt>(nn::AdamW{.lr = 1e-3}, labels(8 * 128, 96).reshape({8, 128}), labels(8 * 128, 96));
  if (name == "lstm") return training<Recurrent>(nn::Adam{.lr = 1e-3}, drawn({64, 16, 96}), labels(64 * 16, 96));
  if (name == "gan") return program<bench::Gan>();
  if (name == "rl") return program<bench::Reinforce>();
  throw UsageError("no network " + name);
}

/// The most resident memory so far.
double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  (ones({1}) + ones({1})).wait();
  const double before = peak_mib();
  const std::function<void()> step = step_of(argv[1]);
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < 5; ++i) step();
  std::vector<double> times;
  const auto begin = Clock::now();
  while (std::chrono::duration<double>(Clock::now() - begin).count() < std::atof(argv[2]) || times.size() < 3) {
    const auto start = Clock::now();
    step();
    times.push_back(1e3 * std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  std::printf("%.4f %.1f\n", times[times.size() / 2], peak_mib() - before);
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_cpu_nets: %s\n", error.what());
  return 1;
}
