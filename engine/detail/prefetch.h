// Asking for cache lines ahead of their use.
#pragma once

namespace sluice::detail {

/// Asks for the cache line at `place`, which need not exist, to be read.
inline void prefetch_to_read(const void* place) { __builtin_prefetch(place, 0); }

/// The same to be written: nobody else has it then. GCC makes a reader's prefetch of its builtin unless it is told of
/// the instruction (-mprfchw), which every x86-64 processor takes, the oldest as a no-op; a line asked for to be read
/// has to be asked for again.
inline void prefetch_to_write(const void* place) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(place)));
#else
  __builtin_prefetch(place, 1);
#endif
}

}  // namespace sluice::detail
