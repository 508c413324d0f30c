// Fits y = w x + b to noisy points: the first program to read.
#include <cstdio>

#include "sluice/sluice.h"

using namespace sluice;

struct Line {
  nn::Parameter w{{1}, nn::constant(0)}, b{{1}, nn::constant(0)};
  NDArray operator()(const NDArray& x) const { return w * x + b; }
};

int main() {
  RandomStream random(42);
  NDArray x = uniform({200, 1}, random, -1, 1);
  NDArray y = 3 * x + 0.5 + normal({200, 1}, random, 0, 0.1);  // pushed: the engine computes it behind our back

  Line line;
  nn::initialise(line, 1);
  nn::Optimizer opt(line, nn::Sgd{.lr = 0.2});
  for (int step = 0; step <= 60; ++step) {
    NDArray loss = mean(square(line(x) - y));
    loss.backward();                                                                     // adds into the gradients
    opt.step();                                                                          // uses them, and clears them
    if (step % 20 == 0) std::printf("step %2d  loss %.4f\n", step, loss.item<float>());  // item() waits
  }
  std::printf("fitted  y = %.3f x + %.3f\ntruth   y = 3.000 x + 0.500\n", line.w.value().item<float>(),
              line.b.value().item<float>());
}
