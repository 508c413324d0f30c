// x(rows), x(mask): reads and writes by indices that are arrays.
#include <algorithm>

#include "sluice/operators/composition.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/indexing.h"
#include "sluice/operators/operand_dtypes.h"
#include "sluice/operators/put_rows.h"
#include "sluice/operators/shaping.h"
#include "sluice/operators/waiting.h"

namespace sluice {
namespace {

/// The indices of one call, made ready. The axes that arrays index are brought to the front of `front`, and joined with
/// each other.
struct Resolved {
  NDArray front;       ///< the view by all other indices: indexed axes, then the axes that stay
  int indexed = 0;     ///< how many axes arrays index
  int place = 0;       ///< where the shape of the index stands in the result's
  Dims index, result;  ///< the shapes of the index, and of the result
  NDArray rows;        ///< numbers of rows of flat()

  Dims flat_shape(std::int64_t n) const {
    Dims shape{n};
    for (int i = indexed; i < front.rank(); ++i) shape.push_back(front.shape()[i]);
    return shape;
  }
  /// The indexed axes as one; a view of the array where its strides allow it.
  NDArray flat() const {
    std::int64_t n = 1;
    for (int i = 0; i < indexed; ++i) n *= front.shape()[i];
    return front.reshape(flat_shape(n));
  }
  /// The axes' order that brings the index's shape from the front to its place, or back.
  Dims order(bool to_front) const {
    const int n = index.rank();
    Dims axes;
    for (int i = 0; i < result.rank(); ++i) {
      const bool inside = i >= place && i < place + n;
      if (!to_front) axes.push_back(inside ? i - place : i < place ? i + n : i);
      if (to_front) axes.push_back(i < n ? i + place : i < n + place ? i - n : i);
    }
    return axes;
  }
};

[[noreturn]] void fail(const NDArray& x, const std::source_location& where, const std::string& why) {
  throw ArrayError("index", where, to_string(x.shape()) + ": " + why);
}

bool is_mask(const ArrayIndex& i) { return i.array.defined() && i.array.array()->dtype() == DType::boolean; }

/// How many axes an index takes.
int axes_of(const ArrayIndex& i) {
  if (i.is_array) return is_mask(i) ? i.array.rank() : 1;
  return i.index.kind == Index::Kind::new_axis || i.index.kind == Index::Kind::the_rest ? 0 : 1;
}

Dims common_shape(const NDArray& x, const std::vector<NDArray>& arrays, const std::source_location& where) {
  Dims shape;
  for (const NDArray& a : arrays) {
    Dims wide = a.rank() > shape.rank() ? a.shape() : shape;
    const Dims& narrow = a.rank() > shape.rank() ? shape : a.shape();
    const int added = wide.rank() - narrow.rank();
    for (int i = 0; i < narrow.rank(); ++i) {
      if (wide[added + i] == 1) {
        wide[added + i] = narrow[i];
      } else if (narrow[i] != 1 && narrow[i] != wide[added + i]) {
        fail(x, where, "indices of shapes " + to_string(shape) + " and " + to_string(a.shape()) + " do not broadcast");
      }
    }
    shape = wide;
  }
  return shape;
}

Resolved resolve(const NDArray& x, const std::vector<ArrayIndex>& indices, const std::source_location& where) {
  x.checked("index", where);
  int taken = 0, ellipses = 0;
  for (const ArrayIndex& i : indices) {
    if (i.is_array) i.array.checked("index", where);
    taken += axes_of(i);
    ellipses += !i.is_array && i.index.kind == Index::Kind::the_rest;
  }
  if (taken > x.rank()) fail(x, where, "indices for " + std::to_string(taken) + " axes");
  if (ellipses > 1) fail(x, where, "more than one ellipsis");
  // A view by all indices that are no arrays, and the arrays with their axes there.
  std::vector<Index> basic;
  std::vector<NDArray> arrays;
  std::vector<int> axes;
  int from = 0, to = 0;  // axes of x, and of the view
  int last_advanced = -1;
  bool split = false;  // positions and arrays do not stand side by side
  for (std::size_t k = 0; k < indices.size(); ++k) {
    const ArrayIndex& i = indices[k];
    const bool position = !i.is_array && i.index.kind == Index::Kind::position;
    if (i.is_array || position) {
      split = split || (last_advanced >= 0 && last_advanced != static_cast<int>(k) - 1);
      last_advanced = static_cast<int>(k);
    }
    if (!i.is_array) {
      basic.push_back(i.index);
      const bool rest = i.index.kind == Index::Kind::the_rest;
      from += rest ? x.rank() - taken : axes_of(i);
      to += rest ? x.rank() - taken : position ? 0 : 1;
      continue;
    }
    if (!(i.array.device() == x.device())) {
      fail(x, where, "an index on " + to_string(i.array.device()) + ", not on " + to_string(x.device()));
    }
    if (!is_mask(i) && !is_integer(i.array.dtype())) {
      fail(x, where, "an index is of integers or bool, not " + std::string(name_of(i.array.dtype())));
    }
    if (is_mask(i)) {
      if (i.array.rank() == 0) fail(x, where, "a mask without axes; use where");
      for (int d = 0; d < i.array.rank(); ++d) {
        if (i.array.shape()[d] == x.shape()[from + d]) continue;
        fail(x, where, "a mask of " + to_string(i.array.shape()) + " from axis " + std::to_string(from));
      }
      builtin::check_may_wait("index", where);
      const NDArray places = nonzero({i.array, where});
      for (int d = 0; d < i.array.rank(); ++d) arrays.push_back(places(all, d));
    } else {
      arrays.push_back(i.array);
    }
    for (int d = 0; d < axes_of(i); ++d) {
      basic.emplace_back(all);
      axes.push_back(to++);
      ++from;
    }
  }
  for (std::size_t k = 1; k < axes.size(); ++k) {
    if (axes[k] != axes[k - 1] + 1) fail(x, where, "index arrays must stand side by side; permute the axes first");
  }
  if (split && axes[0] > 0) {
    fail(x, where, "a position must stand beside the index arrays; index by it first");
  }
  const NDArray view = x.index_view(basic, where);
  Resolved r;
  r.place = axes[0];
  r.indexed = static_cast<int>(axes.size());
  r.index = common_shape(x, arrays, where);
  if (view.rank() - r.indexed + r.index.rank() > kMaxRank) {
    fail(x, where, "a result of more than " + std::to_string(kMaxRank) + " axes");
  }
  Dims order;
  for (int i = 0; i < r.indexed; ++i) order.push_back(r.place + i);
  for (int i = 0; i < view.rank(); ++i) {
    if (i == r.place)
      for (const std::int64_t n : r.index) r.result.push_back(n);
    if (i >= r.place && i < r.place + r.indexed) continue;
    order.push_back(i);
    r.result.push_back(view.shape()[i]);
  }
  r.front = view.permute(order, where);
  check_shape("index", r.result, x.dtype(), where);
  for (int i = 0; i < r.indexed; ++i) {
    const std::int64_t size = r.front.shape()[i];
    const NDArray numbers = checked_index("index", arrays[static_cast<std::size_t>(i)], size, where);
    r.rows = i == 0 ? numbers : r.rows * size + numbers;
  }
  r.rows = r.rows.reshape({r.index.count()});
  return r;
}

/// True for x(mask): then a write of one number needs no places.
bool one_mask(const NDArray& x, const std::vector<ArrayIndex>& indices) {
  if (indices.size() != 1 || !is_mask(indices[0]) || !x.defined()) return false;
  const NDArray& mask = indices[0].array;
  return mask.rank() > 0 && mask.rank() <= x.rank() &&
         std::equal(mask.shape().begin(), mask.shape().end(), x.shape().begin());
}

/// Writes y where the mask holds. Throws ArrayError where x would have to widen it.
void write_masked(const NDArray& x, const NDArray& mask, const NDArray& y, const std::source_location& where) {
  Dims shape = mask.shape();
  while (shape.rank() < x.rank()) shape.push_back(1);
  const NDArray values = builtin::narrowed("index", {y, where}, x.dtype());
  x.assign({sluice::where({mask.reshape(shape), where}, values, x), where});
}

bool is_recorded(const NDArray& x, const NDArray& y) { return grad_mode() && (x.requires_grad() || y.requires_grad()); }

void write(const NDArray& x, const std::vector<ArrayIndex>& indices, const Operand& y, bool add,
           const std::source_location& where) {
  NDArray values = builtin::narrowed("index", y, x.checked("index", where).dtype());
  if (!(values.device() == x.device())) {
    if (add) {  // as for x += y; `=` copies from any device, as assign() does
      throw ArrayError(
          "index", where,
          "arrays on " + to_string(x.device()) + " and " + to_string(values.device()) + "; use to(device)");
    }
    values = values.to(x.device());
  }
  if (values.count() == 1 && one_mask(x, indices)) {
    values = values.reshape({});
    return write_masked(x, indices[0].array, add ? x + values : values, where);
  }
  const Resolved r = resolve(x, indices, where);
  values = values.broadcast_to(r.result, where).permute(r.order(true)).reshape(r.flat_shape(r.index.count()));
  const NDArray flat = r.flat();
  if (flat.same_array(x) && flat.is_contiguous() && !is_recorded(x, y.array)) {
    return put_rows_in_place(flat, r.rows, values, add);
  }
  r.front.assign({put_rows(flat, r.rows, values, add).reshape(r.front.shape()), where});
}

NDArray number_for(const NDArray& x, const ScalarOperand& value, const std::source_location& where) {
  const DType dtype = x.checked("index", where).dtype();
  if (!value.fits(dtype)) {
    throw ArrayError("index", where,
                     "the number " + value.text() + " beside " + std::string(name_of(dtype)) + "; use to(dtype)");
  }
  const DeviceScope on(x.device());
  return full({}, value, dtype, where);
}

}  // namespace

NDArray IndexedArray::get() const {
  const builtin::Composition made("index", where_);
  const Resolved r = resolve(x_, indices_, where_);
  Dims shape = r.index;
  for (int i = r.indexed; i < r.front.rank(); ++i) shape.push_back(r.front.shape()[i]);
  return take_rows(r.flat(), r.rows).reshape(shape).permute(r.order(false));
}

Operand::Operand(IndexedArray&& a, std::source_location w) : array(a.value_), where(w) { a.value_ = a.get(); }

void IndexedArray::operator=(const Operand& y) && {
  const builtin::Composition made("index", where_);
  write(x_, indices_, y, false, where_);
}
void IndexedArray::operator=(const ScalarOperand& y) && {
  const builtin::Composition made("index", where_);
  write(x_, indices_, number_for(x_, y, where_), false, where_);
}
void IndexedArray::operator+=(const Operand& y) && {
  const builtin::Composition made("index", where_);
  write(x_, indices_, y, true, where_);
}
void IndexedArray::operator+=(const ScalarOperand& y) && {
  const builtin::Composition made("index", where_);
  write(x_, indices_, number_for(x_, y, where_), true, where_);
}
void IndexedArray::operator-=(const Operand& y) && {
  const builtin::Composition made("index", where_);
  write(x_, indices_, neg(builtin::narrowed("index", y, x_.dtype(where_))), true, where_);
}
void IndexedArray::operator-=(const ScalarOperand& y) && {
  const builtin::Composition made("index", where_);
  write(x_, indices_, neg(number_for(x_, y, where_)), true, where_);
}
void IndexedArray::operator*=(const Operand& y) && {
  const builtin::Composition made("index", where_);
  if (y.array.defined() && y.array.count() == 1 && one_mask(x_, indices_)) {
    return write_masked(x_, indices_[0].array, x_ * y.array.reshape({}), where_);
  }
  write(x_, indices_, get() * y, false, where_);
}
void IndexedArray::operator*=(const ScalarOperand& y) && {
  const builtin::Composition made("index", where_);
  if (one_mask(x_, indices_)) return write_masked(x_, indices_[0].array, x_ * y, where_);
  write(x_, indices_, get() * y, false, where_);
}
void IndexedArray::operator/=(const Operand& y) && {
  const builtin::Composition made("index", where_);
  if (y.array.defined() && y.array.count() == 1 && one_mask(x_, indices_)) {
    return write_masked(x_, indices_[0].array, x_ / y.array.reshape({}), where_);
  }
  write(x_, indices_, get() / y, false, where_);
}
void IndexedArray::operator/=(const ScalarOperand& y) && {
  const builtin::Composition made("index", where_);
  if (one_mask(x_, indices_)) return write_masked(x_, indices_[0].array, x_ / y, where_);
  write(x_, indices_, get() / y, false, where_);
}

}  // namespace sluice
