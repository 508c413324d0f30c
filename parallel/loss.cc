#include "sluice/parallel/loss.h"

#include <string>

#include "sluice/autograd/autograd.h"
#include "sluice/engine/errors.h"
#include "sluice/operators/operators.h"

namespace sluice::parallel {
namespace {

using OfMicrobatch = Loss::OfMicrobatch;

double rows_of(const NDArray& x) { return static_cast<double>(x.size(0)); }

/// A part of a batch of `rows` rows, of a function that divides by them, where the sum is to be divided by an array.
OfMicrobatch divided_by(OfMicrobatch by_rows, double rows, const NDArray& divisor) {
  const NoGrad no_grad;
  // In f64 a number of rows is exact.
  const NDArray factor = rows / divisor.detach().to(DType::f64);
  return [by_rows = std::move(by_rows), factor](const NDArray& output, const NDArray& target) {
    const NDArray loss = by_rows(output, target);
    NDArray here;
    {
      const NoGrad off;
      here = factor.to(loss.device());
      // A microbatch without a row that counts is 0 times this.
      if (loss.dtype() == DType::f16) here = where(isinf(here), here, minimum(here, 65504));
      here = here.to(loss.dtype());
    }
    return loss * here;
  };
}

template <class Options>
void check(const Options& options) {
  if (options.reduction == Reduction::none) {
    throw UsageError("[Loss] Reduction::none gives a number for each row: a pipeline needs a scalar");
  }
}

/// Whether the loss of a microbatch is its part of the batch's loss by itself.
template <class Options>
bool adds_up(const Options& options) {
  return options.reduction == Reduction::sum || options.divisor != 0;
}

/// The options with their arrays on the device of x.
template <class Options>
Options beside(Options options, const NDArray& x) {
  if constexpr (requires { options.weight; }) {
    if (options.weight.defined()) options.weight = options.weight.to(x.device());
  }
  if constexpr (requires { options.positive_weight; }) {
    if (options.positive_weight.defined()) options.positive_weight = options.positive_weight.to(x.device());
  }
  return options;
}

/// A mean over elements or rows, of which each row has as many: a microbatch's counts by its share of the rows.
template <class Options, class Function>
auto rule_of_elements(Function* function, Options options) {
  check(options);
  return [function, options](const NDArray& targets, std::source_location where) -> OfMicrobatch {
    targets.checked("of_batch", where);
    const auto of_rows = [=](const NDArray& y, const NDArray& t) {
      return function({y, where}, {t, where}, beside(options, y));
    };
    return [of_rows, options, where, rows = rows_of(targets)](const NDArray& y, const NDArray& t) {
      if (y.rank() != t.rank() || y.rank() == 0 || y.size(0) != t.size(0)) {
        throw ArrayError("pipeline", where,
                         "the loss of " + to_string(y.shape()) + " with targets " + to_string(t.shape()) +
                             " is no sum over rows: they must have as many axes and rows");
      }
      if constexpr (requires { options.positive_weight; }) {
        const NDArray& weight = options.positive_weight;
        if (weight.defined() && (weight.rank() > y.rank() || (weight.rank() == y.rank() && weight.size(0) != 1))) {
          throw ArrayError("pipeline", where,
                           "a positive_weight " + to_string(weight.shape()) + " for " + to_string(y.shape()) +
                               ": it must be the same for all rows");
        }
      }
      if (adds_up(options)) return of_rows(y, t);
      return of_rows(y, t) * (rows_of(t) / rows);
    };
  };
}

/// 0-d, f64: how many labels count, or the sum of their weights.
NDArray counted(const NDArray& labels, const std::optional<std::int64_t>& ignored, const NDArray& weight) {
  const NDArray wide = labels.to(DType::i64);
  const NDArray counts = ignored ? wide != *ignored : NDArray();
  if (!weight.defined()) return sum(counts.to(DType::f64));
  const NDArray names = (counts.defined() ? where(counts, wide, 0) : wide).reshape({labels.count()});
  const NDArray of_rows = take_rows(weight.to(labels.device()).to(DType::f64), names);
  return sum(counts.defined() ? where(counts.reshape({labels.count()}), of_rows, 0) : of_rows);
}

template <class Options, class Function>
auto rule_of_labels(Function* function, Options options) {
  check(options);
  if (options.weight.defined() && !adds_up(options)) {
    // The mean does not depend on the weights' scale. They are at most 1, so that a sum of products with them is no
    // larger than one without.
    const NoGrad no_grad;
    const NDArray largest = max(abs(options.weight));
    options.weight = options.weight.detach() / where(largest > 0, largest, 1);
  }
  return [function, options](const NDArray& labels, std::source_location where) -> OfMicrobatch {
    labels.checked("of_batch", where);
    const auto with_divisor = [&](double divisor) -> OfMicrobatch {
      Options o = options;
      o.divisor = divisor;
      return [=](const NDArray& logits, const NDArray& t) {
        return function({logits, where}, {t, where}, beside(o, logits));
      };
    };
    if (adds_up(options)) return with_divisor(options.divisor);
    const double all = static_cast<double>(labels.count());
    if (!options.ignore_index && !options.weight.defined()) return with_divisor(all);
    NDArray divisor;
    {
      const NoGrad no_grad;
      divisor = counted(labels, options.ignore_index, options.weight);
    }
    return divided_by(with_divisor(all), all, divisor);
  };
}

}  // namespace

Loss::Loss() : Loss(static_cast<OfLogits*>(cross_entropy)) {}

Loss::Loss(Made, LossFunction function, std::function<LossDivisor(const NDArray&)> divisor) {
  if (!function) throw UsageError("[Loss] the function is empty");
  rule_ = [function = std::move(function), divisor = std::move(divisor)](const NDArray& targets,
                                                                         std::source_location where) -> OfMicrobatch {
    const auto with = [&](double number) -> OfMicrobatch {
      return [function, number](const NDArray& y, const NDArray& t) { return function(y, t, number); };
    };
    targets.checked("of_batch", where);
    const double rows = rows_of(targets);
    if (!divisor) return with(rows);
    LossDivisor of_batch;
    {
      const NoGrad no_grad;
      const DeviceScope device(targets.device());
      of_batch = divisor(targets);
    }
    if (const double* number = std::get_if<double>(&of_batch)) return with(*number);
    const NDArray& array = std::get<NDArray>(of_batch);
    array.checked("pipeline", where);
    if (array.rank() != 0) {
      throw ArrayError("pipeline", where,
                       "the loss's divisor is an array of shape " + to_string(array.shape()) + ": 0-d is wanted");
    }
    return divided_by(with(rows), rows, array);
  };
}

Loss::Loss(OfElements* function, LossOptions options) : rule_(rule_of_elements(function, options)) {}
Loss::Loss(OfHuber* function, HuberOptions options) : rule_(rule_of_elements(function, options)) {}
Loss::Loss(OfBce* function, BceOptions options) : rule_(rule_of_elements(function, std::move(options))) {}
Loss::Loss(OfClasses* function, ClassLossOptions options) : rule_(rule_of_labels(function, std::move(options))) {}
Loss::Loss(OfLogits* function, CrossEntropyOptions options) : rule_(rule_of_labels(function, std::move(options))) {}

}  // namespace sluice::parallel
