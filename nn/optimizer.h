// Optimisers: they change parameters by their gradients.
#pragma once

#include <initializer_list>
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

/// Base class of optimisers. The parameters of one device step in one operation; on the CPU many parameters step in a
/// few operations. One gate decides for all gradients, on whatever devices they are: if an operation that made one of
/// them failed, then no parameter and no state changes, and each carries the error until recover(). Where devices find
/// errors late, the gate is a flag that a kernel writes after all gradients are there, and that all kernels of the step
/// read.
///
///   try { loss.backward(); sgd.step(); loss.item<float>(); } catch (const Error&) { sgd.recover(); continue; }
///
/// Without the gate each parameter steps by itself, as soon as its own gradient is there. On a device that finds errors
/// late, an error of any op that the device has just found refuses the step, to be safe. Without the gate there is one
/// case that is not safe: if another device finds an error late, in something that a transfer brought here, the step
/// may be under way already; then it is left torn. All functions push and return. Used by one thread at a time.
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
  /// For use after a failed batch: parameters and state have their last good values again, and the gradients are
  /// dropped. A parameter that an operation left half written stays poisoned.
  void recover(std::source_location where = std::source_location::current());

  /// The arrays given to the constructor, under their names.
  const std::vector<NamedArray>& parameters() const { return parameters_; }
  /// What the optimiser keeps between steps, for a checkpoint, under names such as "0.weight.momentum". The arrays are
  /// its own: to load a state, assign to them.
  std::vector<NamedArray> state() const;

  double lr() const { return lr_; }
  /// Sets the learning rate of the steps from now on.
  void set_lr(double lr) { lr_ = lr; }

 protected:
  struct StateSpec {
    const char* name;  ///< "momentum"
    bool counter;      ///< true: an i64 scalar that begins at 0; false: of the parameter's shape and dtype
  };

  /// `row` is one of operators/optimizer_steps.h. Throws ArrayError where a parameter is empty, is listed twice, wants
  /// no gradient, or has a dtype or device without a kernel.
  Optimizer(const Operator& row, const ParameterList& parameters, std::vector<StateSpec> state, double lr, bool gate,
            std::source_location where);
  /// The row's attributes in the step that is pushed now. Its outputs are, for each gradient, the parameter and then
  /// its states, on the parameter's device. Only kernels change what a step changes; nothing is read or written when an
  /// operation is issued.
  virtual Attributes attributes() const = 0;

 private:
  struct Group {
    Device device;
    DType dtype = DType::f32;
    std::vector<std::size_t> members;  ///< parameters that step in one operation
    std::vector<NDArray> gradients{};  ///< theirs, while a step is pushed
  };
  NDArray push_gate(std::span<const Group> groups, Device device, std::source_location where) const;
  void push_step(const Group& group, const NDArray& gate, bool alone, const Attributes& attributes,
                 std::source_location where);

  const Operator& row_;
  std::vector<NamedArray> parameters_;
  std::vector<StateSpec> state_specs_;
  std::vector<std::vector<NDArray>> states_;  ///< one list for each parameter
  std::vector<Group> groups_;
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
  Attributes attributes() const override;
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
  Attributes attributes() const override;
  AdamOptions options_;
};

}  // namespace sluice
