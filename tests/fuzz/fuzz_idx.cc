#include "sluice/ndarray/formats/idx.h"
#include "sluice/tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const bool packed = size > 1 && data[0] == 0x1f && data[1] == 0x8b;  // gzip stands for up to 1,032 times its size
  sluice::fuzz::run(data, size, packed ? 3 * 1100 * size : 4 * size, [](const auto& path) { sluice::load_idx(path); });
  return 0;
}
