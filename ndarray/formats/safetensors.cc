#include "sluice/ndarray/formats/safetensors.h"

#include <algorithm>
#include <utility>

#include "sluice/ndarray/called.h"
#include "sluice/ndarray/formats/file_io.h"
#include "sluice/ndarray/formats/safetensors_header.h"

namespace sluice {

const HostTensor* Safetensors::find(std::string_view name, std::source_location where) const {
  const detail::Called called("Safetensors::find", where);
  if (const auto other = refused.find(std::string(name)); other != refused.end()) {
    throw FormatError(path, formats::refusal(name, other->second));
  }
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.first == name; });
  return found == tensors.end() ? nullptr : &found->second;
}

Safetensors load_safetensors(const std::filesystem::path& path, std::source_location where) {
  const detail::Called called("load_safetensors", where);
  formats::InputFile file(path);
  auto header = formats::read_safetensors_header(file);
  Safetensors result;
  result.path = path;
  result.metadata = std::move(header.metadata);
  result.tensors.reserve(static_cast<std::size_t>(
      std::count_if(header.entries.begin(), header.entries.end(), [](const auto& entry) { return entry.dtype; })));
  for (auto& entry : header.entries) {
    const auto bytes = entry.end - entry.begin;
    if (!entry.dtype) {
      file.skip(bytes);
      result.refused.emplace(std::move(entry.name), std::move(entry.type));
      continue;
    }
    HostTensor tensor{*entry.dtype, entry.shape, std::vector<std::byte>(static_cast<std::size_t>(bytes))};
    const std::string what = "tensor " + formats::in_quotes(entry.name);
    file.read(tensor.bytes, what);
    formats::check_bools(path, what, tensor.dtype, tensor.bytes);
    result.tensors.emplace_back(std::move(entry.name), std::move(tensor));
  }
  return result;
}

}  // namespace sluice
