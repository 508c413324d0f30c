// Rows and functions that make arrays from nothing.
#include "sluice/operators/creation.h"

#include <cmath>

#include "sluice/operators/attributes.h"
#include "sluice/operators/builtin.h"

namespace sluice {
namespace {

const Operator& fill_row() {
  static const Operator& row = Registry::instance().get("fill");
  return row;
}

void check_number(const char* name, const Scalar& value, DType dtype, const std::source_location& where) {
  if (value.fits(dtype)) [[likely]]
    return;
  throw ArrayError(name, where, "the number " + value.text() + " is none of " + std::string(name_of(dtype)));
}

NDArray filled(const Dims& shape, const Scalar& value, const Scalar& step, DType dtype, Place on,
               const std::source_location& where) {
  return apply(fill_row(), {}, FillAttributes{value, step, shape, dtype}, {.where = where, .on = on});
}

NDArray random(const char* name, const Dims& shape, RandomStream& stream, double a, double b, DType dtype,
               std::uint64_t first, const std::source_location& where) {
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
    op.min_inputs = op.max_inputs = 0;
    op.key = -1;
    op.infer = infer_from_attributes<FillAttributes>;
  });
  for (const char* name : {"uniform", "normal"}) {
    add_operator(registry, name, [](Operator& op) {
      op.min_inputs = op.max_inputs = 0;
      op.key = -1;
      op.infer = infer_from_attributes<RandomAttributes>;
    });
  }
}

NDArray zeros(const Dims& shape, DType dtype, std::source_location where) {
  return filled(shape, 0, 0, dtype, {}, where);
}
NDArray ones(const Dims& shape, DType dtype, std::source_location where) {
  return filled(shape, 1, 0, dtype, {}, where);
}
NDArray full(const Dims& shape, const Scalar& value, DType dtype, std::source_location where) {
  check_number("full", value, dtype, where);
  return filled(shape, value, 0, dtype, {}, where);
}
NDArray zeros_like(const Operand& x) {
  const Array& array = x.array.checked("zeros_like", x.where);
  return filled(x.array.shape(), 0, 0, array.dtype(), array.device(), x.where);
}
NDArray ones_like(const Operand& x) {
  const Array& array = x.array.checked("ones_like", x.where);
  return filled(x.array.shape(), 1, 0, array.dtype(), array.device(), x.where);
}

NDArray arange(const Scalar& begin, const Scalar& end, const Scalar& step, std::optional<DType> wanted,
               std::source_location where) {
  const bool integers = begin.is_integer && end.is_integer && step.is_integer;
  const DType dtype = wanted.value_or(integers ? DType::i64 : DType::f32);
  check_number("arange", begin, dtype, where);
  check_number("arange", step, dtype, where);
  const double length = std::ceil((end.as<double>() - begin.as<double>()) / step.as<double>());
  if (step.as<double>() == 0 || !(length < 9e18)) {
    throw ArrayError("arange", where,
                     "from " + std::to_string(begin.as<double>()) + " to " + std::to_string(end.as<double>()) + " by " +
                         std::to_string(step.as<double>()) + ": not a number of elements below 9e18");
  }
  return filled({length > 0 ? static_cast<std::int64_t>(length) : 0}, begin, step, dtype, {}, where);
}

NDArray arange(const Scalar& end, std::source_location where) { return arange(0, end, 1, {}, where); }

NDArray uniform(const Dims& shape, RandomStream& stream, double low, double high, DType dtype, std::uint64_t first,
                std::source_location where) {
  return random("uniform", shape, stream, low, high, dtype, first, where);
}
NDArray normal(const Dims& shape, RandomStream& stream, double mean, double deviation, DType dtype, std::uint64_t first,
               std::source_location where) {
  return random("normal", shape, stream, mean, deviation, dtype, first, where);
}

void NDArray::fill(const ScalarOperand& value) const {
  const Array& array = checked("fill", value.where);
  check_number("fill", value, array.dtype(), value.where);
  apply(fill_row(), {}, FillAttributes{value, 0, shape_, array.dtype()},
        {.where = value.where, .into = std::span(this, 1)});
}

}  // namespace sluice
