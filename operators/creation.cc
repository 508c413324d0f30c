// Rows and functions that make arrays from nothing.
#include "sluice/operators/creation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <tuple>
#include <utility>
#include <vector>

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/number_text.h"
#include "sluice/ndarray/owner.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/placement.h"
#include "sluice/operators/reduction.h"

namespace sluice {
namespace {

const Operator& fill_row() {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("fill"); });
  return row;
}

void check_number(const char* name, const Scalar& value, DType dtype, const std::source_location& where) {
  if (value.fits(dtype)) [[likely]]
    return;
  throw ArrayError(name, where, "the number " + value.text() + " is none of " + std::string(name_of(dtype)));
}

NDArray filled(const char* name, const Dims& shape, const Scalar& value, const Scalar& step, DType dtype, Place on,
               const std::source_location& where) {
  const detail::Called called(name, where);
  check_shape(name, shape, dtype, where);
  return apply(fill_row(), {}, FillAttributes{value, step, shape, dtype}, {.where = where, .on = on});
}

NDArray random(const char* name, const Dims& shape, RandomStream& stream, double a, double b, DType dtype,
               std::uint64_t first, const std::source_location& where) {
  check_shape(name, shape, dtype, where);
  const RandomKey key = stream.next();
  return apply(Registry::instance().get(name), {},
               RandomAttributes{key.seed, key.stream, key.draw, first, a, b, shape, dtype}, {.where = where});
}

template <class A>
void infer_from_attributes(Signature& s) {
  const A& a = s.attributes<A>();
  s.output(a.shape, a.dtype);
}

}  // namespace

void builtin::add_creation_rows(Registry& registry) {
  add_operator(registry, "fill", [](Operator& op) {
    op.place = [](Placing& p) {
      if (p.attributes<FillAttributes>().step.as<double>() == 0) p.elementwise();
      p.local(local_extent<FillAttributes, &FillAttributes::shape>);
    };
    op.cost = costs::moves;
    op.min_inputs = op.max_inputs = 0;
    op.key = -1;
    op.infer = infer_from_attributes<FillAttributes>;
  });
  // Draws from [0, 1) and probabilities, f64 both: whether the draw is below. A probability outside of [0, 1] fails the
  // op.
  add_operator(registry, "bernoulli", [](Operator& op) {
    op.place = place_linear<Linear::no>;
    op.cost = costs::each_output<>;
    op.min_inputs = op.max_inputs = 2;
    op.infer = [](Signature& s) {
      s.same_dtypes();
      if (s.dtype() != DType::f64) s.fail("draws and probabilities are f64, not " + std::string(name_of(s.dtype())));
      if (!(s.shape(0) == s.shape(1))) s.fail("shapes differ");
      s.output(s.shape(0), DType::boolean);
    };
  });
  add_operator(registry, "randint", [](Operator& op) {
    op.cost = costs::each_output<>;
    op.min_inputs = op.max_inputs = 0;
    op.key = -1;
    op.infer = infer_from_attributes<RandomIntegerAttributes>;
  });
  for (const char* name : {"uniform", "normal"}) {
    add_operator(registry, name, [](Operator& op) {
      op.cost = costs::each_output<>;
      op.min_inputs = op.max_inputs = 0;
      op.key = -1;
      op.infer = infer_from_attributes<RandomAttributes>;
    });
  }
}

NDArray zeros(const Dims& shape, DType dtype, std::source_location where) {
  return filled("zeros", shape, 0, 0, dtype, {}, where);
}
NDArray ones(const Dims& shape, DType dtype, std::source_location where) {
  return filled("ones", shape, 1, 0, dtype, {}, where);
}
NDArray full(const Dims& shape, const Scalar& value, DType dtype, std::source_location where) {
  check_number("full", value, dtype, where);
  return filled("full", shape, value, 0, dtype, {}, where);
}
namespace {

/// An array like x of one value; like one of an owner, what the owner gives.
NDArray filled_like(const char* name, const Operand& x, const Scalar& value, std::optional<DType> wanted) {
  const Array& array = x.array.checked(name, x.where);
  const DType dtype = wanted.value_or(array.dtype());
  check_number(name, value, dtype, x.where);
  if (array.kind() == Array::Kind::owned) {
    return detail::ask_constant(x.array, {x.array.shape(), dtype, array.device()}, value, x.where);
  }
  return filled(name, x.array.shape(), value, 0, dtype, array.device(), x.where);
}

}  // namespace

