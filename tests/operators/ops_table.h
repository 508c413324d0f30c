// One row per operator for the tests: inputs and a call. The table is compiled once, in the files ops_table*.cc.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../support/devices.h"
#include "operator_case.h"

namespace sluice::testing {

inline NDArray labels_for(std::int64_t n, std::int64_t classes) {
  std::vector<std::int64_t> list;
  for (std::int64_t i = 0; i < n; ++i) list.push_back(i * 7 % classes);
  return from(list, {n});
}

inline NDArray numbers(std::vector<std::int64_t> list, const Dims& shape) { return from(list, shape); }

std::vector<OperatorCase> operator_cases();

// Its parts.
void add_reduction_cases(std::vector<OperatorCase>& list);
void add_shape_cases(std::vector<OperatorCase>& list);
void add_network_cases(std::vector<OperatorCase>& list);
void add_decomposition_cases(std::vector<OperatorCase>& list);

/// Inputs in the case's range, all different enough that no two elements change order under small steps.
inline Arrays make_inputs(const OperatorCase& c, DType dtype, std::uint64_t seed = 5) {
  RandomStream stream(seed);
  Arrays inputs;
  for (const Dims& shape : c.shapes) inputs.push_back(uniform(shape, stream, c.low, c.high, DType::f64).to(dtype));
  return inputs;
}

/// What f gives by the reference's kernels: on the tests' device, or on the CPU where that device has none.
template <class F>
auto by_reference(F f) {
  const KernelRankLimit reference_only(0);
  const DeviceScope scope(test::device_kind() == DeviceKind::gpu ? cpu(0) : test::device(0));
  return f();
}

inline std::vector<double> values_of(const NDArray& x) { return x.to(DType::f64).to_vector<double>(); }

}  // namespace sluice::testing
