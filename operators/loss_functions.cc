// Losses that are made of operators.
#include <cmath>
#include <limits>

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/loss.h"
#include "sluice/operators/placed.h"
#include "sluice/operators/placed_owner.h"
#include "sluice/operators/reduction.h"
#include "sluice/operators/shaping.h"

namespace sluice {
namespace {

/// What the options of every loss begin with.
template <class Options>
LossOptions common(const Options& o) {
  return {.reduction = o.reduction, .divisor = o.divisor};
}

/// `count`: what a mean is divided by where the options do not say.
NDArray reduced(const NDArray& losses, const LossOptions& options, std::int64_t count) {
  if (options.reduction == Reduction::none) return losses;
  if (options.reduction == Reduction::sum) return sum(losses);
  // Divided before it is rounded to the dtype: in f16 the sum itself might not fit.
  const double divisor = options.divisor != 0 ? options.divisor : static_cast<double>(count);
  const Operator& row = detail::first_use([] { return &Registry::instance().get("sum"); });
  return apply(row, {&losses}, ReduceAttributes{(1U << losses.rank()) - 1, false, 1 / divisor});
}

/// x and target as the losses of elements want them: floating, and the target no larger than x.
struct Pair {
  builtin::Composition made;
  const NDArray &x, &target;
  Pair(const char* name, const Operand& a, const Operand& b) : made(name, a), x(a.array), target(b.array) {
    target.checked(name, made.where());
    if (!fits(target)) misfit("the target", target);
    if (!is_floating(x.dtype())) made.fail("needs a floating dtype, not " + std::string(name_of(x.dtype())));
  }
  /// Whether it broadcasts to x.
  bool fits(const NDArray& other) const {
    const Dims &s = x.shape(), &t = other.shape();
    bool all_fit = t.rank() <= s.rank();
    for (int i = 0; i < t.rank() && all_fit; ++i) {
      const std::int64_t n = s[s.rank() - t.rank() + i];
      all_fit = t[i] == n || t[i] == 1;
    }
    return all_fit;
  }
  [[noreturn]] void misfit(const char* what, const NDArray& other) const {
    made.fail(to_string(x.shape()) + " x " + to_string(other.shape()) + ": " + what + " does not fit x");
  }
};

}  // namespace

NDArray mse_loss(const Operand& x, const Operand& target, const LossOptions& options) {
  const Pair p("mse_loss", x, target);
  return reduced(square(p.x - p.target), options, p.x.count());
}

NDArray l1_loss(const Operand& x, const Operand& target, const LossOptions& options) {
  const Pair p("l1_loss", x, target);
  return reduced(abs(p.x - p.target), options, p.x.count());
}

NDArray huber_loss(const Operand& x, const Operand& target, const HuberOptions& options) {
  const Pair p("huber_loss", x, target);
  p.made.require(options.delta > 0, "delta must be above 0");
  // The part of |d| up to delta counts by its square, the rest as it is.
  const NDArray distance = abs(p.x - p.target), near = minimum(distance, options.delta);
  return reduced(near * (distance - 0.5 * near), common(options), p.x.count());
}

NDArray bce_with_logits(const Operand& x, const Operand& target, const BceOptions& options) {
  const Pair p("bce_with_logits", x, target);
  // log(1 + exp(-x)) = m + log(exp(-m) + exp(-x - m)) for every m. This m keeps both powers below 1; it is a constant
  // to gradients, so that they are exact at 0 too.
  NDArray m;
  {
    const NoGrad no_grad;
    m = relu(-p.x);
  }
  const NDArray of_one = m + log(exp(-m) + exp(-p.x - m));  // the loss where the target is 1
  NDArray losses = (1 - p.target) * p.x;
  if (options.positive_weight.defined()) {
    if (!p.fits(options.positive_weight)) p.misfit("positive_weight", options.positive_weight);
    losses = losses + (1 + (options.positive_weight - 1) * p.target) * of_one;
  } else {
    losses = losses + of_one;
  }
  return reduced(losses, common(options), p.x.count());
}

NDArray kl_div(const Operand& x, const Operand& target, const LossOptions& options) {
  const Pair p("kl_div", x, target);
  p.made.require(p.x.rank() > 0, "a scalar has no rows");
  // The logarithm of 1 in the place of that of 0, so that neither the value nor the gradient is NaN there.
  const NDArray logarithm = log(where(p.target > 0, p.target, 1));
  return reduced(p.target * (logarithm - where(p.target == 0, 0, p.x)), options, p.x.shape()[0]);
}

namespace {

/// Rows of classes with their labels.
struct Rows {
  NDArray x;       ///< (rows, classes)
  NDArray labels;  ///< (rows,), i64; 0 for those of rows that are ignored
  NDArray counts;  ///< bool: the rows that are not ignored; an empty handle: all
  NDArray weight;  ///< of the classes; an empty handle: 1 each
  Dims shape;      ///< of the labels
  std::int64_t classes;
  const ClassLossOptions& options;

