#include "sluice/ndarray/formats/safetensors_writer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>

#include "sluice/ndarray/called.h"
#include "sluice/ndarray/formats/file_io.h"
#include "sluice/ndarray/formats/safetensors_header.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kPart = std::size_t{4} << 20;

// Indices of the tensors by falling element size: every tensor then starts at a multiple of its element's size.
std::vector<std::size_t> file_order(std::span<const NamedTensor> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return size_of(tensors[a].dtype) > size_of(tensors[b].dtype); });
  return order;
}

std::string json_header(std::span<const NamedTensor> tensors, std::span<const std::size_t> order,
                        const std::map<std::string, std::string>& metadata) {
  // The pairs go through `push_back`, not by key: an ordered object looks through all its keys for each new one.
  ordered_json::object_t header;
  if (!metadata.empty()) header.push_back({"__metadata__", ordered_json(metadata)});
  std::uint64_t offset = 0;
  for (const std::size_t i : order) {
    const NamedTensor& tensor = tensors[i];
    ordered_json shape = ordered_json::array();
    for (auto size : tensor.shape) shape.push_back(size);
    ordered_json entry;
    entry["dtype"] = std::string(formats::safetensors_name(tensor.dtype));
    entry["shape"] = std::move(shape);
    entry["data_offsets"] = {offset, offset + tensor.bytes.size()};
    offset += tensor.bytes.size();
    header.push_back({tensor.name, std::move(entry)});
  }
  try {
    std::string text = ordered_json(std::move(header)).dump();
    text.append((8 - text.size() % 8) % 8, ' ');  // the data starts at a multiple of 8
    return text;
  } catch (const ordered_json::exception&) {
    formats::refuse_argument("a name or the metadata is not UTF-8");
  }
}

}  // namespace

void save_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                      const std::map<std::string, std::string>& metadata, std::source_location where) {
  const detail::Called called("save_safetensors", where);
  formats::write_safetensors(path, tensors, metadata);
}

void formats::write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                                const std::map<std::string, std::string>& metadata,
                                const std::function<void()>& part_written) {
  std::unordered_set<std::string_view> names;
  for (const NamedTensor& tensor : tensors) {
    formats::check_bytes(tensor.dtype, tensor.shape, tensor.bytes.size());
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second) {
      formats::refuse_argument(formats::in_quotes(tensor.name) +
                               (tensor.name == "__metadata__" ? " is not free as a name" : " is named twice"));
    }
  }
  const auto order = file_order(tensors);
  const std::string header = json_header(tensors, order, metadata);
  if (header.size() > formats::kMaxSafetensorsHeader) {
    throw FormatError(path, "header of " + std::to_string(header.size()) + " bytes, the format takes at most " +
                                std::to_string(formats::kMaxSafetensorsHeader));
  }
  std::array<std::byte, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<std::byte>(header.size() >> (8 * i) & 0xff);
  formats::OutputFile file(path);
  file.write(length);
  file.write(header);
  std::size_t in_part = 0;
  for (const std::size_t i : order) {
    std::span<const std::byte> bytes = tensors[i].bytes;
    while (part_written && bytes.size() >= kPart - in_part) {
      file.write(bytes.first(kPart - in_part));
      bytes = bytes.subspan(kPart - in_part);
      in_part = 0;
      file.begin_sync();
      part_written();
    }
    file.write(bytes);
    in_part += bytes.size();
  }
  file.commit();
}

}  // namespace sluice
