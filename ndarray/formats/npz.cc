#include "sluice/ndarray/formats/npz.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <unordered_set>

#include "sluice/ndarray/called.h"
#include "sluice/ndarray/formats/file_io.h"
#include "sluice/ndarray/formats/npy_bytes.h"

namespace sluice {
namespace {

using formats::in_quotes;

constexpr std::uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                        kLocator64 = 0x07064b50;
constexpr std::uint32_t kMost32 = 0xffffffff;
constexpr std::uint16_t kMost16 = 0xffff;
constexpr std::uint64_t kDeflateRatio = 1032;  // deflate cannot pass this
constexpr std::size_t kFirstChunk = std::size_t{1} << 16;

std::uint64_t little(std::span<const std::byte> bytes, std::size_t at, std::size_t size) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i) value |= std::to_integer<std::uint64_t>(bytes[at + i]) << (8 * i);
  return value;
}

std::uint32_t crc_of(std::uint32_t crc, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t n = std::min(bytes.size(), std::size_t{1} << 30);
    crc = static_cast<std::uint32_t>(crc32(crc, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(n)));
    bytes = bytes.subspan(n);
  }
  return crc;
}

struct Member {
  std::string name;
  std::uint16_t flags = 0, method = 0;
  std::uint32_t crc = 0;
  std::uint64_t packed = 0, size = 0, offset = 0;
};

class Reader {
 public:
  Reader(const std::filesystem::path& path, const NpzReadOptions& options) : file_(path), options_(options) {}

  std::vector<std::pair<std::string, HostTensor>> read() {
    const std::vector<Member> members = directory();
    check(members);
    std::vector<std::pair<std::string, HostTensor>> result;
    for (const Member& member : members) {
      const std::vector<std::byte> npy = unpack(member);
      result.emplace_back(member.name.substr(0, member.name.size() - 4),
                          formats::parse_npy(file_.path() + ", member " + in_quotes(member.name), npy));
    }
    return result;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw FormatError(file_.path(), what); }
  [[noreturn]] void fail(const Member& member, const std::string& what) const {
    fail("member " + in_quotes(member.name) + ": " + what);
  }

  std::vector<std::byte> bytes_at(std::uint64_t offset, std::uint64_t size, std::string_view what) {
    if (offset > file_.size() || size > file_.size() - offset) {
      fail("truncated: " + std::string(what) + " needs " + std::to_string(size) + " bytes at " +
           std::to_string(offset) + ", the file has " + std::to_string(file_.size()));
    }
    std::vector<std::byte> bytes(static_cast<std::size_t>(size));
    file_.seek(offset);
    file_.read(bytes, what);
    return bytes;
  }

  std::vector<Member> directory() {
    constexpr std::uint64_t end_size = 22;
    if (file_.size() < end_size) fail("is not a .npz file: too short for a zip archive");
    const std::uint64_t tail_size = std::min<std::uint64_t>(file_.size(), end_size + kMost16);
    const std::uint64_t tail_at = file_.size() - tail_size;
    const auto tail = bytes_at(tail_at, tail_size, "the archive's end");
    std::size_t at = tail.size() - end_size;
    const auto is_end = [&] {
      return little(tail, at, 4) == kEnd && little(tail, at + 20, 2) == tail.size() - at - end_size;
    };
    while (!is_end()) {
      if (at-- == 0) fail("is not a .npz file: no end of a zip archive's directory");
    }
    const std::uint64_t end_at = tail_at + at;
    std::uint64_t disk = little(tail, at + 4, 2), count = little(tail, at + 10, 2), size = little(tail, at + 12, 4),
                  begin = little(tail, at + 16, 4), limit = end_at;
    if (end_at >= 20 && (count == kMost16 || size == kMost32 || begin == kMost32)) {
      const auto locator = bytes_at(end_at - 20, 20, "the zip64 locator");
      if (little(locator, 0, 4) == kLocator64) {
        limit = little(locator, 8, 8);
        const auto end64 = bytes_at(limit, 56, "the zip64 end");
        if (little(end64, 0, 4) != kEnd64) fail("no zip64 end of the directory where one is told to be");
        disk = little(end64, 16, 4);
        count = little(end64, 32, 8);
        size = little(end64, 40, 8);
        begin = little(end64, 48, 8);
      }
    }
    if (disk != 0) fail("is a part of an archive on several disks");
    if (begin > limit || size != limit - begin || count > size / 46) {
      fail("the directory of " + std::to_string(count) + " members and " + std::to_string(size) +
           " bytes does not fit where it is told to be");
    }
    directory_at_ = begin;
    return parse_directory(bytes_at(begin, size, "the directory"), count);
  }

