// The CUDA backend's kernels join the registry when its library is loaded.
#include "sluice/operators/backends/cuda/library.h"
#include "sluice/operators/builtin.h"
#include "sluice/resources/cuda/library.h"

namespace sluice {
namespace {

Registry* rows = nullptr;

constexpr cuda::KernelTable kTable{
    .rows = {.find = [](void* registry, const char* name) { return static_cast<Registry*>(registry)->find(name); },
             .add = [](const Operator& row, const Backend& backend, const DType* dtypes, std::size_t count,
                       const Kernel& kernel) { row.add_kernel(backend, std::span(dtypes, count), kernel); }},
    .set_device_kernels = set_device_kernels};

}  // namespace

void builtin::add_cuda_kernels(Registry& registry) {
  rows = &registry;
  cuda::on_library([](const cuda::Library& library) { library.add_kernels(rows, &kTable); });
}

}  // namespace sluice
