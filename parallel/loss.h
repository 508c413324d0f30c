// The loss of a pipeline: what its microbatches' losses are divided by, so that they add up to the batch's.
//
//   .loss = mse_loss
//   .loss = {cross_entropy, {.ignore_index = -100, .label_smoothing = 0.1}}
//   .loss = [](const NDArray& y, const NDArray& t, double rows) { return sum(square(y - t)) / rows; }
#pragma once

#include <functional>
#include <source_location>
#include <type_traits>
#include <utility>
#include <variant>

#include "sluice/ndarray/nd_array.h"
#include "sluice/operators/loss.h"

namespace sluice::parallel {

/// The loss of a microbatch, a scalar: the sum of the losses of its rows, divided by `divisor`, a number of the whole
/// batch. So the losses and gradients of the microbatches add up to those of the batch.
using LossFunction = std::function<NDArray(const NDArray& output, const NDArray& target, double divisor)>;

/// What the sum over a batch's rows is divided by: a number, or a 0-d array that is computed from the batch's targets.
using LossDivisor = std::variant<double, NDArray>;

/// A loss that is the same whether a batch comes at once or in microbatches. It is copied freely and used by any number
/// of threads, if its functions may be.
class Loss {
 public:
  /// cross_entropy of labels, with a mean over all of them.
  Loss();

  /// A LossFunction. Its divisor is the number of rows of the batch: the length of the targets' axis 0.
  template <class F>
  requires std::is_invocable_r_v<NDArray, F&, const NDArray&, const NDArray&, double> Loss(F function)
      : Loss(Made(), LossFunction(std::move(function)), nullptr) {}  // NOLINT: an option is written without a name

  /// A LossFunction with the divisor that `divisor(targets)` gives for a batch's targets. It is called once a batch,
  /// where the targets are and without gradients. A number is what the function is given. With a 0-d array the function
  /// is given the number of rows, and its result is multiplied by rows / divisor: so nothing waits for the array.
  template <class F, class D>
  requires(std::is_invocable_r_v<NDArray, F&, const NDArray&, const NDArray&, double>&&
               std::is_invocable_v<D&, const NDArray&>) Loss(F function, D divisor)
      : Loss(Made(), LossFunction(std::move(function)), [divisor = std::move(divisor)](const NDArray& targets) mutable {
          if constexpr (std::is_arithmetic_v<std::invoke_result_t<D&, const NDArray&>>) {
            return LossDivisor(static_cast<double>(divisor(targets)));
          } else {
            return LossDivisor(divisor(targets));
          }
        }) {}

  /// The losses of operators/loss.h. A mean is that of the whole batch: over the elements, rows or labels that the loss
  /// says, without those that are ignored, and by the sum of the weights of all that count. With Reduction::sum it is
  /// the batch's sum, and a `divisor` other than 0 is what the batch's sum is divided by. Arrays among the options may
  /// lie on any device; they are not to be written meanwhile. Throws UsageError for Reduction::none, which gives no
  /// scalar.
  ///
  /// For a loss of elements output and target must have as many axes and rows, and a positive_weight be the same for
  /// all rows: else a row's loss would depend on other rows, and the step throws ArrayError.
  using OfElements = NDArray(const Operand&, const Operand&, const LossOptions&);
  using OfHuber = NDArray(const Operand&, const Operand&, const HuberOptions&);
  using OfBce = NDArray(const Operand&, const Operand&, const BceOptions&);
  using OfClasses = NDArray(const Operand&, const Operand&, const ClassLossOptions&);
  using OfLogits = NDArray(const Operand&, const Operand&, const CrossEntropyOptions&);
  Loss(OfElements* function, LossOptions options = {});        // NOLINT
  Loss(OfHuber* function, HuberOptions options = {});          // NOLINT
  Loss(OfBce* function, BceOptions options = {});              // NOLINT
  Loss(OfClasses* function, ClassLossOptions options = {});    // NOLINT
  Loss(OfLogits* function, CrossEntropyOptions options = {});  // NOLINT

  /// The part of the batch's loss that a microbatch has: a scalar.
  using OfMicrobatch = std::function<NDArray(const NDArray& output, const NDArray& target)>;
  /// For a batch with these targets. Pushes what the divisor takes, and does not wait. `where` is for errors.
  OfMicrobatch of_batch(const NDArray& targets, std::source_location where = std::source_location::current()) const {
    return rule_(targets, where);
  }

 private:
  struct Made {};
  Loss(Made, LossFunction function, std::function<LossDivisor(const NDArray&)> divisor);

  std::function<OfMicrobatch(const NDArray& targets, std::source_location where)> rule_;
};

}  // namespace sluice::parallel
