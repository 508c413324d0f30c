// Functions that cut, join, repeat and pad arrays. They are made of views and of other operators.
#include "sluice/operators/rearranging.h"

#include <algorithm>

#include "sluice/ndarray/owner.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/indexing.h"
#include "sluice/operators/shaping.h"

namespace sluice {
namespace {

[[noreturn]] void fail(const char* who, const Operand& x, const std::string& why) {
  throw ArrayError(who, x.where, to_string(x.array.shape()) + ": " + why);
}

int positive_axis(const char* who, const Operand& x, int axis) {
  x.array.checked(who, x.where);
  const int at = axis < 0 ? axis + x.array.rank() : axis;
  if (at < 0 || at >= x.array.rank()) fail(who, x, "no axis " + std::to_string(axis));
  return at;
}

/// x along an axis `times` times: all of it in a row, or each element.
NDArray repeated(const char* who, const Operand& x, std::int64_t times, int axis, bool each) {
  if (times < 0) fail(who, x, std::to_string(times) + " times");
  Dims shape = x.array.shape();
  const std::int64_t n = shape[axis];
  if (__builtin_mul_overflow(n, times, &shape[axis])) fail(who, x, "too many elements");
  check_shape(who, shape, x.array.dtype(), x.where);
  std::int64_t before = 1, after = 1;
  for (int i = 0; i < axis; ++i) before *= shape[i];
  for (int i = axis + 1; i < shape.rank(); ++i) after *= shape[i];
  const NDArray parts = x.array.reshape({before, each ? n : 1, each ? 1 : n, after});
  const NDArray y = parts.broadcast_to({before, each ? n : times, each ? times : n, after}).reshape(shape);
  // An axis of one element would be a view with a stride of 0.
  return y.same_array(x.array) || detail::is_owned_view(y) ? y.copy() : y;
}

NDArray triangle(const char* who, const Operand& x, std::int64_t diagonal, bool lower) {
  const builtin::Composition made(who, x.where);
  x.array.checked(who, x.where);
  if (x.array.rank() < 2) fail(who, x, "no matrix");
  const DeviceScope on(x.array.device());
  const NDArray row = arange(0, x.array.size(-2)).unsqueeze(1), column = arange(0, x.array.size(-1));
  const NDArray distance = column - row;
  return where(lower ? distance <= diagonal : distance >= diagonal, x.array, 0);
}

}  // namespace

std::vector<NDArray> split(const Operand& x, const std::vector<std::int64_t>& sizes, int axis) {
  axis = positive_axis("split", x, axis);
  std::int64_t left = x.array.shape()[axis];
  for (const std::int64_t n : sizes) {
    if (n < 0 || n > left) fail("split", x, "the parts do not add up to axis " + std::to_string(axis));
    left -= n;
  }
  if (left != 0) fail("split", x, "the parts do not add up to axis " + std::to_string(axis));
  std::vector<NDArray> parts;
  std::int64_t at = 0;
  for (const std::int64_t n : sizes) {
    parts.push_back(x.array.narrow(axis, at, at + n, x.where));
    at += n;
  }
  return parts;
}

std::vector<NDArray> split(const Operand& x, std::int64_t size, int axis) {
  axis = positive_axis("split", x, axis);
  if (size < 1) fail("split", x, "parts of " + std::to_string(size) + " elements");
  const std::int64_t n = x.array.shape()[axis];
  detail::check_host_list("split", n / size, sizeof(NDArray), x.where);
  std::vector<NDArray> parts;
  for (std::int64_t at = 0; at < n || parts.empty(); at += std::min(size, n - at)) {
    parts.push_back(x.array.narrow(axis, at, at + std::min(size, n - at), x.where));
    if (n == 0) break;
  }
  return parts;
}

std::vector<NDArray> chunk(const Operand& x, std::int64_t n, int axis) {
  axis = positive_axis("chunk", x, axis);
  if (n < 1) fail("chunk", x, std::to_string(n) + " parts");
  const std::int64_t size = x.array.shape()[axis];
  return split(x, std::max<std::int64_t>(1, size / n + (size % n != 0)), axis);
}

namespace {

/// For each place of a padded axis the element of the axis of n that stands there; the first n has `before` places
/// before it, and `size` is that of all.
NDArray padded_from(std::int64_t before, std::int64_t size, std::int64_t n, PadMode mode) {
  const NDArray k = arange(-before, size - before);
  if (mode == PadMode::wrap) return remainder(k, n);
  if (mode == PadMode::edge) return minimum(maximum(k, 0), n - 1);
  return (n - 1) - abs((n - 1) - abs(k));
}

/// Of an array of an owner, whose parts are not one memory with what is around them.
NDArray padded_apart(const Operand& x, const std::vector<Padding>& sizes, const Scalar& value) {
  NDArray y = x.array;
  for (int i = 0; i < y.rank(); ++i) {
    std::vector<NDArray> pieces{y};
    const auto add = [&](std::int64_t n, auto at) {
      if (n == 0) return;
      Spec spec = y.spec();
      spec.shape[i] = n;
      pieces.insert(at, detail::ask_constant(x.array, spec, value, x.where));
    };
    add(sizes[static_cast<std::size_t>(i)].before, pieces.begin());
    add(sizes[static_cast<std::size_t>(i)].after, pieces.end());
    if (pieces.size() > 1) y = concat(pieces, i);
  }
  return y.same_array(x.array) ? y.copy() : y;
}

}  // namespace

NDArray pad(const Operand& x, const std::vector<Padding>& sizes, const PadOptions& options) {
  const builtin::Composition made("pad", x.where);
  x.array.checked("pad", x.where);
  if (static_cast<int>(sizes.size()) != x.array.rank()) {
    fail("pad", x, std::to_string(sizes.size()) + " pairs of sizes; one for each axis is wanted");
  }
  Dims shape = x.array.shape();
  for (int i = 0; i < shape.rank(); ++i) {
    const auto [before, after] = sizes[static_cast<std::size_t>(i)];
    const std::int64_t n = shape[i];
    if (before < 0 || after < 0) fail("pad", x, "a negative size on axis " + std::to_string(i) + "; use a slice");
    if (__builtin_add_overflow(shape[i], before, &shape[i]) || __builtin_add_overflow(shape[i], after, &shape[i])) {
      fail("pad", x, "too many elements");
    }
    if (n == 0 && shape[i] > 0) {
      if (options.mode == PadMode::edge) fail("pad", x, "no edge");
      if (options.mode == PadMode::wrap) fail("pad", x, "nothing to repeat");
    }
    if (options.mode == PadMode::reflect && (std::max(before, after) >= n && shape[i] > n)) {
      fail("pad", x, "axis " + std::to_string(i) + " is too short to be reflected");
    }
  }
  check_shape("pad", shape, x.array.dtype(), x.where);
  if (options.mode == PadMode::constant) {
    if (!options.value.fits(x.array.dtype())) {
      fail("pad", x, "the number " + options.value.text() + " is none of " + std::string(name_of(x.array.dtype())));
    }
    if (x.array.array()->kind() == Array::Kind::owned) return padded_apart(x, sizes, options.value);
    const DeviceScope on(x.array.device());
    const NDArray result = full(shape, options.value, x.array.dtype());
    NDArray inside = result;
    for (int i = 0; i < shape.rank(); ++i) {
      const std::int64_t before = sizes[static_cast<std::size_t>(i)].before;
      inside = inside.narrow(i, before, before + x.array.shape()[i]);
    }
    inside.assign(x);
    return result;
  }
  NDArray y = x.array;
  const DeviceScope on(x.array.device());
  for (int i = 0; i < shape.rank(); ++i) {
    const std::int64_t n = y.shape()[i], before = sizes[static_cast<std::size_t>(i)].before;
    if (shape[i] == n) continue;
    y = index_select(y, i, padded_from(before, shape[i], n, options.mode));
  }
  return y.same_array(x.array) ? y.copy() : y.contiguous();
}

NDArray roll(const Operand& x, std::int64_t shift, int axis) {
  const builtin::Composition made("roll", x.where);
  axis = positive_axis("roll", x, axis);
  const std::int64_t n = x.array.shape()[axis], first = n == 0 ? 0 : (n - (shift % n + n) % n) % n;
  return concat({x.array.narrow(axis, first, n), x.array.narrow(axis, 0, first)}, axis);
}

NDArray tile(const Operand& x, const Dims& times) {
  const builtin::Composition made("tile", x.where);
  NDArray y = x.array;
  y.checked("tile", x.where);
  if (times.too_long()) made.fail(to_string(x.array.shape()) + ": " + to_string(times) + " for an array's axes");
  while (y.rank() < times.rank()) y = y.unsqueeze(0);
  const int added = y.rank() - times.rank();
  for (int i = 0; i < times.rank(); ++i) {
    if (times[i] != 1) y = repeated("tile", {y, x.where}, times[i], added + i, false);
  }
  return y.same_array(x.array) || detail::is_owned_view(y) ? y.copy() : y;
}

NDArray repeat(const Operand& x, std::int64_t times, int axis) {
  const builtin::Composition made("repeat", x.where);
  axis = positive_axis("repeat", x, axis);
  return times == 1 ? x.array.copy() : repeated("repeat", x, times, axis, true);
}

std::vector<NDArray> meshgrid(const NDArrays& arrays, std::source_location where) {
  Dims shape;
  for (const NDArray& x : arrays) {
    x.checked("meshgrid", where);
    if (x.rank() != 1) throw ArrayError("meshgrid", where, to_string(x.shape()) + ": arrays of one axis are wanted");
    if (shape.rank() == kMaxRank) {
      throw ArrayError("meshgrid", where, "more than " + std::to_string(kMaxRank) + " arrays");
    }
    shape.push_back(x.shape()[0]);
  }
  std::vector<NDArray> grids;
  for (const NDArray& x : arrays) {
    const int axis = static_cast<int>(grids.size());
    NDArray grid = x;
    for (int i = axis + 1; i < shape.rank(); ++i) grid = grid.unsqueeze(-1);
    grids.push_back(grid.broadcast_to(shape, where));
  }
  return grids;
}

NDArray tril(const Operand& x, std::int64_t diagonal) { return triangle("tril", x, diagonal, true); }
NDArray triu(const Operand& x, std::int64_t diagonal) { return triangle("triu", x, diagonal, false); }

}  // namespace sluice
