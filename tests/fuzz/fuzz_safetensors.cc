#include "sluice/ndarray/formats/safetensors.h"
#include "sluice/tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::run(data, size, 4 * size, [](const auto& path) { sluice::load_safetensors(path); });
  return 0;
}
