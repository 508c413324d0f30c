// The kernels of the CPU backend, by file.
#pragma once

#include "sluice/operators/register.h"

namespace sluice::cpu_backend {

using backends::kCpu;

void add_unary_kernels(Registry& registry);
void add_binary_kernels(Registry& registry);
void add_comparison_kernels(Registry& registry);
void add_creation_kernels(Registry& registry);
void add_shaping_kernels(Registry& registry);
void add_indexing_kernels(Registry& registry);
void add_reduction_kernels(Registry& registry);
void add_line_kernels(Registry& registry);
void add_matrix_kernels(Registry& registry);
void add_decomposition_kernels(Registry& registry);
void add_convolution_kernels(Registry& registry);
void add_loss_kernels(Registry& registry);
void add_unfolding_kernels(Registry& registry);
void add_attention_kernels(Registry& registry);
void add_recurrent_kernels(Registry& registry);
void add_normalization_kernels(Registry& registry);
void add_optimizer_kernels(Registry& registry);

}  // namespace sluice::cpu_backend
