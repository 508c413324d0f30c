#include "sluice/ndarray/formats/csv.h"
#include "sluice/tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::CsvOptions options{.delimiter = size % 3 == 0 ? ';' : ',', .header = size % 2 == 0};
  options.dtype = size % 5 == 0 ? sluice::DType::i32 : size % 5 == 1 ? sluice::DType::f32 : sluice::DType::f64;
  if (size % 7 == 0) options.missing = {"", "NA"};
  // A column may be named by one byte, and takes a name, a place and a tensor; a row of two bytes takes eight.
  sluice::fuzz::run(data, size, 1024 * size, [&](const auto& path) { sluice::load_csv(path, options); });
  return 0;
}
