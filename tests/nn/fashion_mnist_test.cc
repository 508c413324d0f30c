// Fashion-MNIST's files as tables, and each thing that can be wrong with them.
#include <array>
#include <filesystem>
#include <string>

#include "nn_support.h"
#include "sluice/nn/data/table.h"
#include "sluice/tests/support/format_checks.h"
#include "sluice/tests/support/idx_files.h"

namespace sluice {
namespace {

using test::expect_format_error;
using test::gzip;
using test::idx;
using test::TemporaryDirectory;
using test::TestEngine;
using test::write_file;

std::string counting(std::size_t n) {
  std::string bytes(n, '\0');
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<char>(i * 7);
  return bytes;
}

// A small data set in the files' own form; each test breaks one thing of it.
class FashionMnistFiles : public ::testing::Test {
 protected:
  FashionMnistFiles() {
    put("train-images-idx3-ubyte.gz", images(5));
    put("train-labels-idx1-ubyte.gz", labels("\0\1\2\3\x09"));
    put("t10k-images-idx3-ubyte.gz", images(2));
    put("t10k-labels-idx1-ubyte.gz", labels("\4\5"));
  }
  static std::string images(std::uint32_t n, std::uint32_t side = 28) {
    return idx(0x08, {n, side, side}, counting(std::size_t{n} * side * side));
  }
  template <std::size_t n>
  static std::string labels(const char (&values)[n]) {
    return idx(0x08, {n - 1}, std::string(values, n - 1));
  }
  void put(const std::string& name, const std::string& plain) { write_file(directory_ / name, gzip(plain)); }
  void refuses(const std::string& name, const std::string& words) {
    expect_format_error(directory_ / name, words, [&](const auto&) { nn::fashion_mnist(directory_.path()); });
  }
  TestEngine engine_;
  TemporaryDirectory directory_;
};

TEST_F(FashionMnistFiles, Load) {
  const nn::Split data = nn::fashion_mnist(directory_.path());
  EXPECT_EQ(data.train.x.spec(), (Spec{{5, 28, 28}, DType::u8, cpu(0)}));
  EXPECT_EQ(data.test.x.shape(), (Dims{2, 28, 28}));
  EXPECT_EQ(test::bits(data.train.x), counting(5 * 28 * 28));
  EXPECT_EQ(data.train.y.to_vector<std::uint8_t>(), (std::vector<std::uint8_t>{0, 1, 2, 3, 9}));
  EXPECT_EQ(data.test.y.to_vector<std::uint8_t>(), (std::vector<std::uint8_t>{4, 5}));
  // A file that was unpacked by hand serves as well.
  std::filesystem::remove(directory_ / "t10k-labels-idx1-ubyte.gz");
  write_file(directory_ / "t10k-labels-idx1-ubyte", labels("\6\7"));
  EXPECT_EQ(nn::fashion_mnist(directory_.path()).test.y.to_vector<std::uint8_t>()[1], 7);
}

TEST_F(FashionMnistFiles, WronglyNumbered) {
  put("train-labels-idx1-ubyte.gz", labels("\0\1\2\3"));
  refuses("train-labels-idx1-ubyte.gz", "holds 4 labels, train-images-idx3-ubyte.gz holds 5 images");
}

TEST_F(FashionMnistFiles, OtherContents) {
  put("t10k-labels-idx1-ubyte.gz", labels("\4\x0a"));
  refuses("t10k-labels-idx1-ubyte.gz", "label 1 is 10, wanted 0 to 9");
  put("t10k-labels-idx1-ubyte.gz", images(2));
  refuses("t10k-labels-idx1-ubyte.gz", "holds shape (2, 28, 28) of u8, wanted labels: (n,) of u8");
  put("t10k-images-idx3-ubyte.gz", labels("\4\5"));
  refuses("t10k-images-idx3-ubyte.gz", "holds shape (2,) of u8, wanted images: (n, 28, 28) of u8");
  put("train-images-idx3-ubyte.gz", images(5, 32));
  refuses("train-images-idx3-ubyte.gz", "holds shape (5, 32, 32)");
  put("train-images-idx3-ubyte.gz", images(0));
  refuses("train-images-idx3-ubyte.gz", "holds shape (0, 28, 28)");
}

TEST_F(FashionMnistFiles, MissingFilesAndDirectories) {
  std::filesystem::remove(directory_ / "t10k-images-idx3-ubyte.gz");
  refuses("t10k-images-idx3-ubyte.gz", "No such file");
  const auto load_data = [](const std::filesystem::path& path) { nn::fashion_mnist(path); };
  expect_format_error(directory_ / "nowhere", "no such directory", load_data);
  expect_format_error(directory_ / "train-images-idx3-ubyte.gz", "is not a directory", load_data);
}

TEST(FashionMnist, TheInstalledDataSetLoads) {
  // The package is for the quickstart, not for tests.
  if (!std::filesystem::exists(nn::kFashionMnistDirectory)) return;
  TestEngine engine;
  const nn::Split data = nn::fashion_mnist();
  EXPECT_EQ(data.train.x.shape(), (Dims{60000, 28, 28}));
  EXPECT_EQ(data.test.x.shape(), (Dims{10000, 28, 28}));
  std::array<int, 10> count{};
  for (const std::uint8_t label : data.train.y.to_vector<std::uint8_t>()) ++count[label];
  for (const int n : count) EXPECT_EQ(n, 6000);
}

}  // namespace
}  // namespace sluice