  std::vector<Member> parse_directory(std::span<const std::byte> bytes, std::uint64_t count) {
    std::vector<Member> members;
    std::size_t at = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (bytes.size() - at < 46 || little(bytes, at, 4) != kCentral) fail("malformed directory");
      Member member{"",
                    static_cast<std::uint16_t>(little(bytes, at + 8, 2)),
                    static_cast<std::uint16_t>(little(bytes, at + 10, 2)),
                    static_cast<std::uint32_t>(little(bytes, at + 16, 4)),
                    little(bytes, at + 20, 4),
                    little(bytes, at + 24, 4),
                    little(bytes, at + 42, 4)};
      const auto name = static_cast<std::size_t>(little(bytes, at + 28, 2)),
                 extra = static_cast<std::size_t>(little(bytes, at + 30, 2)),
                 comment = static_cast<std::size_t>(little(bytes, at + 32, 2));
      at += 46;
      if (bytes.size() - at < name + extra + comment) fail("malformed directory");
      member.name.assign(reinterpret_cast<const char*>(bytes.data() + at), name);
      read_extra(bytes.subspan(at + name, extra), member);
      at += name + extra + comment;
      members.push_back(std::move(member));
    }
    if (at != bytes.size()) fail("bytes after the directory's last member");
    return members;
  }

  // Sizes that do not fit 32 bits stand in an extra field, in this order, those alone that are needed.
  void read_extra(std::span<const std::byte> extra, Member& member) {
    while (extra.size() >= 4) {
      const auto id = little(extra, 0, 2);
      const auto size = static_cast<std::size_t>(little(extra, 2, 2));
      if (size > extra.size() - 4) fail(member, "malformed extra field");
      if (id == 1) {
        std::size_t at = 4;
        for (std::uint64_t* value : {&member.size, &member.packed, &member.offset}) {
          if (*value != kMost32) continue;
          if (at + 8 > 4 + size) fail(member, "malformed zip64 field");
          *value = little(extra, at, 8);
          at += 8;
        }
      }
      extra = extra.subspan(4 + size);
    }
  }

  void check(const std::vector<Member>& members) const {
    std::unordered_set<std::string_view> names;
    std::uint64_t total = 0;
    for (const Member& m : members) {
      if (!names.insert(m.name).second) fail(m, "is there twice");
      if (m.name.size() < 5 || !m.name.ends_with(".npy")) fail(m, "is no .npy file");
      if (m.flags & 1) fail(m, "is encrypted");
      if (m.method != 0 && m.method != 8) {
        fail(m, "packed by method " + std::to_string(m.method) + ", wanted 0 (stored) or 8 (deflated)");
      }
      const bool fits = m.method == 0 ? m.size == m.packed : m.size / kDeflateRatio <= m.packed;
      if (m.packed > file_.size() || !fits) {
        fail(m, std::to_string(m.size) + " bytes cannot be in " + std::to_string(m.packed) +
                    " packed ones of a file of " + std::to_string(file_.size()));
      }
      if (m.size > options_.most_bytes - total) {
        fail(m, "the members unpacked pass " + std::to_string(options_.most_bytes) + " bytes, the limit");
      }
      total += m.size;
    }
    // Members that lie over one another would let a small file stand for a large one.
    std::vector<const Member*> order;
    for (const Member& m : members) order.push_back(&m);
    std::sort(order.begin(), order.end(), [](const Member* a, const Member* b) { return a->offset < b->offset; });
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::uint64_t limit = i + 1 < order.size() ? order[i + 1]->offset : directory_at_;
      const Member& m = *order[i];
      if (m.offset > limit || limit - m.offset < 30 || m.packed > limit - m.offset - 30) {
        fail(m, "lies over what follows it");
      }
    }
  }

  std::vector<std::byte> unpack(const Member& member) {
    const auto local = bytes_at(member.offset, 30, "a member's header");
    if (little(local, 0, 4) != kLocal) fail(member, "no header where the directory tells");
    if (little(local, 8, 2) != member.method) fail(member, "its header tells another method than the directory");
    const std::uint64_t data = member.offset + 30 + little(local, 26, 2) + little(local, 28, 2);
    const auto name = bytes_at(member.offset + 30, little(local, 26, 2), "a member's name");
    if (std::string_view(reinterpret_cast<const char*>(name.data()), name.size()) != member.name) {
      fail(member, "its header has another name");
    }
    std::vector<std::byte> bytes =
        member.method == 0 ? bytes_at(data, member.size, "member " + in_quotes(member.name)) : inflated(member, data);
    if (crc_of(0, bytes) != member.crc) fail(member, "its CRC is not the one that the directory tells");
    return bytes;
  }

  std::vector<std::byte> inflated(const Member& member, std::uint64_t data) {
    if (data > file_.size() || member.packed > file_.size() - data) fail(member, "truncated");
    file_.seek(data);
    struct Stream : z_stream {
      Stream() : z_stream{} { ready = inflateInit2(this, -15) == Z_OK; }
      ~Stream() {
        if (ready) inflateEnd(this);
      }
      bool ready = false;
    } stream;
    if (!stream.ready) fail("cannot start zlib");
    std::vector<std::byte> bytes, input(static_cast<std::size_t>(std::min<std::uint64_t>(member.packed, kFirstChunk)));
    std::uint64_t left = member.packed;
    for (int status = Z_OK; status != Z_STREAM_END;) {
      if (stream.avail_in == 0 && left > 0) {
        const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(left, input.size()));
        file_.read(std::span(input).first(n), "member " + in_quotes(member.name));
        left -= n;
        stream.next_in = reinterpret_cast<Bytef*>(input.data());
        stream.avail_in = static_cast<uInt>(n);
      }
      const std::uint64_t done = stream.total_out;
      if (done == bytes.size() && bytes.size() < member.size) {
        bytes.resize(static_cast<std::size_t>(
            std::min<std::uint64_t>(member.size, std::max<std::uint64_t>(kFirstChunk, 2 * done))));
      }
      std::byte spare{};  // what is beyond the told size shows here
      const bool full = done == bytes.size();
      stream.next_out = reinterpret_cast<Bytef*>(full ? &spare : bytes.data() + done);
      stream.avail_out =
          full ? 1 : static_cast<uInt>(std::min<std::uint64_t>(bytes.size() - done, std::uint64_t{1} << 30));
      status = inflate(&stream, Z_NO_FLUSH);
      if (stream.total_out > member.size) fail(member, "has more bytes than the directory tells");
      if (status != Z_OK && status != Z_STREAM_END) fail(member, "its packed bytes are damaged or cut");
    }
    if (stream.total_out != member.size || stream.avail_in != 0 || left != 0) {
      fail(member, "has not the sizes that the directory tells");
    }
    return bytes;
  }

  formats::InputFile file_;
  const NpzReadOptions& options_;
  std::uint64_t directory_at_ = 0;
};

