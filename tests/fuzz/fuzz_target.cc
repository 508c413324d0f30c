#include "sluice/tests/fuzz/fuzz_target.h"

#include <stdexcept>

#include "sluice/engine/layer.h"
#include "sluice/ndarray/called.h"
#include "sluice/ndarray/dims.h"

#if __has_feature(address_sanitizer)
#include <sanitizer/allocator_interface.h>
#else
#include <malloc.h>

#include <new>
#endif

// The parsers name the program's call in errors; here, without an engine, that is all which a thread's scope is for.
namespace sluice {
ScopeState& current_scope() {
  static thread_local ScopeState& scope = *new ScopeState;
  return scope;
}
const char*& detail::called_function() {
  static thread_local const char* name = nullptr;
  return name;
}
void detail::refuse_axis() { throw std::invalid_argument("more axes than an array may have"); }
std::string call_site(const std::source_location& where) {
  return std::string(where.file_name()) + ":" + std::to_string(where.line());
}
}  // namespace sluice

namespace sluice::fuzz {

std::atomic<std::size_t> held{0}, peak{0};

namespace {

void add(std::size_t bytes) {
  const std::size_t now = held += bytes;
  if (now > peak) peak = now;
}

#if __has_feature(address_sanitizer)
void count_malloc(const volatile void*, std::size_t bytes) { add(bytes); }
void count_free(const volatile void* memory) {
  if (memory) held -= __sanitizer_get_allocated_size(memory);
}
const int installed = __sanitizer_install_malloc_and_free_hooks(count_malloc, count_free);
#endif

}  // namespace
}  // namespace sluice::fuzz

#if !__has_feature(address_sanitizer)
// Without AddressSanitizer only what C++ allocates is counted; what zlib does is bounded by its state.
void* operator new(std::size_t bytes) {
  void* memory = std::malloc(bytes);
  if (!memory) throw std::bad_alloc();
  sluice::fuzz::add(::malloc_usable_size(memory));
  return memory;
}
void operator delete(void* memory) noexcept {
  sluice::fuzz::held -= ::malloc_usable_size(memory);
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }
#endif
