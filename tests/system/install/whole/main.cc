// A program of somebody else's that computes with arrays and gradients.
#include <array>
#include <cstddef>
#include <cstdio>

#include "sluice/sluice.h"

int main() {
  using namespace sluice;
  NDArray w = ones({3, 2}).with_grad();
  NDArray loss = sum(matmul(ones({4, 3}), w));
  loss.backward();
  const float value = loss.item<float>();
  const float gradient = w.grad().to_vector<float>()[0];
  std::printf("%g %g\n", value, gradient);
  try {
    decode_image(std::array<std::byte, 4>{});  // so that libpng and libjpeg are linked
    return 1;
  } catch (const FormatError&) {
  }
  return value == 24 && gradient == 4 ? 0 : 1;
}