NDArray zeros_like(const Operand& x) { return filled_like("zeros_like", x, 0, {}); }
NDArray ones_like(const Operand& x) { return filled_like("ones_like", x, 1, {}); }
NDArray zeros_like(const Operand& x, DType dtype) { return filled_like("zeros_like", x, 0, dtype); }
NDArray ones_like(const Operand& x, DType dtype) { return filled_like("ones_like", x, 1, dtype); }
NDArray full_like(const Operand& x, const Scalar& value, std::optional<DType> dtype) {
  return filled_like("full_like", x, value, dtype);
}
NDArray empty_like(const Operand& x, std::optional<DType> dtype) {
  const Array& array = x.array.checked("empty_like", x.where);
  if (array.kind() == Array::Kind::owned) return filled_like("empty_like", x, 0, dtype);
  return empty(x.array.shape(), dtype.value_or(array.dtype()), array.device(), x.where);
}

NDArray linspace(double begin, double end, std::int64_t n, DType dtype, std::source_location where) {
  const builtin::Composition made("linspace", where);
  if (!is_floating(dtype)) {
    throw ArrayError("linspace", where, "needs a floating dtype, not " + std::string(name_of(dtype)));
  }
  check_shape("linspace", {n}, dtype, where);
  const double intervals = static_cast<double>(n - 1), step = n > 1 ? (end - begin) / intervals : 0;
  if (std::isinf(step) && std::isfinite(begin) && std::isfinite(end)) {
    // The way from begin to end is longer than any number: each half is counted from its end.
    const NDArray place = arange(0, n, 1, DType::f64, where);
    const double part = end / intervals - begin / intervals;
    return sluice::where(place < intervals / 2, begin + place * part, end - (intervals - place) * part)
        .to(dtype, where);
  }
  const NDArray y = filled("linspace", {n}, begin, step, dtype, {}, where);
  if (n > 1) y.narrow(0, n - 1, n).fill(end);  // not begin + (n - 1) * step, which may be off by a rounding
  return y;
}

NDArray eye(std::int64_t n, std::int64_t m, DType dtype, std::source_location where) {
  const builtin::Composition made("eye", where);
  check_shape("eye", {n, m}, dtype, where);
  const NDArray y = zeros({n, m}, dtype);
  y.diagonal().fill(1);
  return y;
}
NDArray eye(std::int64_t n, DType dtype, std::source_location where) { return eye(n, n, dtype, where); }

namespace {

/// How many numbers begin, begin + step, ... there are before end; empty: no number below 9e18.
std::optional<std::int64_t> length_of(const Scalar& begin, const Scalar& end, const Scalar& step) {
  const double length = std::ceil((end.as<double>() - begin.as<double>()) / step.as<double>());
  if (step.as<double>() == 0 || !(length < 9e18)) return std::nullopt;
  return length > 0 ? static_cast<std::int64_t>(length) : 0;
}
/// The same where all are integers of i64, of which double does not hold those beyond 2^53.
std::optional<std::int64_t> length_of_integers(std::int64_t begin, std::int64_t end, std::int64_t step) {
  if (step == 0) return std::nullopt;
  if (step > 0 ? end <= begin : end >= begin) return 0;
  // Distances are below 2^64.
  const auto bits = [](std::int64_t x) { return static_cast<std::uint64_t>(x); };
  const std::uint64_t way = step > 0 ? bits(end) - bits(begin) : bits(begin) - bits(end);
  const std::uint64_t pace = step > 0 ? bits(step) : 0 - bits(step), length = (way - 1) / pace + 1;
  if (length >= 9'000'000'000'000'000'000U) return std::nullopt;
  return static_cast<std::int64_t>(length);
}

}  // namespace

