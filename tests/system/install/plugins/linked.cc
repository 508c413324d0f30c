// A program that is linked with a library of operators, and calls a function of it.
#include <cstdio>

#include "rms_norm.h"
#include "sluice/sluice.h"

int main() {
  using namespace sluice;
  NDArray weight = ones({2}).with_grad();
  sum(mine::rms_norm(from<float>({3, 4}, {1, 2}), weight)).backward();
  const std::vector<float> g = weight.grad().to_vector<float>();  // x / sqrt(12.5)
  std::printf("%g %g\n", g[0], g[1]);
  return g[0] > 0.848 && g[0] < 0.849 && g[1] > 1.131 && g[1] < 1.132 ? 0 : 1;
}
