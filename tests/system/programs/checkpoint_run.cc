// A training run that goes on from the newest of its checkpoints, for checkpoint_kills_test.cc and tests/deep.sh, which
// kill it:
//   checkpoint_run FOLDER STEPS
// prints a line for each step, and ends with FOLDER/final. Its status is that of an nn::Interrupt.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "sluice/sluice.h"

using namespace sluice;

namespace {

struct Net {
  nn::Linear up{16, 256};
  nn::Dropout drop{0.3};
  nn::Linear down{256, 4};
  NDArray operator()(const NDArray& x) const { return down(drop(relu(up(x)))); }
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  const std::string folder = argv[1];
  const int steps = std::atoi(argv[2]);
  RandomStream numbers(99);
  nn::Loader data({normal({50, 16}, numbers), randint({50}, numbers, 0, 4, DType::i64)},
                  {.batch = 4, .shuffle = true, .seed = 5});
  Net net;
  nn::initialise(net, 1);
  nn::Plateau plateau{.lr = 0.01, .factor = 0.9, .patience = 5, .cooldown = 2};
  nn::Optimizer opt(net, nn::AdamW{.lr = plateau});
  RandomStream stream(2);
  nn::Log log(folder + "/log.csv");
  nn::Patience patience;
  const nn::Saved saved{{"net", net},
                        {"opt", opt},
                        {"data", data},
                        {"stream", stream},
                        {"log", log},
                        {"best", patience.best},
                        {"tries", patience.tries},
                        {"plateau_scale", plateau.scale},
                        {"plateau_best", plateau.best},
                        {"plateau_tries", plateau.tries},
                        {"plateau_cooling", plateau.cooling}};
  nn::Checkpoints checkpoints(folder, saved, {.every = 3, .keep = 2});
  const nn::Interrupt interrupt;
  std::printf("from %s\n", checkpoints.resume().c_str());
  std::fflush(stdout);
  while (!interrupt && opt.steps() < steps) {
    const auto [x, y, first] = data.next();
    const nn::Training on(stream);
    const NDArray loss = cross_entropy(net(x), y);
    loss.backward();
    opt.step();
    log.add(opt.steps(), {{"loss", loss}});
    const float now = loss.item<float>();
    plateau.report(now);
    if (patience.better(now)) checkpoints.best();
    checkpoints.step(opt.steps());
    std::printf("%d\n", static_cast<int>(opt.steps()));
    std::fflush(stdout);
  }
  checkpoints.save(opt.steps());
  if (!interrupt) nn::save(folder + "/final", saved);
  return interrupt.status();
} catch (const std::exception& error) {
  std::fprintf(stderr, "checkpoint_run: %s\n", error.what());
  return 1;
}