void put(std::string& text, std::uint64_t value, int size) {
  for (int i = 0; i < size; ++i) text.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

std::vector<std::byte> deflated(std::span<const std::byte> header, std::span<const std::byte> elements) {
  z_stream stream{};
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::bad_alloc();
  }
  std::vector<std::byte> packed, chunk(kFirstChunk);
  const auto feed = [&](std::span<const std::byte> bytes, bool last) {
    do {
      const std::size_t n = std::min(bytes.size(), std::size_t{1} << 30);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
      stream.avail_in = static_cast<uInt>(n);
      bytes = bytes.subspan(n);
      do {
        stream.next_out = reinterpret_cast<Bytef*>(chunk.data());
        stream.avail_out = static_cast<uInt>(chunk.size());
        deflate(&stream, last && bytes.empty() ? Z_FINISH : Z_NO_FLUSH);
        packed.insert(packed.end(), chunk.begin(), chunk.end() - static_cast<std::ptrdiff_t>(stream.avail_out));
      } while (stream.avail_out == 0);
    } while (!bytes.empty());
  };
  feed(header, elements.empty());
  if (!elements.empty()) feed(elements, true);
  deflateEnd(&stream);
  return packed;
}

}  // namespace

std::vector<std::pair<std::string, HostTensor>> load_npz(const std::filesystem::path& path,
                                                         const NpzReadOptions& options, std::source_location where) {
  const detail::Called called("load_npz", where);
  return Reader(path, options).read();
}