  Rows(const builtin::Composition& made, const NDArray& all_rows, const NDArray& names, const ClassLossOptions& o)
      : options(o) {
    names.checked("labels", made.where());
    const Dims& s = all_rows.shape();
    if (!is_floating(all_rows.dtype()))
      made.fail("needs a floating dtype, not " + std::string(name_of(all_rows.dtype())));
    bool fits = s.rank() >= 2 && s.rank() == names.rank() + 1 && s[1] > 0 && s[0] == names.shape()[0];
    for (int i = 2; i < s.rank() && fits; ++i) fits = s[i] == names.shape()[i - 1];
    if (!fits)
      made.fail(to_string(s) + " x " + to_string(names.shape()) + ": needs (n, classes, ...) and labels (n, ...)");
    classes = s[1];
    if (o.weight.defined() && !(o.weight.shape() == Dims{classes}))
      made.fail("weight must have a number for each class");
    shape = names.shape();
    NDArray last = all_rows;
    if (s.rank() > 2) {
      Dims axes{0};
      for (int i = 2; i < s.rank(); ++i) axes.push_back(i);
      axes.push_back(1);
      last = all_rows.permute(axes);
    }
    x = last.reshape({shape.count(), classes});
    const NDArray given = names.reshape({shape.count()});
    const Operator& row = detail::first_use([] { return &Registry::instance().get("class_labels"); });
    labels = apply(row, {&given}, ClassLabelAttributes{classes, o.ignore_index.has_value(), o.ignore_index.value_or(0)},
                   {.where = made.where()});
    if (o.ignore_index) {
      counts = given.to(DType::i64) != *o.ignore_index;
      x = where(counts.unsqueeze(1), x, 0);  // whatever they are: no factor of 0 makes infinities harmless
    }
    weight = o.weight;
    if (weight.defined() && o.reduction == Reduction::mean && o.divisor == 0 && shape.count() > 0) {
      // What is divided by the sum of the weights does not depend on their scale. By the largest that counts they are
      // at most 1, so that no product with them is larger than the result may be.
      NDArray largest;
      {
        const NoGrad no_grad;
        largest = of_all_places(max(abs(of_counted(take_rows(weight, labels)))));
        largest = where(largest > 0, largest, 1);
      }
      weight = weight / largest;
    }
  }

  /// -values[row, label] for each row, by its weight.
  NDArray of_labels(const NDArray& values) const {
    const NDArray picked = sum(where(one_hot(labels, classes, DType::boolean), values, 0), -1);
    return weighted(-picked);
  }
  /// The sum over all classes of their weights times -values.
  NDArray of_all(const NDArray& values) const {
    return of_counted(sum(weight.defined() ? -values * weight : -values, -1));
  }
  NDArray weighted(const NDArray& losses) const {
    return of_counted(weight.defined() ? losses * take_rows(weight, labels) : losses);
  }
  /// Of rows that are cut over a mesh each place has a term.
  static NDArray of_all_places(const NDArray& term) { return layout_of(term).partial() ? whole(term) : term; }
  NDArray of_counted(const NDArray& losses) const { return counts.defined() ? where(counts, losses, 0) : losses; }

