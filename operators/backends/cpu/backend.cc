// The CPU backend: all its kernels.
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/builtin.h"

void sluice::builtin::add_cpu_kernels(Registry& registry) {
  cpu_backend::add_unary_kernels(registry);
  cpu_backend::add_binary_kernels(registry);
  cpu_backend::add_comparison_kernels(registry);
  cpu_backend::add_creation_kernels(registry);
  cpu_backend::add_shaping_kernels(registry);
  cpu_backend::add_indexing_kernels(registry);
  cpu_backend::add_reduction_kernels(registry);
  cpu_backend::add_line_kernels(registry);
  cpu_backend::add_matrix_kernels(registry);
  cpu_backend::add_decomposition_kernels(registry);
  cpu_backend::add_convolution_kernels(registry);
  cpu_backend::add_loss_kernels(registry);
  cpu_backend::add_unfolding_kernels(registry);
  cpu_backend::add_attention_kernels(registry);
  cpu_backend::add_recurrent_kernels(registry);
  cpu_backend::add_normalization_kernels(registry);
  cpu_backend::add_optimizer_kernels(registry);
}
