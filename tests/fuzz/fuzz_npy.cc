#include "sluice/ndarray/formats/npy.h"
#include "sluice/tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::run(data, size, 4 * size, [](const auto& path) { sluice::load_npy(path); });
  return 0;
}
