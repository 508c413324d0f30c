#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "sluice/ndarray/called.h"
#include "sluice/ndarray/formats/cifar.h"
#include "sluice/ndarray/formats/whole_file.h"
#include "sluice/nn/data/directory.h"
#include "sluice/nn/data/table.h"

namespace sluice::nn {
namespace {

Table load_part(const std::filesystem::path& directory, const std::vector<const char*>& names,
                const formats::CifarLabels& kind) {
  formats::CifarRecords records;
  for (const char* const name : names) {
    const std::filesystem::path path = directory / name;
    parse_cifar(path, formats::whole_file(path), kind, records);
  }
  return {column(std::move(records.images)), column(std::move(records.labels))};
}

}  // namespace

Split cifar10(const std::string& directory, std::source_location where) {
  const sluice::detail::Called called("nn::cifar10", where);
  detail::check_directory(directory, "CIFAR-10's binary files (data_batch_1.bin to data_batch_5.bin, test_batch.bin)");
  return {
      load_part(directory,
                {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
                formats::kCifar10),
      load_part(directory, {"test_batch.bin"}, formats::kCifar10)};
}

Split cifar100(const std::string& directory, std::source_location where) {
  const sluice::detail::Called called("nn::cifar100", where);
  detail::check_directory(directory, "CIFAR-100's binary files (train.bin, test.bin)");
  return {load_part(directory, {"train.bin"}, formats::kCifar100),
          load_part(directory, {"test.bin"}, formats::kCifar100)};
}

}  // namespace sluice::nn
