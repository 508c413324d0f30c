// .safetensors files as arrays over mapped memory.
#include <atomic>
#include <cstdint>
#include <utility>

#include "sluice/ndarray/called.h"
#include "sluice/ndarray/files.h"
#include "sluice/ndarray/formats/mapped_file.h"
#include "sluice/ndarray/formats/safetensors_header.h"
#include "sluice/ndarray/read_only.h"

namespace sluice {

struct MappedArrays::State {
  struct Place {
    std::optional<DType> dtype;
    std::uint64_t begin = 0, end = 0;  // in the file
  };
  explicit State(const std::filesystem::path& file_path) : path(file_path) {
    formats::InputFile input(path);
    formats::SafetensorsHeader header = formats::read_safetensors_header(input);
    const std::uint64_t data = input.position();
    file = std::make_shared<formats::MappedFile>(input);
    metadata = std::move(header.metadata);
    for (formats::SafetensorsEntry& entry : header.entries) {
      places[entry.name] = {entry.dtype, data + entry.begin, data + entry.end};
      tensors[std::move(entry.name)] = {std::move(entry.type), entry.shape, entry.dtype.has_value()};
    }
  }

  std::filesystem::path path;
  std::shared_ptr<formats::MappedFile> file;
  std::map<std::string, std::string> metadata;
  std::map<std::string, Info> tensors;
  std::map<std::string, Place> places;
  mutable std::atomic<std::uint64_t> copied{0};
};

MappedArrays::MappedArrays(const std::string& path, std::source_location where) {
  const detail::Called called("MappedArrays", where);
  state_ = std::make_unique<State>(path);
}
MappedArrays::~MappedArrays() = default;
MappedArrays::MappedArrays(MappedArrays&&) noexcept = default;
MappedArrays& MappedArrays::operator=(MappedArrays&&) noexcept = default;

const std::map<std::string, MappedArrays::Info>& MappedArrays::tensors() const { return state_->tensors; }
const std::map<std::string, std::string>& MappedArrays::metadata() const { return state_->metadata; }
std::uint64_t MappedArrays::copied_bytes() const { return state_->copied.load(std::memory_order_relaxed); }
std::span<const std::byte> MappedArrays::mapping() const { return state_->file->bytes(); }

NDArray MappedArrays::array(const std::string& name, std::source_location where) const {
  const detail::Called called("MappedArrays::array", where);
  const auto found = state_->places.find(name);
  if (found == state_->places.end()) throw FormatError(state_->path, "no tensor " + formats::in_quotes(name));
  const State::Place& place = found->second;
  const Info& info = state_->tensors.at(name);
  if (!place.dtype) throw FormatError(state_->path, formats::refusal(name, info.dtype));
  const auto size = static_cast<std::size_t>(place.end - place.begin);
  const auto bytes = mapping().subspan(static_cast<std::size_t>(place.begin), size);
  formats::check_bools(state_->path, "tensor " + formats::in_quotes(name), *place.dtype, bytes);
  const Device device = current_scope().device;
  if (size != 0 && place.begin % size_of(*place.dtype) == 0) {
    return detail::adopt_read_only(bytes.data(), state_->file, info.shape, *place.dtype, device);
  }
  state_->copied.fetch_add(size, std::memory_order_relaxed);
  return from_bytes(bytes, info.shape, *place.dtype, device);
}

}  // namespace sluice
