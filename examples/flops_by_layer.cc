// What each layer of a training step asks for: operations and bytes, forward and backward, by an interpreter.
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "sluice/sluice.h"

using namespace sluice;

/// Adds up the cost of all calls, by the layer that makes them. A gradient belongs to the layer of its forward call.
class Costs final : public Interpreter {
 public:
  void apply(Call& call, Next next) override {
    const Cost cost = cost_of(call);
    Cost& sum = by_layer_[call.layer()];
    sum.flops += cost.flops;
    sum.bytes += cost.bytes;
    next(call);
  }
  void print() const {
    std::printf("%-12s %12s %12s\n", "layer", "Mflop", "MB");
    for (const auto& [layer, cost] : by_layer_) {
      std::printf("%-12s %12.3f %12.3f\n", layer.empty() ? "(none)" : layer.c_str(), cost.flops / 1e6,
                  cost.bytes / 1e6);
    }
  }

 private:
  std::map<std::string, Cost> by_layer_;
};

int main() {
  RandomStream stream(1);
  NDArray w1 = normal({256, 784}, stream, 0, 0.05).with_grad(), w2 = normal({10, 256}, stream, 0, 0.05).with_grad();
  const NDArray x = normal({64, 784}, stream), labels = zeros({64}, DType::i64);

  const auto costs = std::make_shared<Costs>();
  {
    const InterpreterScope scope(costs);
    NDArray hidden, logits;
    {
      const LayerScope layer("hidden");
      hidden = relu(linear(x, w1));
    }
    {
      const LayerScope layer("classes");
      logits = linear(hidden, w2);
    }
    const LayerScope layer("loss");
    cross_entropy(logits, labels).backward();
  }
  costs->print();
}