NDArray arange(const Scalar& begin, const Scalar& end, const Scalar& step, std::optional<DType> wanted,
               std::source_location where) {
  const bool integers = begin.is_integer && end.is_integer && step.is_integer;
  const DType dtype = wanted.value_or(integers ? DType::i64 : DType::f32);
  check_number("arange", begin, dtype, where);
  check_number("arange", step, dtype, where);
  const bool exact = integers && !begin.above_i64 && !end.above_i64 && !step.above_i64;
  const std::optional<std::int64_t> length =
      exact ? length_of_integers(begin.integer, end.integer, step.integer) : length_of(begin, end, step);
  if (!length) {
    throw ArrayError(
        "arange", where,
        "from " + begin.text() + " to " + end.text() + " by " + step.text() + ": not a number of elements below 9e18");
  }
  return filled("arange", {*length}, begin, step, dtype, {}, where);
}

NDArray arange(const Scalar& end, std::source_location where) { return arange(0, end, 1, {}, where); }

NDArray uniform(const Dims& shape, RandomStream& stream, double low, double high, DType dtype, std::uint64_t first,
                std::source_location where) {
  if (!(low <= high) || !std::isfinite(low) || !std::isfinite(high) ||
      std::max(std::abs(low), std::abs(high)) > largest_number(dtype)) {
    throw ArrayError("uniform", where, "[" + Scalar(low).text() + ", " + Scalar(high).text() + ") is no range");
  }
  return random("uniform", shape, stream, low, high, dtype, first, where);
}
NDArray normal(const Dims& shape, RandomStream& stream, double mean, double deviation, DType dtype, std::uint64_t first,
               std::source_location where) {
  if (deviation < 0) {
    throw ArrayError("normal", where, "a deviation of " + Scalar(deviation).text() + ", which is below 0");
  }
  return random("normal", shape, stream, mean, deviation, dtype, first, where);
}

NDArray truncated_normal(const Dims& shape, RandomStream& stream, const TruncatedNormalOptions& options, DType dtype,
                         std::uint64_t first, std::source_location where) {
  const builtin::Composition made("truncated_normal", where);
  const double infinity = std::numeric_limits<double>::infinity(), root_of_two = std::sqrt(2.0);
  const auto [mean, deviation, low, high] = options;
  const auto require = [&](bool condition, const char* why) {
    if (condition) return;
    throw ArrayError("truncated_normal", where,
                     "mean " + Scalar(options.mean).text() + ", deviation " + Scalar(options.deviation).text() + ", [" +
                         Scalar(options.low).text() + ", " + Scalar(options.high).text() + "]: " + why);
  };
  if (!is_floating(dtype)) {
    throw ArrayError("truncated_normal", where, "needs a floating dtype, not " + std::string(name_of(dtype)));
  }
  require(std::isfinite(mean), "the mean is not finite");
  require(deviation > 0 && deviation < infinity, "the deviation is not a number above 0");
  require(low < high, "low is not below high");
  // Small probabilities keep their digits and those near 1 do not, so that bounds above the mean are mirrored.
  double a = (low - mean) / deviation, b = (high - mean) / deviation;
  const bool mirrored = a + b > 0;
  if (mirrored) std::tie(a, b) = std::pair(-b, -a);
  const auto probability_below = [&](double z) { return std::erfc(-z / root_of_two) / 2; };
  const double begin = probability_below(a), end = probability_below(b);
  require(b >= -36, "the bounds are more than 36 deviations from the mean");
  require(begin < end, "the bounds are too near each other");
  // 0 becomes half of a step of the draw.
  const NDArray u = maximum(uniform(shape, stream, 0, 1, DType::f64, first, where), 0x1p-54);
  const NDArray p = u * (end - begin) + begin;
  NDArray z;
  if (b > -4) {
    z = erfinv(p * 2 - 1) * root_of_two;
  } else {
    // 2 p - 1 would have too few digits of p: Newton's method on the logarithm of the probability.
    const NDArray wanted = log(p), square_of_z = wanted * -2 - std::log(2 * std::numbers::pi);
    z = -sqrt(square_of_z - log(square_of_z));
    for (int i = 0; i < 4; ++i) {
      const NDArray below = erfc(z * (-1 / root_of_two)) * 0.5;
      z = z - (log(below) - wanted) * below / (exp(square(z) * -0.5) * (1 / std::sqrt(2 * std::numbers::pi)));
    }
  }
  return minimum(maximum(z * (mirrored ? -deviation : deviation) + mean, low), high).to(dtype, where);
}

