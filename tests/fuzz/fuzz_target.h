// What the fuzzers of parsers share: an input as a file, and the memory that reading it takes.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "sluice/ndarray/formats/host_tensor.h"

namespace sluice::fuzz {

/// Bytes that are allocated now, and the most since the last reset, as the sanitizer tells.
extern std::atomic<std::size_t> held, peak;

/// What any file may take: buffers of a fixed size, zlib's state, messages.
inline constexpr std::size_t kSpare = std::size_t{256} << 10;

/// Loads the input as a file: it must give a value or a FormatError, and hold at most `most` bytes beside kSpare.
template <class Load>
void run(const std::uint8_t* data, std::size_t size, std::size_t most, Load&& load) {
  static const int descriptor = ::memfd_create("fuzz", 0);
  static const std::filesystem::path path = "/proc/self/fd/" + std::to_string(descriptor);
  if (::pwrite(descriptor, data, size, 0) != static_cast<ssize_t>(size) ||
      ::ftruncate(descriptor, static_cast<off_t>(size)) != 0)
    std::abort();
  const std::size_t before = held;
  peak = before;
  try {
    load(path);
  } catch (const FormatError&) {
  }
  if (peak - before > most + kSpare) {
    std::fprintf(stderr, "a file of %zu bytes took %zu bytes of memory\n", size, peak - before);
    std::abort();
  }
}

}  // namespace sluice::fuzz
