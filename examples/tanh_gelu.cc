// Every gelu of a network in its tanh form, its gradient too, without a change in the network: by an interpreter.
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "sluice/sluice.h"

using namespace sluice;

class TanhGelu final : public Interpreter {
 public:
  void apply(Call& call, Next next) override {
    if (call.name() != "gelu") return next(call);
    call.answer({gelu(call.input(), {.tanh = true})});  // what it calls goes on to the tape
  }
};

/// Some network that knows nothing of it, with a checkpoint: what it computes again goes the same way.
NDArray network(const NDArray& x, const NDArray& w) {
  return checkpoint([&](const NDArray& a) { return gelu(matmul(gelu(matmul(a, w)), w)); }, x);
}

int main() {
  RandomStream stream(1);
  const NDArray w = normal({32, 32}, stream, 0, 0.3, DType::f64);
  const NDArray x = normal({8, 32}, stream, 0, 1, DType::f64).with_grad();
  const auto gradient = [&](bool in_tanh_form) {
    NDArray y;
    if (in_tanh_form) {
      const InterpreterScope scope(std::make_shared<TanhGelu>());
      y = network(x, w);
    } else {
      y = network(x, w);
    }
    return grad(sum(y), {x})[0].to_vector<double>();
  };
  const std::vector<double> exact = gradient(false), replaced = gradient(true);
  double most = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) most = std::max(most, std::abs(exact[i] - replaced[i]));
  std::printf("the gradients differ by %.2g at most\n", most);
  return most > 0 && most < 0.01 ? 0 : 1;
}