NDArray randint(const Dims& shape, RandomStream& stream, std::int64_t low, std::int64_t high, DType dtype,
                std::source_location where) {
  if (low >= high || !is_integer(dtype) || !Scalar(low).fits(dtype) || !Scalar(high - 1).fits(dtype)) {
    throw ArrayError("randint", where,
                     "[" + std::to_string(low) + ", " + std::to_string(high) + ") of " + std::string(name_of(dtype)));
  }
  check_shape("randint", shape, dtype, where);
  const RandomKey key = stream.next();
  return apply(Registry::instance().get("randint"), {},
               RandomIntegerAttributes{key.seed, key.stream, key.draw, low, high, shape, dtype}, {.where = where});
}

NDArray bernoulli(const Dims& shape, RandomStream& stream, double probability, std::source_location where) {
  const builtin::Composition made("bernoulli", where);
  if (!(probability >= 0 && probability <= 1)) {
    throw ArrayError("bernoulli", where, "a probability of " + fixed_text(probability, 6));
  }
  return uniform(shape, stream, 0, 1, DType::f64, 0, where) < probability;
}
NDArray bernoulli(const Operand& probabilities, RandomStream& stream) {
  const builtin::Composition made("bernoulli", probabilities.where);
  const NDArray& p = probabilities.array;
  if (!is_floating(p.checked("bernoulli", probabilities.where).dtype())) {
    throw ArrayError("bernoulli", probabilities.where, "probabilities of " + std::string(name_of(p.dtype())));
  }
  const DeviceScope on(p.device());
  const NDArray draws = uniform(p.shape(), stream, 0, 1, DType::f64), wide = p.detach().to(DType::f64);
  return apply(Registry::instance().get("bernoulli"), {&draws, &wide}, {}, {.where = made.where()});
}

NDArray randperm(std::int64_t n, RandomStream& stream, std::source_location where) {
  check_shape("randperm", {n}, DType::i64, where);
  // In the order of random numbers; equal ones, which are 64 bits long, in the order of the elements.
  auto list = detail::host_list<std::pair<std::uint64_t, std::int64_t>>("randperm", n, where);
  std::vector<std::int64_t> order = detail::host_list<std::int64_t>("randperm", n, where);
  const ElementKey key(stream.next());
  for (std::size_t i = 0; i < list.size(); ++i) list[i] = {key.word64(i), static_cast<std::int64_t>(i)};
  std::sort(list.begin(), list.end());
  for (std::size_t i = 0; i < list.size(); ++i) order[i] = list[i].second;
  return from(order, {n}, where);
}

NDArray categorical(const Operand& logits, RandomStream& stream) {
  const builtin::Composition made("categorical", logits.where);
  const NDArray& x = logits.array;
  if (!is_floating(x.checked("categorical", logits.where).dtype()) || x.rank() == 0 || x.size(-1) == 0) {
    throw ArrayError("categorical", logits.where,
                     to_string(x.shape()) + " " + std::string(name_of(x.dtype())) +
                         ": a floating dtype, and a last axis with elements, is wanted");
  }
  const DeviceScope on(x.device());
  // 0 becomes half of a step of the draw.
  const NDArray u = maximum(uniform(x.shape(), stream, 0, 1, DType::f64), 0x1p-54);
  return argmax(x.detach().to(DType::f64) - log(-log(u)), -1);
}

void NDArray::fill(const ScalarOperand& value) const {
  const Array& array = checked("fill", value.where);
  check_number("fill", value, array.dtype(), value.where);
  apply(fill_row(), {}, FillAttributes{value, 0, shape_, array.dtype()},
        {.where = value.where, .into = std::span(this, 1)});
}

}  // namespace sluice
