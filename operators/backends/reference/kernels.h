// The kernels of the reference backend, by file. They are plain loops on one thread, for every operator, and the oracle
// for other backends: they include nothing of another backend.
#pragma once

#include "sluice/operators/register.h"

namespace sluice::reference {

using backends::kReference;

void add_elementwise_kernels(Registry& registry);
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

}  // namespace sluice::reference
