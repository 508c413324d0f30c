// Where does the loss explode? An interpreter makes each call in f64 too, and names the first layer whose f32 result is
// another.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "sluice/operators/define.h"
#include "sluice/sluice.h"

using namespace sluice;

/// Each result in f32 has a twin in f64, made by the same rows from the twins of the inputs. It waits at every call.
class InF64 final : public Interpreter {
 public:
  explicit InF64(double tolerance) : tolerance_(tolerance) {}

  void apply(Call& call, Next next) override {
    std::vector<NDArray> wide;
    for (const NDArray* x : call.inputs()) wide.push_back(twin_of(*x));
    next(call);
    for (const NDArray& y : call.results()) twins_.erase(key(y));  // it has another value now
    if (!call.targets().empty() || call.name() == "transfer") return;
    const NoGrad no_grad;
    std::vector<NDArray> right;
    if (call.name() == "cast") {
      right = wide;
    } else {
      std::vector<const NDArray*> inputs;
      for (const NDArray& x : wide) inputs.push_back(&x);
      right = apply_all(row_of(call), inputs, call.attributes(), {.where = call.where(), .on = call.specs()[0].device});
    }
    for (std::size_t i = 0; i < right.size(); ++i) {
      const NDArray& y = call.results()[i];
      if (y.dtype() != DType::f32 || !is_floating(right[i].dtype())) continue;
      const NDArray twin = right[i].to(DType::f64).contiguous();
      twins_.insert_or_assign(key(y), Twin{y, twin});
      if (first_.empty()) compare(call, y.detach(), twin);
    }
  }
  /// "" where nothing differed.
  const std::string& first() const { return first_; }

 private:
  struct Twin {
    NDArray array;  ///< kept, so that no other array has its place
    NDArray twin;
  };
  static const void* key(const NDArray& x) { return x.array().get(); }

  /// A window on an array is the same window on its twin.
  NDArray twin_of(const NDArray& x) const {
    if (x.dtype() != DType::f32) return x.detach();
    const auto known = twins_.find(key(x));
    if (known == twins_.end()) return x.detach().to(DType::f64);
    return known->second.twin.strided(x.shape(), x.strides(), x.offset());
  }

  void compare(const Call& call, const NDArray& y, const NDArray& twin) {
    const std::vector<float> got = y.to_vector<float>();
    const std::vector<double> right = twin.to_vector<double>();
    double most = 0;
    for (const double v : right) most = std::isfinite(v) ? std::max(most, std::abs(v)) : most;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const bool equal = std::isfinite(right[i]) ? std::abs(got[i] - right[i]) <= tolerance_ * most
                         : std::isnan(right[i])  ? std::isnan(got[i])
                                                 : got[i] == right[i];
      if (equal) continue;
      first_ = std::string(call.layer()) + ": " + std::string(call.name()) + " gave " + std::to_string(got[i]) +
               ", in f64 " + std::to_string(right[i]) + "; " + to_string(call.where());
      return;
    }
  }

  double tolerance_;
  std::unordered_map<const void*, Twin> twins_;
  std::string first_;
};

/// Right in f64 up to 709, and infinite in f32 from 89 on.
SLUICE_DEFINE_UNARY(Careless, careless_softplus, floating, log(1 + exp(x)), g* sigmoid(x))

/// Four layers, one of which is careless.
NDArray network(NDArray x, const std::vector<NDArray>& weights, int careless) {
  for (int i = 0; i < static_cast<int>(weights.size()); ++i) {
    const LayerScope layer("block." + std::to_string(i));
    x = matmul(x, weights[static_cast<std::size_t>(i)]) * 4;
    x = i == careless ? careless_softplus(x) : softplus(x);
  }
  return sum(x);
}

int main() {
  RandomStream stream(3);
  std::vector<NDArray> weights;
  for (int i = 0; i < 4; ++i) weights.push_back(uniform({16, 16}, stream, 0, 0.5).with_grad());
  const NDArray x = uniform({8, 16}, stream, 0, 0.1);
  for (const int careless : {-1, 2}) {
    const auto wide = std::make_shared<InF64>(1e-4);
    {
      const InterpreterScope scope(wide);
      network(x, weights, careless).backward();
    }
    std::printf("%s\n", wide->first().empty() ? "f32 and f64 agree" : wide->first().c_str());
    if (wide->first().starts_with("block.2:") != (careless == 2)) return 1;
  }
}
