#include "sluice/ndarray/formats/cifar.h"
#include "sluice/ndarray/formats/whole_file.h"
#include "sluice/tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::run(data, size, 4 * size, [&](const auto& path) {
    sluice::formats::CifarRecords records;
    parse_cifar(path, sluice::formats::whole_file(path),
                size % 3074 == 0 ? sluice::formats::kCifar100 : sluice::formats::kCifar10, records);
  });
  return 0;
}
