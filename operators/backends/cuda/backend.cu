// The CUDA backend as a whole.
#include "sluice/ndarray/device_kernels.h"
#include "sluice/operators/backends/cuda/copy.h"
#include "sluice/operators/backends/cuda/library.h"

namespace sluice::cuda {

/// What Library::add_kernels is (resources/cuda/library.h). `add` is a KernelTable.
void add_kernels(void* registry, const void* add) {
  const auto& table = *static_cast<const KernelTable*>(add);
  const Rows rows(registry, table.rows);
  add_attention_kernels(rows);
  add_unary_kernels(rows);
  add_binary_kernels(rows);
  add_comparison_kernels(rows);
  add_convolution_kernels(rows);
  add_creation_kernels(rows);
  add_line_kernels(rows);
  add_loss_kernels(rows);
  add_matrix_kernels(rows);
  add_normalization_kernels(rows);
  add_optimizer_kernels(rows);
  add_reduction_kernels(rows);
  add_shaping_kernels(rows);
  add_unfolding_kernels(rows);
  add_indexing_kernels(rows);
  static constexpr DeviceKernels kernels{
      .strided_copy = [](Issuing& to, const TensorView& from, const TensorView& target) {
        copy_window(Issue(to), from, target);
      }};
  table.set_device_kernels(DeviceKind::gpu, &kernels);
}

}  // namespace sluice::cuda
