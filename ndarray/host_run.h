// HostRun: an operation on arrays on a lane of the host, where that is more than a call of its body: many operands,
// packed ones, poisoned ones that the body is to see, or an answer that comes later. Used by ArrayCall.
#pragma once

#include <span>
#include <vector>

#include "sluice/ndarray/array_call.h"

namespace sluice {

class HostRun {
 public:
  /// Makes the copies that come before the body, and finds the operands. Throws bad_alloc; if the outputs have their
  /// old values then, the context is told.
  void begin(const ArrayCall& call, Context& context);
  /// Brings packed outputs to their places.
  void end(const ArrayCall& call) const;
  bool unpacks(const ArrayCall& call) const;

  /// What the body sees, inputs first: the operands' windows, or packed copies.
  std::span<const TensorView> views() const { return views_; }
  std::span<const ErrorRef> errors() const { return errors_; }

 private:
  void find_good(const ArrayCall& call);

  std::vector<TensorView> windows_;  ///< of the operands
  std::vector<TensorView> views_;
  std::vector<Scratch> packed_;
  std::vector<ErrorRef> errors_;  ///< by operand; empty where the body does not see poison
};

}  // namespace sluice
