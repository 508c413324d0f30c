// A row of the tests' table of operators (ops_table.h).
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "sluice/sluice.h"

namespace sluice::testing {

using Arrays = std::vector<NDArray>;

struct OperatorCase {
  std::string name;
  std::vector<Dims> shapes;  ///< of the floating inputs
  std::function<NDArray(const Arrays&)> call;
  double low = -2, high = 2;  ///< range of the inputs
  bool second_order = true;   ///< the gradient has a gradient
  bool gradient = true;
  double tolerance = 1e-5;  ///< f32, cpu against reference, relative to the largest element
  /// Of elementwise cases whose inputs have the result's shape: an element from those of the inputs.
  std::function<double(double, double)> formula = {};
  bool by_lapack = false;  ///< of rows that have kernels on the CPU alone, and these for f32 and f64 alone
  std::function<double(double, double)> fold = {};  ///< of reductions of all elements: of two results
};

inline void PrintTo(const OperatorCase& c, std::ostream* out) { *out << c.name; }

}  // namespace sluice::testing
