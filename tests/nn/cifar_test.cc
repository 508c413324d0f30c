// CIFAR's files as tables, and each thing that can be wrong with them.
#include <string>

#include "nn_support.h"
#include "sluice/ndarray/formats/cifar.h"
#include "sluice/ndarray/formats/whole_file.h"
#include "sluice/tests/support/format_checks.h"

namespace sluice {
namespace {

using test::expect_format_error;
using test::TemporaryDirectory;
using test::TestEngine;
using test::write_file;

/// A record: labels, and a picture whose byte i is (7 i + the last label) mod 256.
std::string record(const std::string& labels) {
  std::string bytes = labels;
  for (int i = 0; i < 3 * 32 * 32; ++i) bytes.push_back(static_cast<char>(7 * i + labels.back()));
  return bytes;
}

class Cifar : public ::testing::Test {
 protected:
  Cifar() {
    for (char k = 1; k <= 5; ++k) {
      std::string records;
      for (char i = 0; i < k; ++i) records += record({static_cast<char>(k + i)});
      write_file(folder_ / ("data_batch_" + std::to_string(k) + ".bin"), records);
    }
    write_file(folder_ / "test_batch.bin", record("\3"));
    write_file(folder_ / "train.bin", record({19, 99}) + record({0, 7}));
    write_file(folder_ / "test.bin", record({0, 0}));
  }
  template <class F>
  void refuses(const std::string& name, const std::string& words, const F& load) {
    expect_format_error(folder_ / name, words, [&](const auto&) { load(folder_.path()); });
  }
  TestEngine engine_;
  TemporaryDirectory folder_;
};

void load10(const std::filesystem::path& path) { nn::cifar10(path); }
void load100(const std::filesystem::path& path) { nn::cifar100(path); }

void expect_pictures(const nn::Table& table) {
  const std::vector<std::uint8_t> x = table.x.to_vector<std::uint8_t>(), y = table.y.to_vector<std::uint8_t>();
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(x[i], static_cast<std::uint8_t>(7 * (i % 3072) + y[i / 3072])) << i;
  }
}

TEST_F(Cifar, TenClassesFromSixFiles) {
  const nn::Split data = nn::cifar10(folder_.path());
  EXPECT_EQ(data.train.x.spec(), (Spec{{15, 3, 32, 32}, DType::u8, cpu(0)}));
  EXPECT_EQ(data.train.y.to_vector<std::uint8_t>(),
            (std::vector<std::uint8_t>{1, 2, 3, 3, 4, 5, 4, 5, 6, 7, 5, 6, 7, 8, 9}));
  EXPECT_EQ(data.test.x.shape(), (Dims{1, 3, 32, 32}));
  EXPECT_EQ(data.test.y.to_vector<std::uint8_t>(), std::vector<std::uint8_t>{3});
  expect_pictures(data.train);
  expect_pictures(data.test);
}

TEST_F(Cifar, AHundredFineClasses) {
  const nn::Split data = nn::cifar100(folder_.path());
  EXPECT_EQ(data.train.y.to_vector<std::uint8_t>(), (std::vector<std::uint8_t>{99, 7}));
  EXPECT_EQ(data.test.y.to_vector<std::uint8_t>(), std::vector<std::uint8_t>{0});
  expect_pictures(data.train);
}

TEST_F(Cifar, WrongFilesAreNamed) {
  write_file(folder_ / "data_batch_3.bin", record("\1") + record("\x0a"));
  refuses("data_batch_3.bin", "record 1 (byte 3073): label 10, wanted 0 to 9", load10);
  std::filesystem::remove(folder_ / "data_batch_2.bin");
  refuses("data_batch_2.bin", "cannot open: No such file", load10);
  write_file(folder_ / "test.bin", record({20, 7}));
  refuses("test.bin", "record 0 (byte 0): label 20, wanted 0 to 19", load100);
  write_file(folder_ / "train.bin", record({1, 2}) + record({1, 100}));
  refuses("train.bin", "record 1 (byte 3075): label 100, wanted 0 to 99", load100);
  expect_format_error(folder_ / "none", "no such directory; wanted the one that holds CIFAR-10's", load10);
  expect_format_error(folder_ / "train.bin", "is not a directory; wanted", load100);
}

TEST_F(Cifar, EveryCutIsAnError) {
  const std::string whole = record("\1") + record("\2");
  for (std::size_t n = 0; n < whole.size(); ++n) {
    if (n == whole.size() / 2) continue;
    formats::CifarRecords records;
    EXPECT_THROW(parse_cifar("cut", std::as_bytes(std::span(whole.data(), n)), formats::kCifar10, records), FormatError)
        << n;
    EXPECT_EQ(records.labels.count(), 0) << n;
  }
  write_file(folder_ / "test.bin", record({1, 2}).substr(0, 3000));
  refuses("test.bin", "holds 3000 bytes, wanted records of 3074 bytes, at least one: record 0 has 3000", load100);
}

TEST_F(Cifar, SurvivesFuzzing) {
  test::fuzz(
      record({3, 4}) + record({5, 6}), 2, 300, 1, [](std::size_t size) { return size + 4096; },
      [](const std::filesystem::path& path) {
        formats::CifarRecords records;
        parse_cifar(path, formats::whole_file(path), formats::kCifar100, records);
      });
}

}  // namespace
}  // namespace sluice
