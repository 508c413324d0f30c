// What it costs a training run to write down how it goes: nn::Log, a row each step; nn::Checkpoints, in the background.
//   bench_reports [ROUNDS]
// Rounds of both sides in turns (of the log in a random order); medians of the time of a step, and of the ratio of a
// round's two sides with its quartiles and the interval in which the median lies with 95 %. The log: the net of
// examples/mlp.cc, 40 steps a round, 40 ROUNDS of them, by the clock and by the processor time of all threads.
// Checkpoints: dense layers with 12.6 million parameters under AdamW, 151 MB a file; a round has as many steps as are
// made until the file is on the disk, and as many without one.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <random>
#include <vector>

#include "sluice/sluice.h"

namespace {

using namespace sluice;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double processor_time() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double at(std::vector<double> x, double part) {
  std::sort(x.begin(), x.end());
  return x[static_cast<std::size_t>(part * static_cast<double>(x.size() - 1) + 0.5)];
}

struct Mlp {
  nn::Size in, width, out;
  nn::Linear up{in, width}, middle{width, width}, down{width, out};
  NDArray operator()(const NDArray& x) const { return down(relu(middle(relu(up(x))))); }
};

struct Training {
  Mlp net;
  nn::Optimizer opt;
  RandomStream stream{1};
  NDArray x, y;
  template <class Rule>
  Training(std::int64_t in, std::int64_t width, std::int64_t out, std::int64_t batch, Rule rule)
      : net{in, width, out}, opt((nn::initialise(net, 1), net), std::move(rule)) {
    RandomStream numbers(2);
    x = normal({batch, in}, numbers);
    y = randint({batch}, numbers, 0, out, DType::i64);
  }
  NDArray step() {
    const nn::Training on(stream);
    const NDArray loss = cross_entropy(net(x), y);
    loss.backward();
    opt.step();
    return loss;
  }
};

void print(const char* what, const std::vector<double>& off, const std::vector<double>& on) {
  std::vector<double> ratio;
  for (std::size_t i = 0; i < off.size(); ++i) ratio.push_back(on[i] / off[i]);
  const double off_by = 0.98 / std::sqrt(static_cast<double>(ratio.size()));  // ranks of a binomial distribution
  std::printf(
      "%-12s a step %.3f ms without, %.3f ms with; ratio %.4f, quartiles %.4f to %.4f, 95 %% %.4f to %.4f; "
      "%zu rounds\n",
      what, 1e3 * at(off, 0.5), 1e3 * at(on, 0.5), at(ratio, 0.5), at(ratio, 0.25), at(ratio, 0.75),
      at(ratio, std::max(0.0, 0.5 - off_by)), at(ratio, std::min(1.0, 0.5 + off_by)), ratio.size());
}

void logs(const std::string& folder, int rounds) {
  constexpr int kSteps = 40;
  Training run(784, 256, 10, 128, nn::Sgd{.lr = 0.05, .momentum = 0.9});
  nn::Log log(folder + "/log.csv", {.tensorboard = folder + "/board"});
  struct Times {
    double wall, processor;
  };
  const auto steps = [&](bool logged) {
    const auto begin = Clock::now();
    const double processor = processor_time();
    for (int i = 0; i < kSteps; ++i) {
      const NDArray loss = run.step();
      if (logged) log.add(run.opt.steps(), {{"loss", loss}, {"rate", 0.05}});
      if (i % 8 == 7) loss.wait();  // as a program that prints its loss
    }
    default_engine().wait_all();
    return Times{since(begin) / kSteps, (processor_time() - processor) / kSteps};
  };
  std::minstd_rand random(1);
  std::vector<double> off, on, processor_off, processor_on;
  for (int i = 0; i < 3; ++i) steps(true);
  for (int i = 0; i < 40 * rounds; ++i) {
    const bool first = random() % 2;
    const Times a = steps(first), b = steps(!first);
    on.push_back((first ? a : b).wall);
    off.push_back((first ? b : a).wall);
    processor_on.push_back((first ? a : b).processor);
    processor_off.push_back((first ? b : a).processor);
  }
  print("log", off, on);
  print("  processor", processor_off, processor_on);
}

void checkpoints(const std::string& folder, int rounds) {
  Training run(2048, 2048, 2048, 256, nn::AdamW{});
  const nn::Saved all{{"net", run.net}, {"opt", run.opt}, {"stream", run.stream}};
  nn::Checkpoints files(folder, all, {.every = 1, .keep = 1});
  const std::string path = folder + "/best.safetensors";
  std::vector<double> off, on, count;
  for (int i = 0; i < 3; ++i) run.step().wait();
  for (int i = 0; i < rounds; ++i) {
    std::filesystem::remove(path);
    int steps = 0;
    auto begin = Clock::now();
    files.best();
    do {
      run.step().wait();
      ++steps;
    } while (!std::filesystem::exists(path) && steps < 1000);
    default_engine().wait_all();
    on.push_back(since(begin) / steps);
    files.wait();
    count.push_back(steps);
    begin = Clock::now();
    for (int k = 0; k < steps; ++k) run.step().wait();
    default_engine().wait_all();
    off.push_back(since(begin) / steps);
  }
  print("checkpoints", off, on);
  std::printf("             %.0f steps (%.0f to %.0f) while a file of %.1f MB is written\n", at(count, 0.5),
              at(count, 0.25), at(count, 0.75), static_cast<double>(std::filesystem::file_size(path)) / 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 10;
  if (rounds < 1) return 2;
  const std::string folder = std::filesystem::temp_directory_path() / ("sluice_reports." + std::to_string(::getpid()));
  logs(folder, rounds);
  checkpoints(folder, rounds);
  default_engine().wait_all();
  std::filesystem::remove_all(folder);
}
