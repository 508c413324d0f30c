// Optimisers: they change parameters by their gradients.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sluice/nn/module.h"
#include "sluice/operators/optimizer_steps.h"

namespace sluice {

/// The arrays that an optimiser changes: `net.parameters()`, or {w, b}, which are named "0" and "1".
class ParameterList {
 public:
  ParameterList(std::initializer_list<NDArray> arrays);                          // NOLINT: Sgd({w, b}, ...)
  ParameterList(const std::vector<NamedParameter>& parameters);                  // NOLINT: Sgd(net.parameters(), ...)
  ParameterList(std::vector<NamedArray> arrays) : arrays_(std::move(arrays)) {}  // NOLINT
  const std::vector<NamedArray>& arrays() const { return arrays_; }

 private:
  std::vector<NamedArray> arrays_;
};

/// Base of optimisers. Parameters of one device step in one operation, or a few where they are many. One gate stands
/// over all gradients, whatever devices they are on: if an operation that made one of them failed, then no parameter
/// and no state changes, and each carries the error until recover():
///
///   try { loss.backward(); sgd.step(); loss.item<float>(); } catch (const Error&) { sgd.recover(); continue; }
///
/// Without the gate each parameter steps by itself, as soon as its own gradient is there.
/// All functions push and return. For one thread at a time.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Changes the parameters that have gradients, and drops the gradients. Throws ArrayError where a gradient's shape or
  /// dtype differs from its parameter's.
  void step(std::source_location where = std::source_location::current());
  /// Drops the gradients.
  void zero_grad();
  /// After a failed batch: parameters and state have their last good values again, and the gradients are dropped. What
  /// an operation left half written stays poisoned.
  void recover(std::source_location where = std::source_location::current());

  /// The arrays given to the constructor, under their names.
  const std::vector<NamedArray>& parameters() const { return parameters_; }
  /// What it remembers between steps, for a checkpoint: "0.weight.momentum". Views of its own arrays: assign to load.
  std::vector<NamedArray> state() const;

  double lr() const { return lr_; }
  /// For the steps from now on.
  void set_lr(double lr) { lr_ = lr; }

 protected:
  /// Steps one parameter, inside of the operation, with what was fixed when it was pushed: runs the row's kernel on the
  /// gradient and on `values`, the parameter and then its states.
  using Rule = std::function<void(KernelFunction kernel, const TensorView& gradient, std::span<const TensorView> values,
                                  Context& context)>;
  struct StateSpec {
    const char* name;  ///< "momentum"
    bool counter;      ///< true: an i64 scalar in host memory; false: of the parameter's shape, dtype and device
  };

  /// `row` has the kernels. Throws ArrayError where a parameter is empty, is listed twice, wants no gradient, or
  /// has a dtype or device without a kernel.
  Optimizer(const Operator& row, const ParameterList& parameters, std::vector<StateSpec> state, double lr, bool gate,
            std::source_location where);
  virtual Rule rule() const = 0;

 private:
  NDArray push_gate(std::source_location where) const;
  void push_step(std::span<const std::size_t> members, const NDArray& gate, const std::shared_ptr<const Rule>& rule,
                 std::source_location where);

  const Operator& row_;
  std::vector<NamedArray> parameters_;
  std::vector<StateSpec> state_specs_;
  std::vector<KernelFunction> kernels_;           ///< of each parameter
  std::vector<std::vector<NDArray>> states_;      ///< of each parameter
  std::vector<std::vector<std::size_t>> groups_;  ///< parameters that step in one operation
  double lr_;
  bool gate_;
};

struct SgdOptions {
  double lr = 0.01;
  double momentum = 0;
  double weight_decay = 0;
  bool gate = true;  ///< false: each parameter steps alone
};

/// d = g + weight_decay w; v = momentum v + d; w = w - lr v.
class Sgd : public Optimizer {
 public:
  Sgd(const ParameterList& parameters, const SgdOptions& options,
      std::source_location where = std::source_location::current());

 private:
  Rule rule() const override;
  SgdOptions options_;
};

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = false;  ///< weight decay as in AdamW
  bool gate = true;        ///< false: each parameter steps alone
};

/// Adam; AdamW with `decoupled`. A step that was skipped is not counted.
class Adam : public Optimizer {
 public:
  Adam(const ParameterList& parameters, const AdamOptions& options,
       std::source_location where = std::source_location::current());

 private:
  Rule rule() const override;
  AdamOptions options_;
};

}  // namespace sluice
