#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "sluice/ndarray/formats/idx.h"
#include "sluice/tests/support/format_checks.h"
#include "sluice/tests/support/idx_files.h"

namespace sluice {
namespace {

using test::big_endian;
using test::expect_format_error;
using test::gzip;
using test::idx;
using test::TemporaryDirectory;
using test::write_file;

void load(const std::filesystem::path& path) { load_idx(path); }

std::string counting(std::size_t n) {
  std::string bytes(n, '\0');
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<char>(i * 7);
  return bytes;
}

TEST(Idx, ReadsEveryTypePlainAndPacked) {
  const TemporaryDirectory directory;
  struct Case {
    std::uint32_t type;
    DType dtype;
  };
  for (const Case& c :
       {Case{0x08, DType::u8}, {0x09, DType::i8}, {0x0c, DType::i32}, {0x0d, DType::f32}, {0x0e, DType::f64}}) {
    for (const std::vector<std::uint32_t>& shape :
         {std::vector<std::uint32_t>{5}, {0}, {2, 3}, {2, 0, 3}, {1, 2, 1, 2, 1, 3, 1, 2}}) {
      std::size_t count = 1;
      Dims wanted;
      for (auto size : shape) count *= size, wanted.push_back(size);
      const std::size_t size = size_of(c.dtype);
      const std::string data = counting(count * size);
      for (const std::string& file : {idx(c.type, shape, data), gzip(idx(c.type, shape, data))}) {
        write_file(directory / "a", file);
        const HostTensor tensor = load_idx(directory / "a");
        EXPECT_EQ(tensor.dtype, c.dtype);
        EXPECT_EQ(tensor.shape, wanted);
        ASSERT_EQ(tensor.bytes.size(), data.size());
        for (std::size_t i = 0; i < data.size(); ++i) {  // big-endian in the file, little-endian here
          EXPECT_EQ(tensor.bytes[i], static_cast<std::byte>(data[i - i % size + size - 1 - i % size]));
        }
      }
    }
  }
  write_file(directory / "a", idx(0x0c, {2}, std::string("\0\0\1\2\xff\xff\xff\xff", 8)));
  const HostTensor tensor = load_idx(directory / "a");
  EXPECT_EQ(tensor.as<std::int32_t>()[0], 258);
  EXPECT_EQ(tensor.as<std::int32_t>()[1], -1);
}

TEST(Idx, ReadsGzipOfSeveralMembers) {
  const TemporaryDirectory directory;
  const std::string data = counting(3'000'000), plain = idx(0x08, {3'000'000}, data);
  write_file(directory / "a.gz", gzip(plain.substr(0, 5)) + gzip("") + gzip(plain.substr(5)));
  const HostTensor tensor = load_idx(directory / "a.gz");
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()), data);
}

TEST(Idx, RefusesMalformedFiles) {
  const TemporaryDirectory directory;
  const auto path = directory / "bad-idx";
  const auto refuses = [&](const std::string& contents, const std::string& words) {
    write_file(path, contents);
    expect_format_error(path, words, load);
  };
  const auto refuses_both = [&](const std::string& contents, const std::string& words) {
    refuses(contents, words);
    refuses(gzip(contents), words);
  };
  const std::string good = idx(0x08, {2, 3}, "abcdef");
  refuses_both("", "truncated: the magic number needs 4 bytes, 0 are left");
  refuses_both(good.substr(0, 3), "truncated: the magic number needs 4 bytes, 3 are left");
  refuses_both(good.substr(0, 10), "truncated: a size in the header needs 4 bytes, 2 are left");
  refuses_both(good.substr(0, 17), "truncated: shape (2, 3) of u8 needs 6 bytes, the file holds 5");
  refuses_both(good + "g", "bytes to spare: shape (2, 3) of u8 needs 6 bytes");
  refuses_both("hello, world", "magic number 0x68656c6c is not IDX");
  refuses_both(big_endian(0x00000b01) + big_endian(1) + "12", "magic number 0x00000b01 is not IDX");
  refuses_both(big_endian(0x00010801) + big_endian(1) + "1", "magic number 0x00010801 is not IDX");
  refuses_both(big_endian(0x01030800) + big_endian(1) + "1", "is not IDX");
  refuses_both(big_endian(0x00000800), "rank 0, wanted 1 to 8");
  refuses_both(big_endian(0x00000809), "rank 9, wanted 1 to 8");
  refuses_both(idx(0x0e, {4294967295u, 4294967295u, 4294967295u}, ""), "too many bytes");
  refuses(idx(0x08, {65536, 65535}, ""), "4294901760 bytes, more than a file of 12 bytes can hold");
  refuses(gzip(idx(0x08, {65536, 65535}, "")), "bytes, more than a file of");

  const std::string packed = gzip(idx(0x08, {5000}, counting(5000)));
  write_file(path, packed);
  EXPECT_NO_THROW(load_idx(path));
  refuses(packed.substr(0, packed.size() / 2), "truncated: its gzip stream does not end");
  refuses(packed.substr(0, packed.size() - 1), "truncated: its gzip stream does not end");
  refuses(packed + "garbage", "corrupt gzip: incorrect header check");
  std::string corrupt = packed;
  corrupt[packed.size() - 6] = static_cast<char>(corrupt[packed.size() - 6] ^ 1);
  refuses(corrupt, "corrupt gzip: incorrect data check");
  corrupt = packed;
  corrupt[2] = 7;
  refuses(corrupt, "corrupt gzip: unknown compression method");
  // A bomb: 100 MB of zeros in 100 kB behind a header that promises six bytes. No more than that is unpacked.
  const std::string bomb = gzip(idx(0x08, {2, 3}, std::string(100'000'000, '\0')));
  test::reset_largest_allocation();
  refuses(bomb, "bytes to spare");
  EXPECT_LT(test::largest_allocation(), bomb.size() + 4096);
  // One that promises what deflate could hold: memory grows with what comes, not with the promise.
  const std::string liar = gzip(idx(0x08, {100'000'000}, counting(5000))) + std::string(200'000, 'x');
  write_file(path, liar);
  test::reset_largest_allocation();
  expect_format_error(path, "corrupt gzip", load);
  EXPECT_LE(test::largest_allocation(), std::size_t{1} << 20);
}

TEST(Idx, TakesRegularFilesOnly) {
  const TemporaryDirectory directory;
  expect_format_error(directory / "missing", "No such file", load);
  expect_format_error(directory.path(), "is a directory", load);
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  expect_format_error(directory / "pipe", "is not a regular file", load);
}

TEST(Idx, SurvivesFuzzing) {
  const auto most = [](std::size_t size) { return 1100 * size + 70'000; };
  const std::string plain = idx(0x0d, {4, 5}, counting(80));
  test::fuzz(
      plain, 12, 2000, 3, [](std::size_t size) { return size + 70'000; }, load);
  const std::string packed = gzip(idx(0x08, {60, 60}, counting(3600)));
  test::fuzz(packed, packed.size(), 3000, 4, most, load);
}

}  // namespace
}  // namespace sluice
