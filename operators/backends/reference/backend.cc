// The reference backend: all its kernels.
#include "sluice/operators/backends/reference/kernels.h"
#include "sluice/operators/builtin.h"

void sluice::builtin::add_reference_kernels(Registry& registry) {
  reference::add_elementwise_kernels(registry);
  reference::add_creation_kernels(registry);
  reference::add_shaping_kernels(registry);
  reference::add_indexing_kernels(registry);
  reference::add_reduction_kernels(registry);
  reference::add_line_kernels(registry);
  reference::add_matrix_kernels(registry);
  reference::add_decomposition_kernels(registry);
  reference::add_convolution_kernels(registry);
  reference::add_loss_kernels(registry);
  reference::add_unfolding_kernels(registry);
  reference::add_attention_kernels(registry);
  reference::add_recurrent_kernels(registry);
  reference::add_normalization_kernels(registry);
  reference::add_optimizer_kernels(registry);
}
