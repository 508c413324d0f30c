#include "sluice/ndarray/formats/safetensors_header.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "sluice/ndarray/formats/file_io.h"

namespace sluice::formats {
namespace {

constexpr std::array<std::string_view, kDTypeCount> kNames = {"F32", "F64", "F16", "BF16", "I8",
                                                              "U8",  "I32", "I64", "BOOL"};

// Dtypes that Sluice lacks, with the bits of an element: what is known of a size is checked.
struct Foreign {
  std::string_view name;
  std::uint64_t bits;
};
constexpr std::array<Foreign, 12> kForeign = {{{"I16", 16},
                                               {"U16", 16},
                                               {"U32", 32},
                                               {"U64", 64},
                                               {"F8_E4M3", 8},
                                               {"F8_E5M2", 8},
                                               {"F8_E8M0", 8},
                                               {"C64", 64},
                                               {"C128", 128},
                                               {"F4", 4},
                                               {"F6_E2M3", 6},
                                               {"F6_E3M2", 6}}};

// Bytes that the entry's dtype and shape need; `known` is false for a dtype whose size is not.
std::optional<std::uint64_t> bytes_of(const SafetensorsEntry& entry, bool& known) {
  known = true;
  if (entry.dtype) return checked_bytes(*entry.dtype, entry.shape);
  const auto found =
      std::find_if(kForeign.begin(), kForeign.end(), [&](const Foreign& f) { return f.name == entry.type; });
  known = found != kForeign.end();
  const auto elements = checked_bytes(DType::u8, entry.shape);
  if (!known || !elements || *elements > UINT64_MAX / found->bits) return std::nullopt;
  return (*elements * found->bits + 7) / 8;
}

// Takes the parser's events as they come, so that no tree is built of a stranger's JSON, nesting is refused where it
// starts, and a duplicate key is seen (a tree would have kept one of the two in silence).
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderEvents(const std::filesystem::path& path) : path_(path) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override { return unexpected(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return unexpected(in_quotes(text)); }
  bool binary(binary_t&) override { return unexpected("binary"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      if (entry().shape.rank() == kMaxRank) {
        fail(where() + "rank above " + std::to_string(kMaxRank) + ", the most that is held");
      }
      if (value > static_cast<number_unsigned_t>(INT64_MAX)) fail(where() + "size " + std::to_string(value));
      entry().shape.push_back(static_cast<std::int64_t>(value));
    } else if (place_ == Place::offsets && offsets_ < 2) {
      (offsets_ == 0 ? entry().begin : entry().end) = value;
      ++offsets_;
    } else {
      return unexpected(std::to_string(value));
    }
    return true;
  }

  bool string(string_t& text) override {
    if (place_ == Place::metadata && pending_) {
      header_.metadata[key_] = std::move(text);
    } else if (place_ == Place::tensor && pending_ && key_ == "dtype") {
      const auto found = std::find(kNames.begin(), kNames.end(), text);
      if (found != kNames.end()) entry().dtype = static_cast<DType>(found - kNames.begin());
      entry().type = std::move(text);
    } else {
      return unexpected(in_quotes(text));
    }
    pending_ = false;
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::top;
    } else if (place_ == Place::top && pending_) {
      pending_ = false;
      fields_.clear();
      place_ = key_ == "__metadata__" ? Place::metadata : Place::tensor;
      if (place_ == Place::tensor) header_.entries.push_back({.name = key_, .type = {}, .shape = {}});
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool key(string_t& text) override {
    auto& seen = place_ == Place::top ? names_ : fields_;
    if (place_ == Place::tensor && text != "dtype" && text != "shape" && text != "data_offsets") {
      fail(where() + "unknown field " + in_quotes(text));
    }
    if (!seen.insert(text).second) fail(where() + "duplicate key " + in_quotes(text));
    key_ = std::move(text);
    pending_ = true;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor && fields_.size() != 3) {
      fail(where() + "lacks one of 'dtype', 'shape', 'data_offsets'");
    }
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }

  bool start_array(std::size_t) override {
    const bool shape = key_ == "shape";
    if (place_ != Place::tensor || !pending_ || key_ == "dtype") return unexpected("an array");
    pending_ = false;
    offsets_ = 0;
    place_ = shape ? Place::shape : Place::offsets;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::offsets && offsets_ != 2) fail(where() + "data_offsets is not a pair");
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    fail("malformed JSON in the header, at its byte " + std::to_string(position));
  }

