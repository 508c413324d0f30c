// Helpers to register kernels for several dtypes at once. For backends.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice::backends {

template <class... T>
struct Types {};
using Floating = Types<float, double>;
using Arithmetic = Types<float, double, std::int32_t, std::int64_t>;

/// Registers Make<T>::run for each T under its dtype, on CPU devices.
template <template <class> class Make, class... T>
void add(const Operator& row, Types<T...>, Kernel kernel) {
  ((kernel.run = Make<T>::run, row.add_kernel(DeviceKind::cpu, dtype_of<T>, kernel)), ...);
}

/// The same function for every dtype.
inline void add_for_all(const Operator& row, Kernel kernel) {
  for (int t = 0; t < kDTypeCount; ++t) row.add_kernel(DeviceKind::cpu, static_cast<DType>(t), kernel);
}

inline constexpr Kernel kReference{.backend = "reference"};
inline constexpr Kernel kReferenceDense{.backend = "reference", .dense_inputs = true, .dense_outputs = true};
inline constexpr Kernel kCpu{.backend = "cpu", .rank = 10};
inline constexpr Kernel kCpuDense{.backend = "cpu", .rank = 10, .dense_inputs = true, .dense_outputs = true};

}  // namespace sluice::backends
