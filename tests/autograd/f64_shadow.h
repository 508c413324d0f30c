// An interpreter that makes each call of f32 in f64 too, as examples/in_f64.cc does, beside whatever fails.
#pragma once

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "../ndarray/ndarray_test_support.h"

namespace sluice::testing {

/// It waits at every call. Its own operations have the tag kTag.
class F64Shadow final : public sluice::Interpreter {
 public:
  static constexpr std::uint64_t kTag = 1000;

  void apply(Call& call, Next next) override {
    std::vector<NDArray> wide;
    {
      const Own own;
      for (const NDArray* x : call.inputs()) wide.push_back(twin_of(*x));
    }
    next(call);
    const Own own;
    for (const NDArray& y : call.results()) twins_.erase(y.array().get());  // it has another value now
    if (!call.targets().empty() || call.name() == "transfer") return;
    std::vector<NDArray> right = wide;
    if (call.name() != "cast") {
      std::vector<const NDArray*> inputs;
      for (const NDArray& x : wide) inputs.push_back(&x);
      right = apply_all(row_of(call), inputs, call.attributes(), {.where = call.where(), .on = call.specs()[0].device});
    }
    for (std::size_t i = 0; i < right.size(); ++i) {
      const NDArray& y = call.results()[i];
      if (y.dtype() != DType::f32 || !is_floating(right[i].dtype())) continue;
      const NDArray twin = right[i].to(DType::f64).contiguous();
      twins_.insert_or_assign(y.array().get(), Twin{y, twin});
      compare(y.detach(), twin);
    }
  }
  /// Lets go of all arrays. Their tape may have checkpoints, which keep the interpreters of their first call.
  void clear() { twins_.clear(); }
  std::size_t compared = 0, close = 0, poisoned = 0;

 private:
  class Own : ScopeGuard {
   public:
    Own() { current_scope().tag = kTag; }

   private:
    NoGrad no_grad_;
  };
  struct Twin {
    NDArray array;  ///< kept, so that no other array has its place
    NDArray twin;
  };
  /// A window on an array is the same window on its twin.
  NDArray twin_of(const NDArray& x) const {
    if (x.dtype() != DType::f32) return x.detach();
    const auto known = twins_.find(x.array().get());
    if (known == twins_.end()) return x.detach().to(DType::f64);
    return known->second.twin.strided(x.shape(), x.strides(), x.offset());
  }
  void compare(const NDArray& y, const NDArray& twin) {
    try {
      const std::vector<float> got = y.to_vector<float>();
      const std::vector<double> right = twin.to_vector<double>();
      double most = 1e-30;
      for (const double v : right) most = std::max(most, std::abs(v));
      bool all = true;
      for (std::size_t i = 0; i < got.size(); ++i) all = all && std::abs(got[i] - right[i]) <= 1e-4 * most;
      ++compared;
      close += all;
    } catch (const Error&) {
      ++poisoned;
    }
  }

  std::unordered_map<const void*, Twin> twins_;
};

}  // namespace sluice::testing
