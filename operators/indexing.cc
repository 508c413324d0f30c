// Rows and functions that read and write elements by arrays of their numbers.
#include "sluice/operators/indexing.h"

#include <algorithm>

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/operand_dtypes.h"
#include "sluice/operators/placement.h"
#include "sluice/operators/put_rows.h"
#include "sluice/operators/scan.h"
#include "sluice/operators/shaping.h"
#include "sluice/operators/sorting.h"
#include "sluice/operators/waiting.h"

namespace sluice {
namespace {

const Operator& put_row() {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("put_rows"); });
  return row;
}

void infer_put_rows(Signature& s) {
  const auto& a = s.attributes<PutAttributes>();
  s.same_dtypes(1);
  s.rank(0, 1);
  if (s.dtype(0) != DType::i64) s.fail("rows are i64, not " + std::string(name_of(s.dtype(0))));
  if (a.add) s.arithmetic(1);
  Dims rows = a.shape;
  if (rows.empty()) s.fail("a scalar has no rows");
  rows[0] = s.shape(0)[0];
  if (!(s.shape(1) == rows)) s.fail("wanted rows of shape " + to_string(rows));
  if (s.inputs() == 3 && !(s.shape(2) == a.shape)) s.fail("wanted an array of shape " + to_string(a.shape));
  s.output(a.shape, s.dtype(1));
}

/// The gradient of what was written: that of the row, for the last writer of each.
NDArray gradient_of_written(const NDArray& g, const NDArray& rows, const Dims& written) {
  const DeviceScope on(g.device());
  const NDArray order = arange(0, written[0]);
  const NDArray last = take_rows(put_rows(zeros({g.shape()[0]}, DType::i64), rows, order), rows);
  Dims column(written);
  for (int i = 1; i < column.rank(); ++i) column[i] = 1;
  return where((last == order).reshape(column), take_rows(g, rows), 0);
}

void put_rows_gradient(GradientContext& c) {
  const bool add = c.attributes().get<PutAttributes>().add;
  const NDArray &g = c.gradient(), &rows = c.input(0);
  const Spec& written = c.input_spec(1);
  if (c.wanted(1)) c.set(1, add ? take_rows(g, rows) : gradient_of_written(g, rows, written.shape));
  if (c.inputs() < 3 || !c.wanted(2)) return;
  const DeviceScope on(g.device());
  c.set(2, add ? g : put_rows(g, rows, zeros(written.shape, g.dtype())));
}

int positive_axis(const char* who, const Operand& x, int axis) {
  x.array.checked(who, x.where);
  const int rank = x.array.rank();
  const int at = axis < 0 ? axis + rank : axis;
  if (at < 0 || at >= rank) {
    throw ArrayError(who, x.where, to_string(x.array.shape()) + ": no axis " + std::to_string(axis));
  }
  return at;
}

/// The row-major numbers of the elements of an array that an index along an axis names: i64, of shape (n,).
NDArray element_numbers(const char* who, const Operand& x, int axis, const NDArray& index) {
  const Dims &shape = x.array.shape(), &wanted = index.shape();
  const auto fail = [&](const std::string& why) {
    throw ArrayError(who, x.where, to_string(shape) + " by " + to_string(wanted) + ": " + why);
  };
  if (wanted.rank() != shape.rank()) fail("ranks differ");
  for (int i = 0; i < shape.rank(); ++i) {
    if (i != axis && wanted[i] > shape[i]) fail("the index is longer on axis " + std::to_string(i));
  }
  const Dims strides = row_major(shape);
  const DeviceScope on(x.array.device());
  NDArray numbers = checked_index(who, index, shape[axis], x.where);
  if (strides[axis] != 1) numbers = numbers * strides[axis];
  for (int i = 0; i < shape.rank(); ++i) {
    if (i == axis || wanted[i] < 2) continue;
    Dims along(wanted);
    for (int k = 0; k < along.rank(); ++k) along[k] = k == i ? wanted[i] : 1;
    numbers = numbers + arange(0, wanted[i] * strides[i], strides[i]).reshape(along);
  }
  return numbers.reshape({wanted.count()});
}

NDArray flat(const NDArray& x) { return x.reshape({x.count()}); }

NDArray scattered(const char* who, const Operand& x, int axis, const Operand& index, const Operand& source, bool add) {
  const builtin::Composition made(who, x.where);
  axis = positive_axis(who, x, axis);
  index.array.checked(who, x.where);
  const Dims& wanted = index.array.shape();
  NDArray values = builtin::narrowed(who, source, x.array.dtype());
  const NDArray numbers = element_numbers(who, x, axis, index.array);
  if (values.rank() == 0) values = values.broadcast_to(wanted);
  for (int i = 0; i < wanted.rank(); ++i) {
    if (values.rank() != wanted.rank() || values.size(i) < wanted[i]) {
      throw ArrayError(who, x.where,
                       "a source of " + to_string(source.array.shape()) + " for an index of " + to_string(wanted));
    }
    values = values.narrow(i, 0, wanted[i]);
  }
  return put_rows(flat(x.array), numbers, flat(values), add).reshape(x.array.shape());
}

}  // namespace

