// A launch that only counts: what remains of it is what the host pays before CUDA. As with nvcc, the arguments are
// converted and their addresses put into an array.
#pragma once

#include <cstddef>
#include <tuple>
#include <utility>

#include "cuda_double/types.h"

namespace cuda_double {

/// Instead of cudaLaunchKernelExC.
void count_launch(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                  void** arguments) noexcept;

template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream, bool,
            A... arguments) {
  std::tuple<std::remove_cv_t<P>...> values(static_cast<P>(arguments)...);
  std::apply(
      [&](auto&... value) {
        void* at[] = {static_cast<void*>(&value)..., nullptr};
        count_launch(reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, stream, at);
      },
      values);
}

}  // namespace cuda_double
