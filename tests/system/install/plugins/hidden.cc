// A library that shows nothing of itself but a function (-fvisibility=hidden).
#include "sluice/engine/detail/forks.h"
#include "sluice/ndarray/storage.h"

/// Where its code has the number of the process's forks.
extern "C" [[gnu::visibility("default")]] const void* forks_of_hidden() { return &sluice::detail::fork_generation; }

/// Takes an array's lock and gives it back, on a thread that may have it.
extern "C" [[gnu::visibility("default")]] void lock_in_hidden(sluice::Array& array) {
  const std::lock_guard lock(array.mutex());
}
