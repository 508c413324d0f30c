// New arrays. The device is that of the thread's scope unless given; each pushes one op, except *_like's shapes.
#pragma once

#include "sluice/operators/registry.h"
#include "sluice/resources/random.h"

namespace sluice {

NDArray zeros(const Dims& shape, DType dtype = DType::f32,
              std::source_location where = std::source_location::current());
NDArray ones(const Dims& shape, DType dtype = DType::f32, std::source_location where = std::source_location::current());
NDArray full(const Dims& shape, const Scalar& value, DType dtype = DType::f32,
             std::source_location where = std::source_location::current());
/// begin, begin + step, ... below end (above, for a negative step): shape (n,).
NDArray arange(const Scalar& begin, const Scalar& end, const Scalar& step = 1, DType dtype = DType::i64,
               std::source_location where = std::source_location::current());
/// Of x's shape, dtype and device.
NDArray zeros_like(const Operand& x);
NDArray ones_like(const Operand& x);

/// Uniform in [low, high): f32 or f64. Normal with the mean and standard deviation. Both take one draw of the stream at
/// the call; an element's number depends on the draw and on its row-major index plus `first` (the index of the first
/// element in a larger array that this one is a part of), so it is the same on every device and split.
NDArray uniform(const Dims& shape, RandomStream& stream, double low = 0, double high = 1, DType dtype = DType::f32,
                std::uint64_t first = 0, std::source_location where = std::source_location::current());
NDArray normal(const Dims& shape, RandomStream& stream, double mean = 0, double deviation = 1, DType dtype = DType::f32,
               std::uint64_t first = 0, std::source_location where = std::source_location::current());

}  // namespace sluice
