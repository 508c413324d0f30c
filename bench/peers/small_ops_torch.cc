// The peer of bench/small_ops.cc: libtorch's C++ interface.
#include <torch/torch.h>

#include "small_ops.h"

int main(int argc, char** argv) {
  const small_ops::Options options = small_ops::parse(argc, argv);
  torch::set_num_threads(options.threads);
  torch::Tensor a = torch::ones({16}), c = a;
  const torch::Tensor b = torch::full({16}, 0.5F), w = torch::full({16}, 0.5F).requires_grad_(true);
  small_ops::report(options, [&](int n) {
    if (options.pattern == "plain") {
      for (int i = 0; i < n; ++i) c = a + b;
    } else if (options.pattern == "chain") {
      for (int i = 0; i < n; ++i) c = c + b;
    } else if (options.pattern == "in_place") {
      for (int i = 0; i < n; ++i) a += b;
    } else {
      for (int i = 0; i < n; ++i) c = a + w;
    }
  });
  return 0;
}
