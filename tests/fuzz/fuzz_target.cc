#include "sluice/tests/fuzz/fuzz_target.h"

#include <sanitizer/allocator_interface.h>

namespace sluice::fuzz {

std::atomic<std::size_t> held{0}, peak{0};

namespace {

void count_malloc(const volatile void*, std::size_t bytes) {
  const std::size_t now = held += bytes;
  if (now > peak) peak = now;
}
void count_free(const volatile void* memory) {
  if (memory) held -= __sanitizer_get_allocated_size(memory);
}
const int installed = __sanitizer_install_malloc_and_free_hooks(count_malloc, count_free);

}  // namespace
}  // namespace sluice::fuzz
