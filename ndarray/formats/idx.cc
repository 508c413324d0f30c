#include "sluice/ndarray/formats/idx.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

#include "sluice/ndarray/called.h"
#include "sluice/ndarray/formats/file_io.h"

namespace sluice {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{4} << 30;
constexpr std::uint64_t kMaxGzipRatio = 1100;  // deflate cannot pass 1032 to 1
constexpr std::size_t kFirstChunk = std::size_t{1} << 20;

// The bytes of a file, unpacked where it is gzip (one member, or several behind one another, as gzip allows).
class ByteSource {
 public:
  explicit ByteSource(const std::filesystem::path& path) : file_(path) {
    input_size_ = file_.read_some(input_);
    gzip_ = input_size_ >= 2 && input_[0] == std::byte{0x1f} && input_[1] == std::byte{0x8b};
    if (!gzip_) return;
    // 15 is the largest window; 16 more asks for gzip's header and checksum.
    if (inflateInit2(&stream_, 15 + 16) != Z_OK) throw FormatError(path, "cannot start zlib");
  }
  ~ByteSource() {
    if (gzip_) inflateEnd(&stream_);
  }
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  bool gzip() const { return gzip_; }
  std::uint64_t file_size() const { return file_.size(); }

  // Fewer bytes than asked only where the contents end.
  std::size_t read(std::span<std::byte> into) { return gzip_ ? unpack(into) : copy(into); }

 private:
  bool refill() {
    if (used_ < input_size_) return true;
    used_ = 0;
    input_size_ = file_.read_some(input_);
    return input_size_ > 0;
  }

  std::size_t copy(std::span<std::byte> into) {
    std::size_t done = 0;
    while (done < into.size() && refill()) {
      const std::size_t n = std::min(into.size() - done, input_size_ - used_);
      std::copy_n(input_.begin() + static_cast<std::ptrdiff_t>(used_), n,
                  into.begin() + static_cast<std::ptrdiff_t>(done));
      used_ += n;
      done += n;
    }
    return done;
  }

  std::size_t unpack(std::span<std::byte> into) {
    std::size_t done = 0;
    while (done < into.size()) {
      if (!refill()) {
        if (member_open_) throw FormatError(file_.path(), "truncated: its gzip stream does not end");
        break;
      }
      if (!member_open_) inflateReset(&stream_);
      member_open_ = true;
      stream_.next_in = reinterpret_cast<Bytef*>(input_.data() + used_);
      stream_.avail_in = static_cast<uInt>(input_size_ - used_);
      stream_.next_out = reinterpret_cast<Bytef*>(into.data() + done);
      const auto room = static_cast<uInt>(std::min<std::size_t>(into.size() - done, 1u << 30));
      stream_.avail_out = room;
      const int status = inflate(&stream_, Z_NO_FLUSH);
      used_ = input_size_ - stream_.avail_in;
      done += room - stream_.avail_out;
      if (status == Z_STREAM_END) {
        member_open_ = false;
      } else if (status != Z_OK) {
        throw FormatError(file_.path(),
                          std::string("corrupt gzip: ") + (stream_.msg != nullptr ? stream_.msg : ::zError(status)));
      }
    }
    return done;
  }

  formats::InputFile file_;
  std::array<std::byte, 64 * 1024> input_;
  std::size_t input_size_ = 0;
  std::size_t used_ = 0;
  bool gzip_ = false;
  bool member_open_ = true;
  z_stream stream_{};
};

std::string hex(std::uint32_t value) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "0x%08x", static_cast<unsigned>(value));
  return text.data();
}

std::uint32_t read_u32(ByteSource& source, const std::filesystem::path& path, const char* what) {
  std::array<std::byte, 4> bytes{};
  const std::size_t got = source.read(bytes);
  if (got < bytes.size()) {
    throw FormatError(path, "truncated: " + std::string(what) + " needs 4 bytes, " + std::to_string(got) + " are left");
  }
  std::uint32_t value = 0;
  for (std::byte b : bytes) value = value << 8 | std::to_integer<std::uint32_t>(b);
  return value;
}

DType dtype_of_magic(const std::filesystem::path& path, std::uint32_t magic) {
  if (magic >> 16 == 0) {
    switch (magic >> 8) {
      case 0x08:
        return DType::u8;
      case 0x09:
        return DType::i8;
      case 0x0c:
        return DType::i32;
      case 0x0d:
        return DType::f32;
      case 0x0e:
        return DType::f64;
      default:
        break;
    }
  }
  throw FormatError(
      path, "magic number " + hex(magic) + " is not IDX, wanted 0x0000TTRR: type TT of 08 09 0c 0d 0e, rank RR");
}

}  // namespace

HostTensor load_idx(const std::string& path, std::source_location where) {
  const detail::Called called("load_idx", where);
  ByteSource source(path);
  const std::uint32_t magic = read_u32(source, path, "the magic number");
  HostTensor tensor{dtype_of_magic(path, magic), {}, {}};
  const int rank = static_cast<int>(magic & 0xff);
  if (rank < 1 || rank > kMaxRank) {
    throw FormatError(path, "magic number " + hex(magic) + ": rank " + std::to_string(rank) + ", wanted 1 to " +
                                std::to_string(kMaxRank));
  }
  for (int i = 0; i < rank; ++i) tensor.shape.push_back(read_u32(source, path, "a size in the header"));

  const auto promised = formats::checked_bytes(tensor.dtype, tensor.shape);
  const std::uint64_t room = source.gzip() ? source.file_size() * kMaxGzipRatio : source.file_size();
  if (!promised || *promised > std::min(kMaxBytes, room)) {
    throw FormatError(
        path, "its header promises shape " + to_string(tensor.shape) + " of " + std::string(name_of(tensor.dtype)) +
                  ", " + (promised ? std::to_string(*promised) : std::string("too many")) + " bytes, more than " +
                  (room < kMaxBytes ? "a file of " + std::to_string(source.file_size()) + " bytes can hold"
                                    : "the limit of " + std::to_string(kMaxBytes)));
  }
  const auto wanted = static_cast<std::size_t>(*promised);
  std::size_t have = 0;
  while (have < wanted) {
    const std::size_t next = std::min(wanted, std::max(kFirstChunk, 2 * have));
    tensor.bytes.reserve(next);  // exactly: resize alone may take more
    tensor.bytes.resize(next);
    have += source.read(std::span(tensor.bytes).subspan(have));
    if (have < next) {
      throw FormatError(path, "truncated: shape " + to_string(tensor.shape) + " of " +
                                  std::string(name_of(tensor.dtype)) + " needs " + std::to_string(wanted) +
                                  " bytes, the file holds " + std::to_string(have));
    }
  }
  std::array<std::byte, 1> spare;
  if (source.read(spare) != 0) {
    throw FormatError(path, "bytes to spare: shape " + to_string(tensor.shape) + " of " +
                                std::string(name_of(tensor.dtype)) + " needs " + std::to_string(wanted) +
                                " bytes, the file holds more");
  }
  formats::swap_elements(tensor.bytes, size_of(tensor.dtype));  // IDX is big-endian
  return tensor;
}

}  // namespace sluice
