#include "sluice/ndarray/formats/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "sluice/engine/layer.h"
#include "sluice/ndarray/user_names.h"

namespace sluice {
namespace {

std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

/// "[load_npy] main.cc:41: ", or nothing.
std::string place_of_call() {
  const std::source_location& where = current_scope().where;
  const char* const called = where.line() != 0 ? detail::called_function() : nullptr;
  return called ? "[" + std::string(called) + "] " + call_site(where) + ": " : "";
}

}  // namespace

FormatError::FormatError(const std::string& path, std::string_view message)
    : std::runtime_error(one_line(place_of_call() + (path.empty() ? "''" : path) + ": " + std::string(message))) {}

namespace formats {

static_assert(std::endian::native == std::endian::little, "tensors are read and written as they lie in memory");

namespace {

// One call moves at most this much, so that a count fits the system's signed sizes everywhere.
constexpr std::size_t kMaxTransfer = std::size_t{1} << 30;

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  if (path_.empty()) throw FormatError(path_, "cannot open: the path is empty");
  // Without O_NONBLOCK, opening a pipe that nobody writes would wait for ever.
  do {
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) throw FormatError(path_, "cannot open: " + reason(errno));
  struct stat status {};
  const int error = ::fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (error != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    throw FormatError(path_, error != 0                ? "cannot read: " + reason(error)
                             : S_ISDIR(status.st_mode) ? "is a directory, wanted a regular file"
                                                       : "is not a regular file");
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

InputFile::~InputFile() { ::close(descriptor_); }

std::size_t InputFile::read_some(std::span<std::byte> into) {
  std::size_t done = 0;
  const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(into.size(), left()));
  while (done < wanted) {
    const auto got = ::read(descriptor_, into.data() + done, std::min(wanted - done, kMaxTransfer));
    if (got < 0) {
      if (errno == EINTR) continue;
      throw FormatError(path_, "cannot read: " + reason(errno));
    }
    if (got == 0) break;  // the file has shrunk since it was opened
    done += static_cast<std::size_t>(got);
  }
  position_ += done;
  return done;
}

void InputFile::read(std::span<std::byte> into, std::string_view what) {
  const std::size_t got = read_some(into);
  if (got < into.size()) {
    throw FormatError(path_, "truncated: " + std::string(what) + " needs " + std::to_string(into.size()) + " bytes, " +
                                 std::to_string(got) + " are left");
  }
}

void InputFile::seek(std::uint64_t position) {
  position = std::min(position, size_);
  if (::lseek(descriptor_, static_cast<off_t>(position), SEEK_SET) < 0) {
    throw FormatError(path_, "cannot seek: " + reason(errno));
  }
  position_ = position;
}

std::optional<std::uint64_t> checked_bytes(DType dtype, const Dims& shape) {
  constexpr auto limit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t room = size_of(dtype);
  bool empty = false;
  for (auto size : shape) {
    if (size < 0) return std::nullopt;
    const auto factor = static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1));
    if (room > limit / factor) return std::nullopt;
    room *= factor;
    empty = empty || size == 0;
  }
  return empty ? 0 : room;
}

void refuse_argument(const std::string& message) { throw std::invalid_argument(one_line(place_of_call() + message)); }

void check_bytes(DType dtype, const Dims& shape, std::size_t bytes) {
  const auto wanted = checked_bytes(dtype, shape);
  if (wanted && *wanted == bytes) return;
  refuse_argument("shape " + to_string(shape) + " of " + std::string(name_of(dtype)) + " needs " +
                  (wanted ? std::to_string(*wanted) : std::string("too many")) + " bytes, given " +
                  std::to_string(bytes));
}

void check_bools(const std::filesystem::path& path, std::string_view what, DType dtype,
                 std::span<const std::byte> bytes) {
  if (dtype != DType::boolean) return;
  const auto bad = std::find_if(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; });
  if (bad == bytes.end()) return;
  throw FormatError(path, std::string(what) + ": element " + std::to_string(bad - bytes.begin()) +
                              " of a bool array is " + std::to_string(std::to_integer<int>(*bad)) + ", wanted 0 or 1");
}

namespace {

/// The length of the UTF-8 sequence that the text begins with, of a character that shows; 0 if there is none.
std::size_t shown_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const std::size_t length = first >= 0xc2 && first < 0xe0   ? 2
                             : first >= 0xe0 && first < 0xf0 ? 3
                             : first >= 0xf0 && first < 0xf5 ? 4
                                                             : 0;
  unsigned code = first & (0xffU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr unsigned kLeast[] = {0, 0, 0xa0, 0x800, 0x10000};  // below 0xa0 are control characters
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return code < kLeast[length] || code > 0x10ffff || surrogate ? 0 : length;
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr std::size_t longest = 80;
  std::string result = "'";
  std::size_t at = 0;
  while (at < text.size() && at < longest) {
    const std::size_t length = shown_length(text.substr(at));
    if (length > 0) {
      result += text.substr(at, length);
    } else {
      constexpr char kDigits[] = "0123456789abcdef";
      const auto byte = static_cast<unsigned char>(text[at]);
      result.append("\\x").append({kDigits[byte >> 4], kDigits[byte & 15]});
    }
    at += std::max<std::size_t>(1, length);
  }
  return result + (at < text.size() ? "...'" : "'");
}

void swap_elements(std::span<std::byte> bytes, std::size_t element_size) {
  if (element_size < 2) return;
  for (std::size_t at = 0; at + element_size <= bytes.size(); at += element_size) {
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                 bytes.begin() + static_cast<std::ptrdiff_t>(at + element_size));
  }
}

}  // namespace formats
}  // namespace sluice
