// The library's own rows and kernels. They are listed by hand, because a linker drops files that only register
// themselves.
#pragma once

#include <source_location>
#include <span>
#include <vector>

#include "sluice/ndarray/dims.h"
#include "sluice/ndarray/dtype.h"

namespace sluice {

struct Axes;
class GradientContext;
class NDArray;
struct Operand;
class Registry;
struct Conv2dOptions;
struct MaxPool2dOptions;
struct Size2d;

namespace builtin {
// Rows, by the header that declares their functions.
void add_elementwise_rows(Registry& registry);
void add_creation_rows(Registry& registry);
void add_shaping_rows(Registry& registry);
void add_indexing_rows(Registry& registry);
void add_reduction_rows(Registry& registry);
void add_scan_rows(Registry& registry);
void add_sorting_rows(Registry& registry);
void add_loss_rows(Registry& registry);
void add_matrix_rows(Registry& registry);
void add_decomposition_rows(Registry& registry);
void add_convolution_rows(Registry& registry);
void add_unfolding_rows(Registry& registry);
void add_attention_rows(Registry& registry);
void add_normalization_rows(Registry& registry);
void add_optimizer_rows(Registry& registry);
/// The gradient behind a relu, from that of output 0, which the row keeps.
NDArray relu_gradient(GradientContext& context);
/// A convolution with any options, by unfold2d and matmul.
NDArray convolution_by_unfolding(const Operand& x, const Operand& weight, const NDArray& bias,
                                 const Conv2dOptions& options);
/// A pooling with any options, by unfold2d and max.
NDArray max_pool_by_unfolding(const Operand& x, Size2d kernel, const MaxPool2dOptions& options);
// Kernels.
void add_reference_kernels(Registry& registry);
void add_cpu_kernels(Registry& registry);
/// Converts arrays of several dtypes to one. The pointers to those that were converted go to the result, which is empty
/// where there is nothing to do.
std::vector<NDArray> in_one_dtype(const char* name, std::span<const NDArray*> inputs,
                                  const std::source_location& where);
/// y as elements of this dtype, for a write in place: throws ArrayError if y's dtype would widen it.
NDArray narrowed(const char* name, const Operand& y, DType dtype);
/// The axis of an operator on lines, from 0. Throws ArrayError for one that x does not have. A scalar has axis 0.
int line_axis(const char* who, const Operand& x, int axis);
/// Zeros of `shape` with the elements of g added in at their places along the axis.
NDArray add_along_axis(const NDArray& g, const NDArray& index, int axis, const Dims& shape,
                       const std::source_location& where);
/// For each element the product of the others along the last axis.
NDArray product_of_others(const NDArray& x, const std::source_location& where);
/// y as what exponents are counted from, with 0 in the place of -infinity, and at most the largest number: for an x up
/// to y the smaller of 1 and exp(x - it) is 1 where both are infinity, and 0 where both are -infinity.
NDArray finite_exponent(const NDArray& y, const std::source_location& at);
/// The largest finite number of a floating dtype.
double largest_number(DType dtype);
/// x less `average`, its mean over the axes with keep, and less the mean of what is left: far from 0 the rounding of
/// the first mean is much of a deviation. The second has no gradient: but for roundings it is 0.
NDArray less_mean(const NDArray& x, const NDArray& average, const Axes& axes, const std::source_location& at);
void add_device_transfers(Registry& registry);
void add_device_gates(Registry& registry);
void add_cuda_kernels(Registry& registry);
}  // namespace builtin
}  // namespace sluice