namespace {
/// In place it touches the rows alone.
Cost put_rows_cost(const Signature& s) {
  const double index = costs::count(s.shape(0)) * sizeof(std::int64_t), rows = costs::bytes({s.shape(1), s.dtype(1)});
  return {costs::count(s.shape(1)), s.inputs() == 3 ? costs::moves(s).bytes : index + 3 * rows};
}
}  // namespace

void builtin::add_indexing_rows(Registry& registry) {
  // Integers as numbers of elements on an axis of `size`: negative ones count from the end. i64.
  add_operator(registry, "index", [](Operator& op) {
    op.place = [](Placing& p) { p.letters("...->..."); };
    op.cost = costs::each_output<>;
    op.infer = [](Signature& s) {
      if (!is_integer(s.dtype())) s.fail("an index is of integers or bool, not " + std::string(name_of(s.dtype())));
      s.output(s.shape(0), DType::i64);
    };
  });
  // rows (i64, in range), y and the array before: the array with row i of y written to, or added to, rows[i]. Without
  // the array before, it is the output itself, which changes.
  add_operator(registry, "put_rows", [](Operator& op) {
    op.place = [](Placing& p) {
      p.letters("_,_...,_...->_...");
      p.local(local_extent<PutAttributes, &PutAttributes::shape>);
    };
    op.cost = put_rows_cost;
    op.min_inputs = 2;
    op.max_inputs = 3;
    op.key = 1;
    op.infer = infer_put_rows;
    op.needs = {{}, needs::input(0)};
    op.gradient = put_rows_gradient;
  });
}

NDArray checked_index(const char* who, const NDArray& index, std::int64_t size, const std::source_location& where) {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("index"); });
  if (!is_integer(index.checked(who, where).dtype())) {
    throw ArrayError(who, where, "an index is of integers, not " + std::string(name_of(index.dtype())));
  }
  return apply(row, {&index}, AxisAttributes{0, size, DType::i64}, {.where = where});
}

NDArray put_rows(const NDArray& x, const NDArray& rows, const NDArray& y, bool add) {
  return apply(put_row(), {&rows, &y, &x}, PutAttributes{x.shape(), add});
}

void put_rows_in_place(const NDArray& x, const NDArray& rows, const NDArray& y, bool add) {
  apply_into(put_row(), {&rows, &y}, PutAttributes{x.shape(), add},
             {.into = std::span(&x, 1), .updates = Updates::all()});
}

std::vector<std::int64_t> places_of_true(const NDArray& x, const std::source_location& where) {
  const std::vector<std::byte> bytes = x.to_bytes(where);
  std::vector<std::int64_t> places;
  with_type(x.dtype(), [&]<class T>() {
    const T* elements = reinterpret_cast<const T*>(bytes.data());
    for (std::int64_t i = 0; i < x.count(); ++i) {
      bool set = false;
      if constexpr (sizeof(T) == 2) {
        set = static_cast<float>(elements[i]) != 0;
      } else {
        set = elements[i] != T(0);
      }
      if (set) places.push_back(i);
    }
  });
  return places;
}

namespace {

/// The row-major numbers of the first `size` elements that are not 0 (i64, (size,)); where there are no more it is the
/// number of elements. Does not wait.
NDArray first_places_of_true(const NDArray& x, std::int64_t size) {
  const NDArray set = x.dtype() == DType::boolean ? x : not_equal(x, 0);
  return searchsorted(cumsum(flat(set)), arange(1, size + 1));
}

/// The size wanted, of rows of `columns` numbers.
std::int64_t size_given(const builtin::Composition& made, const PaddedOptions& options, int columns = 1) {
  if (*options.size < 0) made.fail("a size of " + std::to_string(*options.size));
  check_shape("size", {*options.size, std::max(columns, 1)}, DType::i64, made.where());
  return *options.size;
}

NDArray padded_nonzero(const builtin::Composition& made, const NDArray& x, const PaddedOptions& options) {
  const int rank = x.rank();
  const std::int64_t size = size_given(made, options, rank), n = x.count();
  if (rank == 0 || n == 0) return full({size, rank}, options.fill, DType::i64);
  const NDArray places = first_places_of_true(x, size), there = places < n;
  const NDArray fill = full({}, options.fill, DType::i64);
  const Dims strides = row_major(x.shape());
  std::vector<NDArray> columns;
  for (int i = 0; i < rank; ++i) {
    NDArray index = strides[i] == 1 ? places : floor_div(places, strides[i]);
    if (i > 0) index = remainder(index, x.shape()[i]);
    columns.push_back(where(there, index, fill));
  }
  return stack(columns, 1);
}

}  // namespace

