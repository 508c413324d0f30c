// What batch_norm.cc shares with normalization.cc. Internal to operators/.
#pragma once

#include <cstdint>
#include <source_location>

#include "sluice/operators/composition.h"
#include "sluice/operators/normalize_rows.h"
#include "sluice/operators/registry.h"

namespace sluice::builtin {

/// The rows batch_norm and batch_norm_grad, for add_normalization_rows().
void add_batch_norm_rows(Registry& registry);

/// The row normalize_rows.
const Operator& normalizing_row();

/// One of the numbers of each row, (rows, 1).
NDArray statistic(const NDArray& statistics, std::int64_t rows, int RowStatistics<int>::*number,
                  const std::source_location& where);

/// The rows of a matrix, normalised by operators: for gradients of gradients.
struct NormalRows {
  NDArray normal, scale;
  bool centred;

  /// `statistics`: those of the rows, RowStatistics.
  NormalRows(const NDArray& x, const NDArray& statistics, double eps, bool with_mean,
             const std::source_location& where);
  /// That of x, from that of `normal`.
  NDArray gradient(const NDArray& of_normal) const;
};

/// The dtype in which statistics are computed.
DType wide_of(DType dtype);
/// Throws for dtypes that are not floating.
void check_floating(const Composition& made, const NDArray& x);
/// x in wide_of() its dtype. Throws for dtypes that are not floating.
NDArray wide(const Composition& made, const NDArray& x);
void check_shape_of(const Composition& made, const char* what, const NDArray& x, const Dims& wanted);
/// y * weight + bias, where they are, in the dtype that the program gave.
NDArray finished(NDArray y, const NDArray& weight, const NDArray& bias, DType dtype);
/// (channels,) as x (n, channels, ...) sees it; an empty handle stays empty.
NDArray by_channel(const NDArray& parameter, const NDArray& x);

}  // namespace sluice::builtin
