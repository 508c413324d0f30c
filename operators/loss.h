// Losses.
//
// Targets have the shape of x, or broadcast to it; both have one floating dtype after conversion (promote() in
// ndarray/dtype.h). Each loss is a number for each element (or row, where labels name classes), reduced as LossOptions
// says. All have gradients and gradients of gradients. Throws ArrayError where shapes or dtypes do not fit.
#pragma once

#include <optional>

#include "sluice/operators/registry.h"

namespace sluice {

enum class Reduction { mean, sum, none };

/// The options of every loss begin with these two: mse_loss(x, y, {.reduction = Reduction::sum}).
struct LossOptions {
  Reduction reduction = Reduction::mean;  ///< none: the result has a number for each element or row
  /// What the sum is divided by for a mean; 0: what each loss says. For a part of a batch it is the number of the whole
  /// batch, so that the parts add up to the batch's mean (parallel/loss.h does that). Not used for a sum or none.
  double divisor = 0;
};

/// (x - target)^2. A mean is that over all elements.
NDArray mse_loss(const Operand& x, const Operand& target, const LossOptions& options = {});

/// |x - target|, with gradient 0 where they are equal. A mean is that over all elements.
NDArray l1_loss(const Operand& x, const Operand& target, const LossOptions& options = {});

struct HuberOptions {
  Reduction reduction = Reduction::mean;
  double divisor = 0;
  double delta = 1;  ///< above 0
};
/// Half the squared difference d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2). A mean is that over all
/// elements.
NDArray huber_loss(const Operand& x, const Operand& target, const HuberOptions& options = {});

struct BceOptions {
  Reduction reduction = Reduction::mean;
  double divisor = 0;
  NDArray positive_weight = {};  ///< weighs the targets' part of 1; broadcasts to x. An empty handle: 1
};
/// Binary cross-entropy of sigmoid(x) and targets from 0 to 1, safe against overflow:
/// -target log(sigmoid(x)) - (1 - target) log(1 - sigmoid(x)). A mean is that over all elements.
NDArray bce_with_logits(const Operand& x, const Operand& target, const BceOptions& options = {});

/// Kullback-Leibler divergence target (log(target) - x) of probabilities `target` from log-probabilities x; 0 where the
/// target is 0. A mean divides the sum by the number of rows (axis 0), so that it is the mean divergence of the rows,
/// and not a mean over the elements.
NDArray kl_div(const Operand& x, const Operand& target, const LossOptions& options = {});

struct ClassLossOptions {
  Reduction reduction = Reduction::mean;
  double divisor = 0;
  std::optional<std::int64_t> ignore_index = {};  ///< rows with this label count for nothing
  /// (classes,), of x's dtype: a row counts as often as its label's weight. A mean divides by the sum of the weights of
  /// the rows that count. An empty handle: 1 each.
  NDArray weight = {};
};
/// -x[row, label]: the negative logarithm of the label's probability, for log-probabilities x (n, classes) or
/// (n, classes, ...) and labels (n,) or (n, ...), i64, i32 or u8. A label outside of [0, classes), but for that
/// which is ignored, fails the op, and poisons the loss. A mean divides by the number of rows that are not ignored (NaN
/// if all are), or by the sum of their weights.
NDArray nll_loss(const Operand& x, const Operand& labels, const ClassLossOptions& options = {});

struct CrossEntropyOptions {
  Reduction reduction = Reduction::mean;
  double divisor = 0;
  std::optional<std::int64_t> ignore_index = {};  ///< these two as in ClassLossOptions
  NDArray weight = {};
  double label_smoothing = 0;  ///< this part of a row's probability is spread over all classes; from 0 to 1
};
/// The cross-entropy of softmax(logits) and labels, as nll_loss of log_softmax. With label smoothing e a row's loss is
/// (1 - e) times that of its label and e / classes times the sum of those of all classes, each by its weight. logits:
/// (n, classes) or (n, classes, ...), floating. Where only the mean and its divisor are asked for it is one pass, the
/// function below.
///
/// Of logits on a mesh that are cut by classes each place reads its part alone: one gather brings two numbers of each
/// row together, 16 bytes of each other place (24 with smoothing), and backward none. Gradients have no gradients
/// there.
NDArray cross_entropy(const Operand& logits, const Operand& labels, const CrossEntropyOptions& options);

/// The sum over the rows of -log softmax(logits)[row, label], divided by `divisor`. A divisor of 0 means the number of
/// rows, so that the result is the mean. For a part of a batch the divisor is the number of rows of the whole batch, so
/// that the parts add up to the batch's mean. logits: (n, classes), floating; labels: (n,), i64, i32 or u8; further
/// axes as above. The result is a scalar. A label outside of [0, classes) fails the op, and poisons the loss.
NDArray cross_entropy(const Operand& logits, const Operand& labels, double divisor = 0);

}  // namespace sluice
