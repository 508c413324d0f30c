#include <gtest/gtest.h>

#include "sluice/ndarray/files.h"
#include "sluice/ndarray/formats/npz.h"
#include "sluice/operators/operators.h"
#include "sluice/tests/support/format_checks.h"

namespace sluice {
namespace {

using namespace std::string_literals;  // zero bytes in texts

using test::expect_equal;
using test::expect_format_error;
using test::read_file;
using test::TemporaryDirectory;
using test::write_file;

void load(const std::filesystem::path& path) { load_npz(path); }

class Npz : public ::testing::TestWithParam<bool> {
 protected:
  void save() const {
    save_npz(path, std::vector<NamedTensor>{{"a", a.dtype, a.shape, a.bytes}, {"b/c", b.dtype, b.shape, b.bytes}},
             {.compress = GetParam()});
  }
  /// Refused with these words after `change` is written over the file at `at` bytes from where `mark` first stands.
  void refuses(const std::string& mark, std::size_t at, const std::string& change, const std::string& words) const {
    std::string contents = good;
    const std::size_t found = contents.find(mark);
    ASSERT_NE(found, std::string::npos);
    contents.replace(found + at, change.size(), change);
    write_file(path, contents);
    expect_format_error(path, words, load);
  }
  void SetUp() override {
    save();
    good = read_file(path);
  }
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "a.npz";
  const HostTensor a = test::random_tensor(DType::f32, {30, 40}, 1), b = test::random_tensor(DType::boolean, {7}, 2);
  std::string good;
};
INSTANTIATE_TEST_SUITE_P(StoredAndPacked, Npz, ::testing::Bool());

const std::string kCentralMark = "PK\1\2", kEndMark = "PK\5\6";

TEST_P(Npz, RoundTrips) {
  const auto loaded = load_npz(path);
  ASSERT_EQ(loaded.size(), 2u);
  EXPECT_EQ(loaded[0].first, "a");
  EXPECT_EQ(loaded[1].first, "b/c");
  expect_equal(loaded[0].second, a);
  expect_equal(loaded[1].second, b);
  save_npz(path, std::span<const NamedTensor>{});
  EXPECT_TRUE(load_npz(path).empty());

  save_npz(path, {{"x", arange(0, 6).reshape({2, 3})}, {"y", full({}, 2.5)}}, {.compress = GetParam()});
  const auto arrays = read_npz(path);
  EXPECT_EQ(arrays.at("x").to_string(), "[[0 1 2]\n [3 4 5]]");
  EXPECT_EQ(arrays.at("y").item<float>(), 2.5f);
}

TEST_P(Npz, RefusesWhatTheDirectoryTellsWrong) {
  refuses(kCentralMark, 8, "\1", "member 'a.npy': is encrypted");
  refuses(kCentralMark, 10, "\14", "packed by method 12, wanted 0 (stored) or 8 (deflated)");
  refuses(kCentralMark, 16, "\0\0\0"s, "its CRC is not the one");
  refuses(kCentralMark, 24, "\xff\xff\xff\x7f", "bytes cannot be in");
  refuses(kCentralMark, 20, "\xff\xff\xff\x7f", "bytes cannot be in");
  refuses(kCentralMark, 42, "\1", "no header where the directory tells");
  refuses(kCentralMark, 46, "b", "its header has another name");
  refuses(kCentralMark, 50, "z", "is no .npy file");
  refuses(kEndMark, 4, "\1", "on several disks");
  refuses(kEndMark, 10, "\3", "the directory of 3 members");
  refuses(kEndMark, 10, "\1", "bytes after the directory's last member");
  refuses(kEndMark, 12, "\1", "does not fit where it is told to be");
  refuses(kEndMark, 0, "X", "no end of a zip archive's directory");
  refuses("PK\3\4", 0, "X", "no header where the directory tells");
  write_file(path, good.substr(0, good.size() - 1));
  expect_format_error(path, "no end of a zip archive's directory", load);
  write_file(path, "");
  expect_format_error(path, "too short for a zip archive", load);
  write_file(path, good);
  expect_format_error(path, "pass 4900 bytes, the limit", [](const auto& at) { load_npz(at, {.most_bytes = 4900}); });
}

TEST_P(Npz, RefusesMembersThatStandForOneAnother) {
  // Both entries of the directory name the first member: a small file must not stand for two large ones.
  std::string contents = good;
  const std::size_t first = contents.find(kCentralMark), second = contents.find(kCentralMark, first + 1);
  contents.replace(second + 42, 4, "\0\0\0\0"s);
  write_file(path, contents);
  expect_format_error(path, "lies over what follows it", load);
}

TEST_P(Npz, SurvivesFuzzing) {
  test::fuzz(
      good.substr(0, 200) + good.substr(200), good.size(), 3000, 5, [](std::size_t) { return std::size_t{1} << 20; },
      load);
}

TEST(NpzWriting, SaysWhatCannotBeSaved) {
  const TemporaryDirectory directory;
  const HostTensor x = test::random_tensor(DType::bf16, {2}, 1), y = test::random_tensor(DType::i8, {2}, 1);
  const auto save = [&](const std::vector<NamedTensor>& tensors) { save_npz(directory / "a.npz", tensors); };
  EXPECT_THROW(save({{"x", x.dtype, x.shape, x.bytes}}), FormatError);
  EXPECT_THROW(save({{"", y.dtype, y.shape, y.bytes}}), std::invalid_argument);
  EXPECT_THROW(save({{"y", y.dtype, y.shape, y.bytes}, {"y", y.dtype, y.shape, y.bytes}}), std::invalid_argument);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

}  // namespace
}  // namespace sluice
