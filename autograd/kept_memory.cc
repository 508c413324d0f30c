#include "sluice/autograd/kept_memory.h"

#include <mutex>

namespace sluice {

KeptMemory memory_of(const NDArray& x, std::source_location where) {
  Array& array = x.in_memory("memory_of", where);
  const std::lock_guard lock(array.mutex());
  Buffer& buffer = array.version()->buffer();
  return {buffer.number(), buffer.bytes()};
}

}  // namespace sluice
