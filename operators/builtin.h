// The library's own rows and kernels. They are listed by hand, because a linker drops files that only register
// themselves.
#pragma once

#include <source_location>
#include <span>
#include <vector>

#include "sluice/ndarray/dtype.h"

namespace sluice {

class GradientContext;
class NDArray;
struct Operand;
class Registry;

namespace builtin {
// Rows, by the header that declares their functions.
void add_elementwise_rows(Registry& registry);
void add_creation_rows(Registry& registry);
void add_shaping_rows(Registry& registry);
void add_indexing_rows(Registry& registry);
void add_reduction_rows(Registry& registry);
void add_loss_rows(Registry& registry);
void add_matrix_rows(Registry& registry);
void add_convolution_rows(Registry& registry);
void add_optimizer_rows(Registry& registry);
/// The gradient behind a relu, from that of output 0, which the row keeps.
NDArray relu_gradient(GradientContext& context);
// Kernels.
void add_reference_kernels(Registry& registry);
void add_cpu_kernels(Registry& registry);
/// Converts arrays of several dtypes to one. The pointers to those that were converted go to the result, which is empty
/// where there is nothing to do.
std::vector<NDArray> in_one_dtype(const char* name, std::span<const NDArray*> inputs,
                                  const std::source_location& where);
/// y as elements of this dtype, for a write in place: throws ArrayError if y's dtype would widen it.
NDArray narrowed(const char* name, const Operand& y, DType dtype);
void add_device_transfers(Registry& registry);
void add_device_gates(Registry& registry);
void add_cuda_kernels(Registry& registry);
}  // namespace builtin
}  // namespace sluice
