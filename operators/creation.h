// New arrays, on the device of the thread's scope; those of *_like, on the device of x. Each call pushes one op.
#pragma once

#include <optional>

#include "sluice/operators/registry.h"
#include "sluice/resources/random.h"

namespace sluice {

NDArray zeros(const Dims& shape, DType dtype = DType::f32,
              std::source_location where = std::source_location::current());
NDArray ones(const Dims& shape, DType dtype = DType::f32, std::source_location where = std::source_location::current());
/// Throws ArrayError for a number that the dtype cannot hold (Scalar::fits).
NDArray full(const Dims& shape, const Scalar& value, DType dtype = DType::f32,
             std::source_location where = std::source_location::current());
/// begin, begin + step, ... below end (above, for a negative step): shape (n,). Without a dtype, i64 for integers and
/// f32 if one of the numbers is real. Throws ArrayError where the dtype cannot hold begin and step.
NDArray arange(const Scalar& begin, const Scalar& end, const Scalar& step = 1, std::optional<DType> dtype = {},
               std::source_location where = std::source_location::current());
/// 0, 1, ... below end.
NDArray arange(const Scalar& end, std::source_location where = std::source_location::current());
/// Arrays of x's shape, dtype and device.
NDArray zeros_like(const Operand& x);
NDArray ones_like(const Operand& x);

/// uniform is in [low, high), normal has the mean and standard deviation; both are of floating dtypes. In f16 and bf16
/// a number is that of f32, rounded, so that uniform may give `high` there. Each takes one draw of the stream at the
/// call. An element depends on the draw and on its row-major index plus `first`, so it is the same on every device. For
/// an array that is a part of a larger one, `first` is the index of its first element there: so the numbers do not
/// depend on how the larger array is split.
NDArray uniform(const Dims& shape, RandomStream& stream, double low = 0, double high = 1, DType dtype = DType::f32,
                std::uint64_t first = 0, std::source_location where = std::source_location::current());
NDArray normal(const Dims& shape, RandomStream& stream, double mean = 0, double deviation = 1, DType dtype = DType::f32,
               std::uint64_t first = 0, std::source_location where = std::source_location::current());

}  // namespace sluice
