#include "sluice/ndarray/formats/npz.h"
#include "sluice/tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kUnpacked = std::size_t{1} << 18;  // packed members may pass the file's size, not this
  sluice::fuzz::run(data, size, 4 * (size + kUnpacked),
                    [](const auto& path) { sluice::load_npz(path, {.most_bytes = kUnpacked}); });
  return 0;
}
