// The peer of bench/train.cc: libtorch trains the network that the quickstart trains, on random images made before the
// clock starts. Prints one line `images/s N`; with --matmul, one line `gflops N` for a 1,024^3 matrix product instead.
//
//   train_torch [--threads N] [--steps N] [--batch N] [--microbatches M] [--matmul]

#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

struct Options {
  int threads = 1;
  int64_t steps = 60;
  int64_t batch = 64;
  int64_t microbatches = 1;
  bool matmul = false;
};

[[noreturn]] void refuse(const std::string& what) {
  std::fprintf(stderr, "error: %s\n", what.c_str());
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--matmul") {
      options.matmul = true;
      continue;
    }
    if (i + 1 == argc) refuse(name + " wants a value");
    char* end = nullptr;
    const long value = std::strtol(argv[++i], &end, 10);
    if (*end != '\0' || value < 1) refuse(name + " wants a positive number, not '" + argv[i] + "'");
    if (name == "--threads") {
      options.threads = static_cast<int>(value);
    } else if (name == "--steps") {
      options.steps = value;
    } else if (name == "--batch") {
      options.batch = value;
    } else if (name == "--microbatches") {
      options.microbatches = value;
    } else {
      refuse("unknown argument " + name);
    }
  }
  if (options.batch % options.microbatches != 0) refuse("the batch does not divide into the microbatches");
  return options;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double matmul_gflops() {
  const int64_t n = 1024;
  const torch::Tensor a = torch::rand({n, n});
  const torch::Tensor b = torch::rand({n, n});
  torch::Tensor c = torch::mm(a, b);
  double best = 0;
  for (int round = 0; round < 20; ++round) {
    const auto start = std::chrono::steady_clock::now();
    torch::mm_out(c, a, b);
    const double rate = 2.0 * static_cast<double>(n * n * n) / seconds_since(start) / 1e9;
    if (rate > best) best = rate;
  }
  return best;
}

double images_per_second(const Options& options) {
  namespace nn = torch::nn;
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(1, 32, 3)), nn::ReLU(), nn::MaxPool2d(2),
                     nn::Conv2d(nn::Conv2dOptions(32, 32, 3).padding(1)), nn::ReLU(),
                     nn::Conv2d(nn::Conv2dOptions(32, 64, 3)), nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(),
                     nn::Linear(1600, 128), nn::ReLU(), nn::Linear(128, 10));
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const torch::Tensor images = torch::rand({options.batch, 1, 28, 28});
  const torch::Tensor labels = torch::randint(10, {options.batch}, torch::kLong);
  const auto parts_x = images.chunk(options.microbatches);
  const auto parts_y = labels.chunk(options.microbatches);

  const auto step = [&] {
    sgd.zero_grad();
    for (size_t part = 0; part < parts_x.size(); ++part) {
      torch::Tensor loss = nn::functional::cross_entropy(net->forward(parts_x[part]), parts_y[part]);
      if (options.microbatches > 1) loss = loss / static_cast<double>(options.microbatches);
      loss.backward();
    }
    sgd.step();
  };
  for (int warm = 0; warm < 10; ++warm) step();
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < options.steps; ++i) step();
  return static_cast<double>(options.steps * options.batch) / seconds_since(start);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  torch::set_num_threads(options.threads);
  torch::manual_seed(1);
  if (options.matmul) {
    std::printf("gflops %.1f\n", matmul_gflops());
  } else {
    std::printf("images/s %.1f\n", images_per_second(options));
  }
  return 0;
}