 private:
  enum class Place { outside, top, metadata, tensor, shape, offsets };

  [[noreturn]] void fail(const std::string& what) const { throw FormatError(path_, what); }
  bool unexpected(const std::string& what) const { fail(where() + "malformed header: unexpected " + what); }

  std::string where() const {
    if (place_ == Place::metadata) return "__metadata__: ";
    if (place_ == Place::outside || place_ == Place::top) return "";
    return "tensor " + in_quotes(header_.entries.back().name) + ": ";
  }
  SafetensorsEntry& entry() { return header_.entries.back(); }

  const std::filesystem::path& path_;
  SafetensorsHeader header_;
  std::unordered_set<std::string> names_;   // keys of the outer object
  std::unordered_set<std::string> fields_;  // keys of the object inside it
  std::string key_;                         // the last key, whose value is awaited while pending_
  bool pending_ = false;
  int offsets_ = 0;
  Place place_ = Place::outside;
};

}  // namespace

std::string_view safetensors_name(DType dtype) { return kNames[static_cast<std::size_t>(dtype)]; }

SafetensorsHeader parse_safetensors_header(const std::filesystem::path& path, std::string_view json,
                                           std::uint64_t data_bytes) {
  // The parser takes a zero byte for the end of its input, and skips a byte order mark: neither belongs here.
  if (json.empty() || json.front() != '{' || json.find('\0') != std::string_view::npos) {
    throw FormatError(path, "is not a .safetensors file: its header is not JSON text that starts with '{'");
  }
  HeaderEvents events(path);
  nlohmann::json::sax_parse(json.begin(), json.end(), &events);
  SafetensorsHeader header = events.take();
  auto& entries = header.entries;
  std::stable_sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  std::uint64_t covered = 0;
  for (const auto& entry : entries) {
    const auto fail = [&](const std::string& what) {
      throw FormatError(path, "tensor " + in_quotes(entry.name) + ": " + what);
    };
    std::string range = "[";
    range.append(std::to_string(entry.begin)).append(", ").append(std::to_string(entry.end)).append(")");
    if (entry.end < entry.begin || entry.end > data_bytes) {
      fail("offsets " + range + " in " + std::to_string(data_bytes) + " bytes of data");
    }
    if (entry.begin != covered) {
      fail("offsets " + range + (entry.begin < covered ? " overlap the tensor before" : " leave a hole before") +
           ", wanted " + std::to_string(covered));
    }
    bool known = true;
    const auto bytes = bytes_of(entry, known);
    if (known && (!bytes || *bytes != entry.end - entry.begin)) {
      fail("shape " + to_string(entry.shape) + " of " + entry.type + " needs " +
           (bytes ? std::to_string(*bytes) : std::string("too many")) + " bytes, offsets " + range + " give " +
           std::to_string(entry.end - entry.begin));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    throw FormatError(path, "tensors cover " + std::to_string(covered) + " bytes, the file has " +
                                std::to_string(data_bytes) + " after its header");
  }
  return header;
}

SafetensorsHeader read_safetensors_header(InputFile& file) {
  std::array<std::byte, 8> length_bytes{};
  file.read(length_bytes, "the header's length");
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) length |= std::to_integer<std::uint64_t>(length_bytes[i]) << (8 * i);
  if (length > kMaxSafetensorsHeader || length > file.left()) {
    throw FormatError(file.path(), "header of " + std::to_string(length) + " bytes, wanted at most " +
                                       std::to_string(std::min(kMaxSafetensorsHeader, file.left())));
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  file.read(std::as_writable_bytes(std::span(text)), "the header");
  return parse_safetensors_header(file.path(), text, file.left());
}

std::string refusal(std::string_view name, std::string_view type) {
  return "tensor " + in_quotes(name) + " has the dtype " + in_quotes(type) +
         ", wanted one of F32 F64 F16 BF16 I8 U8 I32 I64 BOOL";
}

}  // namespace sluice::formats
