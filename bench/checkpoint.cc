// What checkpoints cost and save: a chain of layers in segments of square-root length, beside the same chain without.
//   bench_checkpoint [LAYERS] [ROWS] [REPEATS]
// Each round runs both, so that they share what the machine does meanwhile. It prints the median of the rounds' ratios
// of time, and the peaks in layers' activations.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "sluice/sluice.h"

namespace {

using namespace sluice;

constexpr std::int64_t kWidth = 256;

struct Measured {
  double seconds = 0;
  double peak = 0;  ///< in activations
};

/// A layer is a product and a relu in one row, which keeps its input alone: one activation.
Measured step(const std::vector<NDArray>& weights, const NDArray& input, std::size_t segment) {
  MemoryPool& pool = memory_pool(cpu(0));
  default_engine().wait_all();
  pool.reset_peak();
  const std::size_t before = pool.stats().in_use;
  const auto start = std::chrono::steady_clock::now();
  {
    NDArray x = input;
    for (std::size_t first = 0; first < weights.size(); first += segment) {
      const auto layers = [&weights, first, last = std::min(first + segment, weights.size())](const NDArray& a) {
        NDArray h = a;
        for (std::size_t i = first; i < last; ++i) h = linear(h, weights[i], {}, {.relu = true});
        return h;
      };
      x = segment >= weights.size() ? layers(x) : checkpoint(layers, x);
    }
    sum(x).backward();
  }
  default_engine().wait_all();
  Measured out;
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  out.peak = static_cast<double>(pool.stats().peak - before) / static_cast<double>(input.bytes());
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, std::int64_t other) { return argc > i ? std::atoll(argv[i]) : other; };
  const auto layers = static_cast<std::size_t>(argument(1, 64));
  const std::int64_t rows = argument(2, 2048);
  const auto repeats = static_cast<std::size_t>(argument(3, 9));
  RandomStream stream(1);
  std::vector<NDArray> weights;
  for (std::size_t i = 0; i < layers; ++i) {
    weights.push_back((normal({kWidth, kWidth}, stream) * std::sqrt(2.0 / kWidth)).detach().with_grad());
  }
  const NDArray input = normal({rows, kWidth}, stream).detach().with_grad();
  const auto root = static_cast<std::size_t>(std::lround(std::sqrt(static_cast<double>(layers))));
  step(weights, input, layers);  // makes the gradients, and fills caches
  step(weights, input, root);
  std::vector<double> ratios;
  Measured whole, parts;
  for (std::size_t i = 0; i < repeats; ++i) {
    whole = step(weights, input, layers);
    parts = step(weights, input, root);
    ratios.push_back(parts.seconds / whole.seconds);
  }
  std::sort(ratios.begin(), ratios.end());
  std::cout << layers << " layers in segments of " << root << ": peak " << parts.peak << " activations ("
            << parts.peak / std::sqrt(static_cast<double>(layers)) << " sqrt N), " << whole.peak
            << " without checkpoints; time x " << ratios[ratios.size() / 2] << " (" << ratios.front() << " to "
            << ratios.back() << ", " << repeats << " rounds)\n";
}
