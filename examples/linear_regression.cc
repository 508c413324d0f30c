// Fits y = w x + b to noisy points: the first program to read.
#include <cstdio>

#include "sluice/sluice.h"

using namespace sluice;

int main() {
  RandomStream random(42);
  NDArray x = uniform({200, 1}, random, -1, 1);
  NDArray y = 3 * x + 0.5 + normal({200, 1}, random, 0, 0.1);  // pushed: the engine computes it behind our back

  NDArray w = zeros({1, 1}).with_grad(), b = zeros({1}).with_grad();
  Sgd sgd({w, b}, {.lr = 0.2});
  for (int step = 0; step <= 60; ++step) {
    NDArray loss = mean(square(matmul(x, w) + b - y));
    loss.backward();                                                                     // adds into the gradients
    sgd.step();                                                                          // uses them, and clears them
    if (step % 20 == 0) std::printf("step %2d  loss %.4f\n", step, loss.item<float>());  // item() waits
  }
  std::printf("fitted  y = %.3f x + %.3f\ntruth   y = 3.000 x + 0.500\n", w.item<float>(), b.item<float>());
}
