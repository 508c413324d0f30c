// The library's own rows and kernels. They are listed by hand, because a linker drops files that only register
// themselves.
#pragma once

namespace sluice {

class GradientContext;
class NDArray;
class Registry;

namespace builtin {
// Rows, by the header that declares their functions.
void add_elementwise_rows(Registry& registry);
void add_creation_rows(Registry& registry);
void add_shaping_rows(Registry& registry);
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
void add_device_transfers(Registry& registry);
void add_device_gates(Registry& registry);
void add_cuda_kernels(Registry& registry);
}  // namespace builtin
}  // namespace sluice
