// The groups of kernels of the CUDA backend.
#pragma once

#include "sluice/operators/register.h"

namespace sluice::cuda {

inline constexpr Backend kCuda{.name = "cuda", .device = DeviceKind::gpu, .rank = 10};

/// Finds a row of the program's registry, and adds kernels to it. The backend is a library of its own and has none of
/// the registry's functions.
class Rows {
 public:
  using Find = const Operator* (*)(void* registry, const char* name);
  using Add = void (*)(const Operator& row, const Backend& backend, const DType* dtypes, std::size_t count,
                       const Kernel& kernel);
  struct Functions {
    Find find;
    Add add;
  };
  Rows(void* registry, const Functions& functions) : registry_(registry), functions_(functions) {}

  /// Adds a kernel for the dtypes of the operands, or of the key alone. A row that the program does not have is passed
  /// over.
  void add(const char* row, std::initializer_list<DType> dtypes, KernelFunction run, Kernel kernel = {}) const {
    const Operator* const found = functions_.find(registry_, row);
    if (!found) return;
    kernel.run = run;
    kernel.issues = true;
    functions_.add(*found, kCuda, dtypes.begin(), dtypes.size(), kernel);
  }
  /// Adds Make<T>::run for each T, under its dtype.
  template <template <class> class Make, class... T>
  void add(const char* row, backends::Types<T...>, const Kernel& kernel = {}) const {
    (add(row, {dtype_of<T>}, Make<T>::run, kernel), ...);
  }

 private:
  void* registry_;
  const Functions& functions_;
};

void add_attention_kernels(const Rows& rows);
void add_unary_kernels(const Rows& rows);
void add_binary_kernels(const Rows& rows);
void add_comparison_kernels(const Rows& rows);
void add_creation_kernels(const Rows& rows);
void add_line_kernels(const Rows& rows);
void add_loss_kernels(const Rows& rows);
void add_matrix_kernels(const Rows& rows);
void add_normalization_kernels(const Rows& rows);
void add_convolution_kernels(const Rows& rows);
void add_optimizer_kernels(const Rows& rows);
void add_reduction_kernels(const Rows& rows);
void add_shaping_kernels(const Rows& rows);
void add_unfolding_kernels(const Rows& rows);
void add_indexing_kernels(const Rows& rows);

}  // namespace sluice::cuda
