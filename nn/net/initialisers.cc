#include "sluice/nn/net/initialisers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "sluice/engine/number_text.h"
#include "sluice/operators/operators.h"

namespace sluice::nn {
namespace {

std::int64_t product(const Dims& shape, int from) {
  std::int64_t n = 1;
  for (int i = from; i < shape.rank(); ++i) n = detail::times(n, shape[i]);
  return n;
}
std::int64_t inputs_of(const Dims& shape) { return shape.rank() > 0 ? product(shape, 1) : 1; }
std::int64_t outputs_of(const Dims& shape) { return shape.rank() > 0 ? detail::times(shape[0], product(shape, 2)) : 1; }

void require(bool fine, const char* function, const std::string& what) {
  if (!fine) throw UsageError("[nn::" + std::string(function) + "] " + what);
}

}  // namespace

std::int64_t detail::times(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (!__builtin_mul_overflow(a, b, &product)) return product;
  using Limits = std::numeric_limits<std::int64_t>;
  return (a < 0) == (b < 0) ? Limits::max() : Limits::min();
}

Init constant(double value) {
  return [value](const Dims& shape, DType dtype, RandomStream&) { return full(shape, value, dtype); };
}

Init normal(double deviation, double mean) {
  require(deviation >= 0, "normal", "the deviation is " + general_text(deviation, 6) + ", which is negative");
  return [=](const Dims& shape, DType dtype, RandomStream& stream) {
    return sluice::normal(shape, stream, mean, deviation, dtype);
  };
}

Init uniform(double low, double high) {
  require(low <= high, "uniform", "from " + general_text(low, 6) + " to " + general_text(high, 6));
  return [=](const Dims& shape, DType dtype, RandomStream& stream) {
    return sluice::uniform(shape, stream, low, high, dtype);
  };
}

Init truncated_normal(double deviation, double cut) {
  require(deviation > 0 && cut > 0, "truncated_normal",
          "the deviation is " + general_text(deviation, 6) + ", the cut " + general_text(cut, 6) +
              ": both must be above 0");
  return [=](const Dims& shape, DType dtype, RandomStream& stream) {
    return sluice::truncated_normal(
        shape, stream, {.mean = 0, .deviation = deviation, .low = -cut * deviation, .high = cut * deviation}, dtype);
  };
}

Init fan_in(std::int64_t n, std::source_location where) {
  if (n < 0) throw ArrayError("nn::fan_in", where, std::to_string(n) + " inputs");
  return [n](const Dims& shape, DType dtype, RandomStream& stream) {
    const double bound = 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(1, n > 0 ? n : inputs_of(shape))));
    return sluice::uniform(shape, stream, -bound, bound, dtype);
  };
}

Init fan_in(const Slot& weight) { return fan_in(std::max<std::int64_t>(0, inputs_of(weight.shape()))); }

Init kaiming() {
  return [](const Dims& shape, DType dtype, RandomStream& stream) {
    const double inputs = static_cast<double>(std::max<std::int64_t>(1, inputs_of(shape)));
    return sluice::normal(shape, stream, 0, std::sqrt(2 / inputs), dtype);
  };
}

Init xavier(double gain) {
  return [gain](const Dims& shape, DType dtype, RandomStream& stream) {
    const double both = static_cast<double>(inputs_of(shape)) + static_cast<double>(outputs_of(shape));
    const double bound = std::abs(gain) * std::sqrt(6 / std::max(1.0, both));
    return sluice::uniform(shape, stream, -bound, bound, dtype);
  };
}

Init orthogonal(double gain) {
  return [gain](const Dims& shape, DType dtype, RandomStream& stream) {
    require(shape.rank() >= 2, "orthogonal", "a shape " + to_string(shape) + " has no rows and columns");
    const std::int64_t rows = shape[0], columns = product(shape, 1);
    const bool wide = rows < columns;
    // The decomposition of a random matrix, with the signs of r's diagonal taken out, is uniform among all (Mezzadri,
    // How to generate random matrices from the classical compact groups, 2007).
    const Device device = current_scope().device;
    const DeviceScope host(cpu(0));  // decompositions have no kernels elsewhere
    const NDArray draw = sluice::normal({wide ? columns : rows, wide ? rows : columns}, stream, 0, 1, DType::f64);
    const auto [q, r] = qr(draw);
    const NDArray signs = 1 - 2 * (r.diagonal() < 0).to(DType::f64);
    const NDArray matrix = (q * signs * gain).to(dtype);
    return (wide ? matrix.transpose() : matrix).contiguous().reshape(shape).to(device);
  };
}

}  // namespace sluice::nn