void save_npz(const std::filesystem::path& path, std::span<const NamedTensor> tensors, const NpzWriteOptions& options,
              std::source_location where) {
  const detail::Called called("save_npz", where);
  std::unordered_set<std::string_view> names;
  std::vector<std::string> headers;
  for (const NamedTensor& tensor : tensors) {
    formats::check_bytes(tensor.dtype, tensor.shape, tensor.bytes.size());
    const bool fits = !tensor.name.empty() && tensor.name.size() <= 65531;
    if (!fits || !names.insert(tensor.name).second) {
      formats::refuse_argument("the name " + in_quotes(tensor.name) +
                               (fits ? " is used twice" : " is empty or too long"));
    }
    headers.push_back(formats::npy_header(path, tensor.dtype, tensor.shape));
  }
  formats::OutputFile file(path);
  std::string directory;
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const NamedTensor& tensor = tensors[i];
    const auto header = std::as_bytes(std::span(headers[i].data(), headers[i].size()));
    std::vector<std::byte> packed;
    if (options.compress) packed = deflated(header, tensor.bytes);
    const std::uint64_t size = header.size() + tensor.bytes.size(), stored = options.compress ? packed.size() : size;
    const bool large = size >= kMost32 || stored >= kMost32;
    const std::string name = tensor.name + ".npy";
    std::string common;  // what the member's header and the directory both say
    put(common, large || offset >= kMost32 ? 45 : 20, 2);
    put(common, 0x800, 2);  // the name is UTF-8
    put(common, options.compress ? 8 : 0, 2);
    put(common, 0, 2);
    put(common, 0x21, 2);  // the first of January 1980
    put(common, crc_of(crc_of(0, header), tensor.bytes), 4);
    put(common, large ? kMost32 : stored, 4);
    put(common, large ? kMost32 : size, 4);
    put(common, name.size(), 2);
    std::string sizes;
    if (large) {
      put(sizes, size, 8);
      put(sizes, stored, 8);
    }
    std::string local;
    put(local, kLocal, 4);
    local += common;
    put(local, sizes.empty() ? 0 : 4 + sizes.size(), 2);
    local += name;
    if (!sizes.empty()) {
      put(local, 1, 2);
      put(local, sizes.size(), 2);
      local += sizes;
    }
    file.write(local);
    if (options.compress) {
      file.write(packed);
    } else {
      file.write(header);
      file.write(tensor.bytes);
    }
    if (offset >= kMost32) put(sizes, offset, 8);
    put(directory, kCentral, 4);
    put(directory, 45, 2);
    directory += common;
    put(directory, sizes.empty() ? 0 : 4 + sizes.size(), 2);
    put(directory, 0, 8);  // no comment, the first disk, no attributes
    put(directory, 0, 2);
    put(directory, std::min<std::uint64_t>(offset, kMost32), 4);
    directory += name;
    if (!sizes.empty()) {
      put(directory, 1, 2);
      put(directory, sizes.size(), 2);
      directory += sizes;
    }
    offset += local.size() + stored;
  }
  file.write(directory);
  std::string end;
  if (tensors.size() >= kMost16 || offset >= kMost32 || directory.size() >= kMost32) {
    put(end, kEnd64, 4);
    put(end, 44, 8);
    put(end, 45, 2);
    put(end, 45, 2);
    put(end, 0, 4 + 4);
    put(end, tensors.size(), 8);
    put(end, tensors.size(), 8);
    put(end, directory.size(), 8);
    put(end, offset, 8);
    put(end, kLocator64, 4);
    put(end, 0, 4);
    put(end, offset + directory.size(), 8);
    put(end, 1, 4);
  }
  put(end, kEnd, 4);
  put(end, 0, 2 + 2);
  put(end, std::min<std::uint64_t>(tensors.size(), kMost16), 2);
  put(end, std::min<std::uint64_t>(tensors.size(), kMost16), 2);
  put(end, std::min<std::uint64_t>(directory.size(), kMost32), 4);
  put(end, std::min<std::uint64_t>(offset, kMost32), 4);
  put(end, 0, 2);
  file.write(end);
  file.commit();
}

}  // namespace sluice
