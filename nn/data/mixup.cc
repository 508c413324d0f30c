#include "sluice/nn/data/mixup.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "sluice/engine/number_text.h"
#include "sluice/ndarray/called.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/operators.h"

namespace sluice::nn {
namespace {

/// The logarithm of a gamma variate of shape alpha. Uses elements `part` x 2^20 and on of the draw.
double log_gamma_draw(const ElementKey& key, std::uint64_t part, double alpha) {
  const auto uniform = [&](std::uint64_t i) { return 1 - uniform01_f64(key, part << 20 | i); };  // in (0, 1]
  const double raised = alpha < 1 ? alpha + 1 : alpha, d = raised - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  const double lowered = alpha < 1 ? std::log(uniform(0)) / alpha : 0;
  for (std::uint64_t i = 1;; i += 3) {  // accepted at nearly every first try
    const double x = box_muller(uniform(i), uniform(i + 1)).first, v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(uniform(i + 2)) < x * x / 2 + d - d * v + d * std::log(v)) {
      return std::log(d * v) + lowered;
    }
  }
}

}  // namespace

double beta_draw(const RandomKey& key, double alpha) {
  alpha = std::max(alpha, 1e-300);  // below, both logarithms would be infinite
  const ElementKey elements(key);
  return 1 / (1 + std::exp(log_gamma_draw(elements, 1, alpha) - log_gamma_draw(elements, 0, alpha)));
}

Mixed mixup(const NDArray& x, const NDArray& y, RandomStream& stream, double alpha, std::source_location where) {
  const auto require = [&](bool fine, const std::string& message) {
    if (!fine) throw ArrayError("nn::mixup", where, message);
  };
  x.checked("nn::mixup", where);
  y.checked("nn::mixup", where);
  require(x.rank() >= 1 && y.rank() >= 1 && x.shape()[0] == y.shape()[0],
          to_string(x.shape()) + " and " + to_string(y.shape()) + " of two lengths");
  for (const NDArray& array : {x, y}) {
    require(is_floating(array.dtype()),
            to_string(array.spec()) + ": floating-point numbers are wanted; labels by one_hot");
  }
  require(alpha > 0 && std::isfinite(alpha), "an alpha of " + general_text(alpha, 6) + ": above 0 is wanted");
  const sluice::detail::Called called("nn::mixup", where);
  const double lambda = beta_draw(stream.next(), alpha);
  const DeviceScope on(x.device());
  const NDArray order = randperm(x.shape()[0], stream);
  const auto mixed = [&](const NDArray& of) { return of * lambda + take_rows(of, order) * (1 - lambda); };
  return {mixed(x), mixed(y), lambda};
}

}  // namespace sluice::nn
