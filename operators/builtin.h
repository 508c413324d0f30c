// The library's own rows and kernels. They are listed by hand, because a linker drops files that only register
// themselves.
#pragma once

namespace sluice {

class Registry;

namespace builtin {

// Rows, by the header that declares their functions.
void add_elementwise_rows(Registry& registry);
void add_add_n_rows(Registry& registry);
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
void add_network_rows(Registry& registry);
void add_recurrent_rows(Registry& registry);
void add_normalization_rows(Registry& registry);
void add_optimizer_rows(Registry& registry);
// Kernels.
void add_reference_kernels(Registry& registry);
void add_cpu_kernels(Registry& registry);
void add_device_transfers(Registry& registry);
void add_device_gates(Registry& registry);
void add_cuda_kernels(Registry& registry);

}  // namespace builtin
}  // namespace sluice
