#include "sluice/ndarray/formats/npy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>

#include "sluice/ndarray/called.h"
#include "sluice/ndarray/formats/file_io.h"
#include "sluice/ndarray/formats/npy_bytes.h"

namespace sluice {
namespace {

using formats::in_quotes;

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxHeader = 64 * 1024;
constexpr std::string_view kTaken = "wanted one of f2 f4 f8 i1 u1 i4 i8 b1";

struct Code {
  std::string_view name;  // kind and size, as NumPy writes them after the byte order
  DType dtype;
};
constexpr std::array<Code, 8> kCodes = {{{"f4", DType::f32},
                                         {"f8", DType::f64},
                                         {"f2", DType::f16},
                                         {"i1", DType::i8},
                                         {"u1", DType::u8},
                                         {"i4", DType::i32},
                                         {"i8", DType::i64},
                                         {"b1", DType::boolean}}};

struct Header {
  DType dtype = DType::f32;
  bool big_endian = false;
  bool fortran = false;
  Dims shape;
};

// Reads the one Python dictionary that a header is. Everything that NumPy does not write is refused.
class HeaderParser {
 public:
  HeaderParser(const std::filesystem::path& path, std::string_view text) : path_(path), text_(text) {}

  Header parse() {
    bool descr = false, order = false, shape = false;
    expect('{');
    while (!take('}')) {
      const std::string_view key = string();
      expect(':');
      if (key == "descr") {
        once(key, descr);
        parse_descr();
      } else if (key == "fortran_order") {
        once(key, order);
        parse_order();
      } else if (key == "shape") {
        once(key, shape);
        parse_shape();
      } else {
        fail("unknown key " + in_quotes(key) + " in the header");
      }
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) fail("bytes after the header's dictionary: " + in_quotes(text_.substr(at_)));
    if (!descr || !order || !shape) fail("the header lacks one of 'descr', 'fortran_order', 'shape'");
    return header_;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw FormatError(path_, what); }

  void once(std::string_view key, bool& seen) const {
    if (seen) fail("duplicate key " + in_quotes(key) + " in the header");
    seen = true;
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }
  bool take(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(std::string("malformed header: wanted '") + c + "', found " + in_quotes(text_.substr(at_)));
  }
  bool take_word(std::string_view word) {
    skip_space();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  std::string_view string() {
    skip_space();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') fail("malformed header: wanted a string, found " + in_quotes(text_.substr(at_)));
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail("malformed header: a string does not end");
    const std::string_view value = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return value;
  }

  void parse_descr() {
    skip_space();
    if (at_ < text_.size() && text_[at_] == '[') fail("structured dtype, " + std::string(kTaken));
    const std::string_view descr = string();
    const char order = descr.empty() ? '\0' : descr[0];
    for (const Code& code : kCodes) {
      if (descr.empty() || descr.substr(1) != code.name) continue;
      const bool swaps = size_of(code.dtype) > 1;
      if (order != '<' && order != '>' && (order != '|' || swaps)) break;
      header_.dtype = code.dtype;
      header_.big_endian = order == '>';
      return;
    }
    fail("dtype " + in_quotes(descr) + ", " + std::string(kTaken));
  }

  void parse_order() {
    if (take_word("True")) {
      header_.fortran = true;
    } else if (!take_word("False")) {
      fail("fortran_order is neither True nor False: " + in_quotes(text_.substr(at_)));
    }
  }

  void parse_shape() {
    expect('(');
    bool comma = true;
    while (!take(')')) {
      if (!comma) fail("malformed header: wanted ',' or ')' in the shape, found " + in_quotes(text_.substr(at_)));
      const std::int64_t size = number();
      if (header_.shape.rank() == kMaxRank) fail("rank above " + std::to_string(kMaxRank) + ", the most that is held");
      header_.shape.push_back(size);
      comma = take(',');
    }
    // "(3)" is a number to Python, not a shape.
    if (header_.shape.rank() == 1 && !comma) fail("malformed header: the shape is not a tuple");
  }

  std::int64_t number() {
    skip_space();
    const std::size_t begin = at_;
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    std::int64_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      const int digit = text_[at_] - '0';
      if (value > (most - digit) / 10) fail("a size of the shape passes 2^63: " + in_quotes(text_.substr(begin)));
      value = value * 10 + digit;
    }
    if (at_ == begin) fail("malformed header: wanted a size of 0 or more, found " + in_quotes(text_.substr(at_)));
    return value;
  }

  const std::filesystem::path& path_;
  std::string_view text_;
  std::size_t at_ = 0;
  Header header_;
};

// What InputFile is to a file, to bytes in memory.
class MemoryFile {
 public:
  MemoryFile(const std::filesystem::path& path, std::span<const std::byte> bytes) : path_(path), bytes_(bytes) {}
  const std::filesystem::path& path() const { return path_; }
  std::uint64_t left() const { return bytes_.size(); }
  void read(std::span<std::byte> into, std::string_view what) {
    if (into.size() > bytes_.size()) {
      throw FormatError(path_, "truncated: " + std::string(what) + " needs " + std::to_string(into.size()) +
                                   " bytes, " + std::to_string(bytes_.size()) + " are left");
    }
    std::copy_n(bytes_.begin(), into.size(), into.begin());
    bytes_ = bytes_.subspan(into.size());
  }

