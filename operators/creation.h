// New arrays, on the device of the thread's scope; those of *_like, on the device of x. A call pushes one op, or a few.
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
/// Arrays of x's shape, dtype and device, or of another dtype. empty_like pushes nothing.
NDArray zeros_like(const Operand& x);
NDArray ones_like(const Operand& x);
NDArray zeros_like(const Operand& x, DType dtype);
NDArray ones_like(const Operand& x, DType dtype);
NDArray full_like(const Operand& x, const Scalar& value, std::optional<DType> dtype = {});
NDArray empty_like(const Operand& x, std::optional<DType> dtype = {});
/// n numbers of a floating dtype at equal distances, the first `begin` and the last `end`: shape (n,). They are
/// computed in f64.
NDArray linspace(double begin, double end, std::int64_t n, DType dtype = DType::f32,
                 std::source_location where = std::source_location::current());
/// 1 on the diagonal of a matrix of n rows and n or m columns, else 0.
NDArray eye(std::int64_t n, DType dtype = DType::f32, std::source_location where = std::source_location::current());
NDArray eye(std::int64_t n, std::int64_t m, DType dtype = DType::f32,
            std::source_location where = std::source_location::current());

/// uniform is in [low, high), normal has the mean and standard deviation; both are of floating dtypes. In f16 and bf16
/// a number is that of f32, rounded; where a rounding would give `high`, uniform gives the number below it. Each takes
/// one draw of the stream at the call. An element depends on the draw and on its row-major index plus `first`, so it is
/// the same on every device. For an array that is a part of a larger one, `first` is the index of its first element
/// there: so the numbers do not depend on how the larger array is split. Throws ArrayError for low > high or bounds
/// that the dtype does not hold, and for a deviation below 0.
NDArray uniform(const Dims& shape, RandomStream& stream, double low = 0, double high = 1, DType dtype = DType::f32,
                std::uint64_t first = 0, std::source_location where = std::source_location::current());
NDArray normal(const Dims& shape, RandomStream& stream, double mean = 0, double deviation = 1, DType dtype = DType::f32,
               std::uint64_t first = 0, std::source_location where = std::source_location::current());

// Each of these takes one draw of the stream too.
struct TruncatedNormalOptions {
  double mean = 0, deviation = 1;  ///< of the normal distribution before it is cut
  double low = -2, high = 2;       ///< the bounds, which are not relative to mean and deviation; may be infinite
};
/// Numbers of a normal distribution, of which only the part in [low, high] is drawn from. Of floating dtypes; computed
/// in f64 by the inverse of the distribution, then rounded, so that they are within the bounds as the dtype rounds
/// them. `first` is as in uniform. Devices differ by the roundings of their libraries. Throws ArrayError for low >=
/// high, for a deviation that is not above 0, for bounds that are both more than 36 deviations above or below the mean,
/// and for bounds so near each other that f64 has no probability between them.
NDArray truncated_normal(const Dims& shape, RandomStream& stream, const TruncatedNormalOptions& options = {},
                         DType dtype = DType::f32, std::uint64_t first = 0,
                         std::source_location where = std::source_location::current());
/// Integers in [low, high), of an integer dtype that can hold them all.
NDArray randint(const Dims& shape, RandomStream& stream, std::int64_t low, std::int64_t high, DType dtype = DType::i64,
                std::source_location where = std::source_location::current());
/// true with this probability, or with those that an array of a floating dtype has, element for element. bool.
NDArray bernoulli(const Dims& shape, RandomStream& stream, double probability,
                  std::source_location where = std::source_location::current());
/// Probabilities outside of [0, 1], and NaN, fail the op, and poison the result.
NDArray bernoulli(const Operand& probabilities, RandomStream& stream);
/// The numbers 0 to n - 1 in a random order: i64, of shape (n,). They are made at the call, on the calling thread.
NDArray randperm(std::int64_t n, RandomStream& stream, std::source_location where = std::source_location::current());
/// For each row of logits, along the last axis, one of its indices (i64), with the probabilities softmax(logits). It is
/// the index of the largest of logits - log(-log(u)), computed in f64, so that devices differ only where two of these
/// numbers are within their libraries' roundings.
NDArray categorical(const Operand& logits, RandomStream& stream);

}  // namespace sluice
