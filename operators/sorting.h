// Sorts, searches and counts. Negative axes count from the last. NaN comes after all numbers, in descending order too,
// and is equal to NaN. Throws ArrayError for wrong axes, shapes and dtypes.
#pragma once

#include <optional>

#include "sluice/operators/registry.h"
#include "sluice/operators/scan.h"

namespace sluice {

struct SortOptions {
  bool descending = false;
};
/// The elements along an axis in order, of any dtype. Equal elements keep their order, in descending order too.
NDArray sort(const Operand& x, int axis = -1, const SortOptions& options = {});
/// The places (i64) at which sort() finds its elements: take_along_axis(x, argsort(x, axis), axis) is sort(x, axis).
NDArray argsort(const Operand& x, int axis = -1, const SortOptions& options = {});
/// Both by one op.
ValuesAndIndices sort_with_indices(const Operand& x, int axis = -1, const SortOptions& options = {});

struct TopKOptions {
  bool largest = true;  ///< else the smallest
};
/// The k largest elements along an axis in order, and their places. Of equal ones the first are taken. 0 <= k <= the
/// axis's size.
ValuesAndIndices topk(const Operand& x, std::int64_t k, int axis = -1, const TopKOptions& options = {});

/// y[i, j] = x[i, index[i, j]] for the last axis, and likewise for others. x and index (i64, i32 or u8) have one rank;
/// beside the axis their sizes broadcast. The op fails if an index is not in [0, size).
NDArray take_along_axis(const Operand& x, const Operand& index, int axis = -1);

struct SearchOptions {
  bool right = false;  ///< behind equal elements; else before them
};
/// For each value the place (i64) in `sorted` at which it would be inserted to keep the order, which is ascending.
/// `sorted` is (n,), and values have any shape; or it is (..., n) and values are (..., m), with the same sizes before
/// the last. Dtypes are converted to one.
NDArray searchsorted(const Operand& sorted, const Operand& values, const SearchOptions& options = {});

/// How often each of 0, 1, ..., size - 1 is in x (i64, i32 or u8, any shape): (size,), in i64. The op fails if a number
/// is outside. Without a size it is the largest number and 1, for which the call waits (waiting.h).
NDArray bincount(const Operand& x, std::optional<std::int64_t> size = {});
/// The sums of the elements of `weights`, of a floating dtype and x's shape, that stand where x has 0, 1, ...: (size,),
/// of the dtype of weights. They are summed in f64, in index order. Gradients flow to weights.
NDArray bincount(const Operand& x, const Operand& weights, std::optional<std::int64_t> size = {});

struct Histogram {
  NDArray counts;  ///< (bins,), i64
  NDArray edges;   ///< (bins + 1,), of x's dtype
};
/// How many elements of x (floating, any shape) are in each of `bins` equal parts of [low, high]. A part has its lower
/// edge, and the last its upper edge too; what is outside, and NaN, is not counted.
Histogram histogram(const Operand& x, std::int64_t bins, double low, double high);

struct Unique {
  NDArray values;   ///< (n,): each element once, ascending
  NDArray inverse;  ///< of x's shape, i64: values at inverse is x
  NDArray counts;   ///< (n,), i64
};
struct UniqueOptions {
  std::optional<std::int64_t> size = {};  ///< of values and counts, 0 or more; empty: as many as there are
  std::optional<Scalar> fill = {};  ///< stands behind the values, up to the size; empty: the smallest element, or 0
};
/// The different elements of x. The call waits, because n depends on x's values, throws their poison, and is refused in
/// captures and in stages of pipelines. With a size it does not wait, and works there too: the largest elements may be
/// left out, and then have numbers of `size` and above in the inverse; values that are missing are `fill`, a number
/// that x's dtype holds, and have a count of 0. No gradient flows through it.
Unique unique(const Operand& x, const UniqueOptions& options = {});

}  // namespace sluice
