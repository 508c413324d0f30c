#include "sluice/nn/data/table.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <system_error>
#include <vector>

#include "sluice/ndarray/called.h"
#include "sluice/ndarray/formats/file_io.h"
#include "sluice/operators/shaping.h"
#include "sluice/resources/random.h"

namespace sluice::nn {
namespace {

constexpr std::uint64_t kSplitStream = 0x73706c6974;

}  // namespace

NDArray column(HostTensor tensor) {
  auto owner = std::make_shared<HostTensor>(std::move(tensor));
  return sluice::detail::adopt_memory(owner->bytes.data(), owner, owner->shape, owner->dtype, cpu(0));
}

Split split(const Table& table, std::int64_t test_rows, std::uint64_t seed, std::source_location where) {
  const sluice::detail::Called called("nn::split", where);
  const std::int64_t rows = len(table.x, where);
  if (len(table.y, where) != rows) {
    throw ArrayError(
        "nn::split", where,
        "columns " + to_string(table.x.shape()) + " and " + to_string(table.y.shape()) + " of two lengths");
  }
  if (test_rows < 0 || test_rows > rows) {
    throw ArrayError("nn::split", where, std::to_string(test_rows) + " of " + std::to_string(rows) + " rows");
  }
  const DeviceScope scope(cpu(0));
  const NDArray order = from(permutation({seed, kSplitStream, 0}, rows), {rows});
  const auto rows_of = [&](std::int64_t begin, std::int64_t end) {
    const NDArray numbers = order.narrow(0, begin, end);
    return Table{take_rows(table.x, numbers), take_rows(table.y, numbers)};
  };
  return {rows_of(test_rows, rows), rows_of(0, test_rows)};
}

NDArray read_tokens(const std::string& path, std::source_location where) {
  const sluice::detail::Called called("nn::read_tokens", where);
  std::vector<std::filesystem::path> files{path};
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    files.clear();
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      if (entry.is_regular_file(error) && !entry.is_symlink(error)) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
  }
  HostTensor all{DType::u8, {}, {}};
  for (const std::filesystem::path& file : files) {
    formats::InputFile in(file);
    const std::size_t begin = all.bytes.size();
    all.bytes.resize(begin + in.size());
    in.read(std::span(all.bytes).subspan(begin), "the text");
  }
  if (all.bytes.empty()) throw FormatError(path, "holds no text");
  all.shape = {static_cast<std::int64_t>(all.bytes.size())};
  return column(std::move(all));
}

}  // namespace sluice::nn