  NDArray reduce(const NDArray& losses) const {
    if (options.reduction != Reduction::mean || options.divisor != 0 ||
        (!options.weight.defined() && !options.ignore_index)) {
      return reduced(losses.reshape(shape), common(options), shape.count());
    }
    return mean(losses) / of_all_places(mean(weighted(ones_like(losses.detach()))));
  }
};

}  // namespace

namespace {

constexpr const char* kUnequal =
    "the classes are cut at other places than r n / p: reshard the logits, each axis of the mesh that cuts them to "
    "replicate";
bool in_equal_parts(const std::vector<std::int64_t>& cuts) {
  const auto parts = static_cast<std::int64_t>(cuts.size()) - 1;
  for (std::int64_t r = 0; r < parts; ++r) {
    if (cuts[static_cast<std::size_t>(r)] != r * cuts.back() / parts) return false;
  }
  return true;
}

/// Of classes that are cut: each place looks at its part, and two or three numbers of each row are gathered.
NDArray losses_of_parts(const Rows& rows, double smoothing) {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("class_parts"); });
  const NDArray& x = rows.x;
  const Layout layout = call_layout_of(x);
  const std::int64_t parts = static_cast<std::int64_t>(layout.cuts(1).size()) - 1;
  const DType wide = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const auto whole_of = [&](const NDArray& y) {
    Placements placements;
    for (int m = 0; m < layout.mesh().axes(); ++m) {
      if (layout.on(m) == shard(1)) placements.emplace_back(layout.mesh().name(m), replicate);
    }
    return reshard(y, placements);
  };
  const bool with_sums = smoothing != 0 && !rows.weight.defined();
  const ClassPartsAttributes a{rows.classes, parts, 0, parts, with_sums ? 3 : 2};
  const NDArray numbers = whole_of(apply(row, {&x, &rows.labels}, a));
  const auto number = [&](int k) { return numbers.narrow(2, k, k + 1).squeeze(2); };
  const NDArray of_rows = logsumexp(number(0), 0);
  NDArray losses = rows.weighted((of_rows - sum(number(1), 0)).to(wide));
  if (smoothing != 0) {
    const double classes = static_cast<double>(rows.classes);
    const NDArray& weight = rows.weight;
    const NDArray all = (with_sums ? classes * of_rows - sum(number(2), 0)
                                   : of_rows * sum(weight) - whole_of(sum(x.to(wide) * weight, -1)))
                            .to(wide);
    losses = (1 - smoothing) * losses + (smoothing / classes) * rows.of_counted(all);
  }
  return losses;
}

}  // namespace

NDArray nll_loss(const Operand& x, const Operand& labels, const ClassLossOptions& options) {
  const builtin::Composition made("nll_loss", x);
  const Rows rows(made, x.array, labels.array, options);
  return rows.reduce(rows.of_labels(rows.x));
}

NDArray cross_entropy(const Operand& logits, const Operand& labels, const CrossEntropyOptions& options) {
  const double smoothing = options.label_smoothing;
  const bool cut = builtin::is_cut(logits.array, 1);
  if (options.reduction == Reduction::mean && smoothing == 0 && !options.ignore_index && !options.weight.defined() &&
      logits.array.rank() == 2 && !cut) {
    return cross_entropy(logits, labels, options.divisor);
  }
  const builtin::Composition made("cross_entropy", logits);
  made.require(smoothing >= 0 && smoothing <= 1, "label_smoothing must be from 0 to 1");
  const ClassLossOptions of_classes{options.reduction, options.divisor, options.ignore_index, options.weight};
  const Rows rows(made, logits.array, labels.array, of_classes);
  if (cut) made.require(in_equal_parts(call_layout_of(rows.x).cuts(1)), kUnequal);
  if (cut) return rows.reduce(losses_of_parts(rows, smoothing).to(logits.array.dtype()));
  const NDArray values = log_softmax(rows.x);
  NDArray losses = rows.of_labels(values);
  if (smoothing != 0) {
    losses = (1 - smoothing) * losses + (smoothing / static_cast<double>(rows.classes)) * rows.of_all(values);
  }
  return rows.reduce(losses);
}

}  // namespace sluice