NDArray nonzero(const Operand& x, const PaddedOptions& options) {
  const builtin::Composition made("nonzero", x);
  if (options.size) return padded_nonzero(made, x.array, options);
  builtin::check_may_wait("nonzero", x.where);
  const std::vector<std::int64_t> places = places_of_true(x.array, x.where);
  const Dims strides = row_major(x.array.shape());
  std::vector<std::int64_t> indices;
  indices.reserve(places.size() * strides.size());
  for (std::int64_t place : places) {
    for (const std::int64_t stride : strides) {
      indices.push_back(place / stride);
      place %= stride;
    }
  }
  return from(indices, {static_cast<std::int64_t>(places.size()), x.array.rank()}, x.where);
}

NDArray gather(const Operand& x, int axis, const Operand& index) {
  const builtin::Composition made("gather", x.where);
  axis = positive_axis("gather", x, axis);
  index.array.checked("gather", x.where);
  const NDArray numbers = element_numbers("gather", x, axis, index.array);
  return take_rows(flat(x.array), numbers).reshape(index.array.shape());
}

NDArray scatter(const Operand& x, int axis, const Operand& index, const Operand& source) {
  return scattered("scatter", x, axis, index, source, false);
}
NDArray scatter(const Operand& x, int axis, const Operand& index, const ScalarOperand& value) {
  const builtin::Composition made("scatter", x);
  return scattered("scatter", x, axis, index, full({}, value, x.array.dtype(), value.where), false);
}
NDArray scatter_add(const Operand& x, int axis, const Operand& index, const Operand& source) {
  return scattered("scatter_add", x, axis, index, source, true);
}

NDArray index_select(const Operand& x, int axis, const Operand& index) {
  const builtin::Composition made("index_select", x.where);
  axis = positive_axis("index_select", x, axis);
  const NDArray rows = checked_index("index_select", index.array, x.array.shape()[axis], x.where);
  if (rows.rank() != 1) throw ArrayError("index_select", x.where, "an index of shape " + to_string(rows.shape()));
  return take_rows(x.array.movedim(axis, 0), rows).movedim(0, axis);
}

NDArray index_add(const Operand& x, int axis, const Operand& index, const Operand& source) {
  const builtin::Composition made("index_add", x.where);
  axis = positive_axis("index_add", x, axis);
  const NDArray rows = checked_index("index_add", index.array, x.array.shape()[axis], x.where);
  const NDArray values = builtin::narrowed("index_add", source, x.array.dtype());
  Dims wanted = x.array.shape();
  if (rows.rank() == 1) wanted[axis] = rows.shape()[0];
  if (rows.rank() != 1 || !(values.shape() == wanted)) {
    throw ArrayError("index_add", x.where,
                     to_string(values.shape()) + " at an index of shape " + to_string(rows.shape()) + " for " +
                         to_string(x.array.shape()));
  }
  return put_rows(x.array.movedim(axis, 0), rows, values.movedim(axis, 0), true).movedim(0, axis);
}

NDArray take(const Operand& x, const Operand& index) {
  const builtin::Composition made("take", x.where);
  x.array.checked("take", x.where);
  const NDArray numbers = checked_index("take", index.array, x.array.count(), x.where);
  return take_rows(flat(x.array), flat(numbers)).reshape(index.array.shape());
}

NDArray masked_fill(const Operand& x, const Operand& mask, const ScalarOperand& value) {
  const builtin::Composition made("masked_fill", x.where);
  const DType dtype = mask.array.checked("masked_fill", x.where).dtype();
  if (dtype != DType::boolean) made.fail("a mask is bool, not " + std::string(name_of(dtype)));
  return where({mask.array, x.where}, value, x);
}

NDArray masked_select(const Operand& x, const Operand& mask, const PaddedOptions& options) {
  const builtin::Composition made("masked_select", x);
  if (mask.array.checked("masked_select", x.where).dtype() != DType::boolean) {
    made.fail("a mask is bool, not " + std::string(name_of(mask.array.dtype())));
  }
  const NDArray* const both[] = {&x.array, &mask.array};
  const Dims shape = Signature("masked_select", x.where, both, {}).broadcast();
  if (options.size) {
    const std::int64_t size = size_given(made, options), n = shape.count();
    if (n == 0) return full({size}, options.fill, x.array.dtype());
    const NDArray fill = full({}, options.fill, x.array.dtype());
    const NDArray places = first_places_of_true(mask.array.broadcast_to(shape), size);
    const NDArray taken = take_rows(flat(x.array.broadcast_to(shape)), minimum(places, n - 1));
    return where(places < n, taken, fill);
  }
  builtin::check_may_wait("masked_select", x.where);
  const std::vector<std::int64_t> places = places_of_true(mask.array.broadcast_to(shape), x.where);
  const NDArray numbers = from(places, {static_cast<std::int64_t>(places.size())}, x.where);
  return take_rows(flat(x.array.broadcast_to(shape)), numbers);
}

}  // namespace sluice