 private:
  const std::filesystem::path& path_;
  std::span<const std::byte> bytes_;
};

template <class File>
std::string read_header(File& file) {
  std::array<std::byte, 8> start{};
  file.read(start, "the magic string and version");
  if (std::memcmp(start.data(), kMagic.data(), kMagic.size()) != 0) {
    throw FormatError(file.path(), "is not a .npy file: wrong magic string");
  }
  const int major = std::to_integer<int>(start[6]), minor = std::to_integer<int>(start[7]);
  if (major < 1 || major > 3 || minor != 0) {
    throw FormatError(file.path(),
                      "version " + std::to_string(major) + "." + std::to_string(minor) + ", wanted 1.0, 2.0 or 3.0");
  }
  std::array<std::byte, 4> length_bytes{};
  file.read(std::span(length_bytes).first(major == 1 ? 2 : 4), "the header's length");
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 4; ++i) length |= std::to_integer<std::uint64_t>(length_bytes[i]) << (8 * i);
  if (length > kMaxHeader || length > file.left()) {
    throw FormatError(file.path(), "header of " + std::to_string(length) + " bytes, wanted at most " +
                                       std::to_string(std::min<std::uint64_t>(kMaxHeader, file.left())));
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  file.read(std::as_writable_bytes(std::span(text)), "the header");
  return text;
}

// Column-major elements to row-major ones: walks the result, keeping the source's offset by its strides.
std::vector<std::byte> transposed(const HostTensor& tensor) {
  const std::size_t size = size_of(tensor.dtype);
  std::vector<std::byte> result(tensor.bytes.size());
  const int rank = tensor.shape.rank();
  std::array<std::size_t, kMaxRank> index{}, stride{};
  std::size_t step = size;
  for (int i = 0; i < rank; ++i) {
    stride[static_cast<std::size_t>(i)] = step;
    step *= static_cast<std::size_t>(tensor.shape[i]);
  }
  std::size_t from = 0;
  for (std::size_t to = 0; to < result.size(); to += size) {
    std::memcpy(result.data() + to, tensor.bytes.data() + from, size);
    for (int i = rank - 1; i >= 0; --i) {
      const auto axis = static_cast<std::size_t>(i);
      from += stride[axis];
      if (++index[axis] < static_cast<std::size_t>(tensor.shape[i])) break;
      from -= stride[axis] * index[axis];
      index[axis] = 0;
    }
  }
  return result;
}

template <class File>
HostTensor read_array(File& file) {
  const std::filesystem::path& path = file.path();
  const std::string text = read_header(file);
  const Header header = HeaderParser(path, text).parse();
  const auto bytes = formats::checked_bytes(header.dtype, header.shape);
  if (!bytes || *bytes != file.left()) {
    throw FormatError(path, "shape " + to_string(header.shape) + " of " + std::string(name_of(header.dtype)) +
                                " needs " + (bytes ? std::to_string(*bytes) : std::string("too many")) +
                                " bytes, the file has " + std::to_string(file.left()) + " after its header");
  }
  HostTensor tensor{header.dtype, header.shape, std::vector<std::byte>(static_cast<std::size_t>(*bytes))};
  file.read(tensor.bytes, "the array");
  formats::check_bools(path, "the array", tensor.dtype, tensor.bytes);
  if (header.big_endian) formats::swap_elements(tensor.bytes, size_of(tensor.dtype));
  if (header.fortran && tensor.shape.rank() > 1) tensor.bytes = transposed(tensor);
  return tensor;
}

}  // namespace

HostTensor load_npy(const std::filesystem::path& path, std::source_location where) {
  const detail::Called called("load_npy", where);
  formats::InputFile file(path);
  return read_array(file);
}

HostTensor formats::parse_npy(const std::filesystem::path& path, std::span<const std::byte> file) {
  MemoryFile memory(path, file);
  return read_array(memory);
}

std::string formats::npy_header(const std::filesystem::path& path, DType dtype, const Dims& shape) {
  std::string descr;
  for (const Code& code : kCodes) {
    if (code.dtype == dtype) descr.append(size_of(dtype) > 1 ? "<" : "|").append(code.name);
  }
  if (descr.empty()) {
    throw FormatError(path, "the .npy format has no name for " + std::string(name_of(dtype)) +
                                "; save it as .safetensors, or convert it first");
  }
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + to_string(shape) + ", }";
  // Magic, version, length and header together take a multiple of 64 bytes, so that the data lies aligned.
  const std::size_t fixed = kMagic.size() + 4;
  header.append((64 - (fixed + header.size() + 1) % 64) % 64, ' ').push_back('\n');
  const std::array<char, 4> rest = {1, 0, static_cast<char>(header.size() & 0xff),
                                    static_cast<char>(header.size() >> 8)};
  return std::string(kMagic).append(rest.data(), rest.size()).append(header);
}

void save_npy(const std::filesystem::path& path, DType dtype, const Dims& shape, std::span<const std::byte> bytes,
              std::source_location where) {
  const detail::Called called("save_npy", where);
  formats::check_bytes(dtype, shape, bytes.size());
  const std::string header = formats::npy_header(path, dtype, shape);
  formats::OutputFile file(path);
  file.write(header);
  file.write(bytes);
  file.commit();
}

}  // namespace sluice
