#include "sluice/nn/data/table.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <system_error>
#include <vector>

#include "sluice/ndarray/called.h"
#include "sluice/operators/shaping.h"
#include "sluice/resources/random.h"

namespace sluice::nn {
namespace {

constexpr std::uint64_t kSplitStream = 0x73706c6974;

std::vector<std::byte> bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw FormatError(path, "cannot be opened");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) throw FormatError(path, "cannot be read");
  const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

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

NDArray read_tokens(const std::filesystem::path& path, std::source_location where) {
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
    const std::vector<std::byte> bytes = bytes_of(file);
    all.bytes.insert(all.bytes.end(), bytes.begin(), bytes.end());
  }
  if (all.bytes.empty()) throw FormatError(path, "holds no text");
  all.shape = {static_cast<std::int64_t>(all.bytes.size())};
  return column(std::move(all));
}

}  // namespace sluice::nn
