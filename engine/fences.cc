// Asymmetric fences: membarrier(2), where the kernel has it.
#include <atomic>
#include <cstdlib>

#ifdef __linux__
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/detail/policy.h"

namespace sluice::detail {
namespace {
#ifdef __linux__
bool membarrier(int command) { return ::syscall(SYS_membarrier, command, 0, 0) == 0; }
bool expedite() { return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED); }
bool fence_all_threads() { return membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED); }
#else
bool expedite() { return false; }
bool fence_all_threads() { return false; }
#endif
}  // namespace

void SystemPolicy::prepare_fences() {
  // Once: a light fence is what it was, for as long as the process lives.
  once_in_process([] {
    const bool works = std::getenv("SLUICE_NO_MEMBARRIER") == nullptr && expedite() && fence_all_threads();
    asymmetric.store(works, std::memory_order_seq_cst);
  });
}

void SystemPolicy::heavy_fence() {
  fence();
  if (!asymmetric.load(std::memory_order_relaxed)) return;
  // A registration outlives a fork; should it not, the next call makes one.
  if (!fence_all_threads() && !(expedite() && fence_all_threads())) std::abort();
}

}  // namespace sluice::detail
