// What an optimiser's rule sees: one parameter in one step.
#pragma once

#include <cstdint>
#include <map>
#include <source_location>
#include <string>

#include "sluice/ndarray/layout.h"
#include "sluice/ndarray/nd_array.h"

namespace sluice::nn {

/// An array that a rule changes: the parameter, or something that is kept for it between steps. It is used as an array;
/// of f16 and bf16 as one of f32, so that a rule computes in f32, and results are rounded once. assign() notes a new
/// value, which later reads in the same step see, and writes nothing: the Optimizer writes all that was noted in a
/// step, or nothing of it.
class Target {
 public:
  explicit Target(NDArray array);

  const NDArray& value() const;
  operator const NDArray&() const { return value(); }     // NOLINT: lerp(u.value, ...)
  operator Operand() const { return {value(), where_}; }  // NOLINT
  /// Of this array's shape. Throws ArrayError for another shape, and for a dtype that is not floating where this is.
  void assign(const Operand& value);

  /// The array itself.
  const NDArray& array() const { return array_; }
  /// What was noted, in the array's dtype, contiguous; an empty handle if nothing was.
  NDArray noted() const;
  /// Reads see the array again.
  void end();
  /// Moves the array to where the parameter is, if it is elsewhere: to its device, or to its mesh, where an array of
  /// the parameter's shape lies as `beside` says, and others are replicated.
  void follow(const NDArray& parameter, const Layout& beside);

 private:
  NDArray array_;
  mutable NDArray now_;  ///< what reads see; made when one asks
  bool assigned_ = false;
  std::source_location where_;
};

/// Zeros of a shape and dtype where the parameter is: on its device, or replicated on its mesh.
NDArray zeros_beside(const NDArray& parameter, const Dims& shape, DType dtype);

/// Everything that is kept for a parameter between steps, by name.
using Kept = std::map<std::string, Target>;

/// A rule is a struct with `void operator()(nn::Update& u) const`, which computes new values out of these by operators:
///
///   struct Lion {
///     nn::Schedule lr = 1e-4;
///     double beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
///     void operator()(nn::Update& u) const {
///       nn::Target& m = u.state("m");
///       u.value.assign(u.value - lr(u.step) * (sign(lerp(u.gradient, m, beta1)) + weight_decay * u.value));
///       m.assign(lerp(u.gradient, m, beta2));
///     }
///   };
class Update {
 public:
  Update(Target& value_, NDArray gradient_, std::int64_t step_, Kept& kept);

  Target& value;
  NDArray gradient;   ///< f32 for f16 and bf16
  std::int64_t step;  ///< Optimizer::steps(): how often step() was called before. For schedules
  /// Kept between steps under this name: zeros of the parameter's shape and dtype at first.
  Target& state(const char* name);
  /// The same with another shape, of f32, or f64 for an f64 parameter.
  Target& state(const char* name, const Dims& shape);
  /// How often the parameter was changed, this time included: a scalar of f64 on its device. Unlike `step` it does not
  /// count steps that were refused because of an error, so bias corrections use it.
  NDArray count();

 private:
  Kept& kept_;
  NDArray count_;
};

}  // namespace sluice::nn
