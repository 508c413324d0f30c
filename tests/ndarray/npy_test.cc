#include "sluice/ndarray/formats/npy.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "sluice/tests/support/format_checks.h"

namespace sluice {
namespace {

using test::expect_equal;
using test::expect_format_error;
using test::TemporaryDirectory;
using test::write_file;

void load(const std::filesystem::path& path) { load_npy(path); }

// A whole file around this header text; the length field is right.
std::string npy(const std::string& header, const std::string& data, int major = 1) {
  std::string file = "\x93NUMPY" + std::string{static_cast<char>(major), '\0'};
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) file.push_back(static_cast<char>(header.size() >> (8 * i) & 0xff));
  return file + header + data;
}
std::string dictionary(const std::string& descr, const std::string& shape, const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }\n";
}

TEST(Npy, RoundTripsEveryDtypeAndShape) {
  const TemporaryDirectory directory;
  unsigned seed = 0;
  for (DType dtype : test::all_dtypes()) {
    if (dtype == DType::bf16) continue;
    for (const Dims& shape : test::odd_shapes()) {
      const HostTensor tensor = test::random_tensor(dtype, shape, ++seed);
      save_npy(directory / "a.npy", tensor);
      expect_equal(load_npy(directory / "a.npy"), tensor);
    }
  }
}

TEST(Npy, WritesWhatNumPyWrites) {
  const TemporaryDirectory directory;
  const std::array<float, 2> values = {1.0f, -2.0f};
  save_npy(directory / "a.npy", DType::f32, {2}, std::as_bytes(std::span(values)));
  const std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
  EXPECT_EQ(test::read_file(directory / "a.npy"),
            npy(text + std::string(128 - 10 - text.size() - 1, ' ') + "\n", std::string("\0\0\x80\x3f\0\0\0\xc0", 8)));
}

TEST(Npy, ReadsAllVersionsAndByteOrders) {
  const TemporaryDirectory directory;
  for (int version : {1, 2, 3}) {
    write_file(directory / "a.npy",
               npy(dictionary(">i4", "(2,)"), std::string("\0\0\0\1\xff\xff\xff\xfe", 8), version));
    const HostTensor tensor = load_npy(directory / "a.npy");
    EXPECT_EQ(tensor.as<std::int32_t>()[0], 1);
    EXPECT_EQ(tensor.as<std::int32_t>()[1], -2);
  }
}

TEST(Npy, TransposesFortranOrder) {
  const TemporaryDirectory directory;
  // Element (i, j, k) of shape (2, 3, 2) has the value 100 i + 10 j + k; the first index runs fastest in the file.
  std::string data;
  for (int k = 0; k < 2; ++k) {
    for (int j = 0; j < 3; ++j) {
      for (int i = 0; i < 2; ++i) data += {static_cast<char>(100 * i + 10 * j + k), '\0', '\0', '\0'};
    }
  }
  write_file(directory / "a.npy", npy(dictionary("<i4", "(2, 3, 2)", "True"), data));
  const HostTensor tensor = load_npy(directory / "a.npy");
  const auto values = tensor.as<std::int32_t>();
  for (int i = 0, n = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 2; ++k, ++n) EXPECT_EQ(values[static_cast<std::size_t>(n)], 100 * i + 10 * j + k);
    }
  }
  write_file(directory / "b.npy", npy(dictionary("<i4", "(3, 0)", "True"), ""));
  EXPECT_EQ(load_npy(directory / "b.npy").shape, (Dims{3, 0}));
}

TEST(Npy, RefusesMalformedFiles) {
  const TemporaryDirectory directory;
  const auto path = directory / "bad.npy";
  const auto refuses = [&](const std::string& contents, const std::string& words) {
    write_file(path, contents);
    expect_format_error(path, words, load);
  };
  const std::string good = npy(dictionary("<f4", "(2, 2)"), std::string(16, 'x'));
  write_file(path, good);
  EXPECT_NO_THROW(load_npy(path));

  refuses("", "truncated: the magic string and version needs 8 bytes, 0 are left");
  refuses("PK\3\4 not npy at all", "wrong magic string");
  refuses(good.substr(0, 9), "truncated: the header's length");
  refuses(good.substr(0, 40), "header of");
  refuses(good.substr(0, good.size() - 1), "needs 16 bytes, the file has 15");
  refuses(good + "y", "needs 16 bytes, the file has 17");
  refuses(npy(dictionary("<f4", "(1,)"), "1234", 4), "version 4.0, wanted 1.0, 2.0 or 3.0");
  // A header's length of 4 GiB, and one just above the limit with a file that has it.
  refuses(std::string("\x93NUMPY\2\0\xff\xff\xff\xff{}", 14), "header of 4294967295 bytes, wanted at most 2");
  refuses(npy(dictionary("<f4", "(1,)") + std::string(70000, ' '), "1234", 2), "wanted at most 65536");
  // Sizes whose product wraps around, or passes what a stride can say although there are no elements.
  refuses(npy(dictionary("<f4", "(4294967296, 4294967296)"), ""), "too many bytes");
  refuses(npy(dictionary("<f8", "(2305843009213693952,)"), ""), "too many bytes");
  refuses(npy(dictionary("|u1", "(0, 4611686018427387904, 4)"), ""), "too many bytes");
  refuses(npy(dictionary("<f4", "(99999999999999999999,)"), ""), "passes 2^63");
  refuses(npy(dictionary("<f4", "(-1,)"), ""), "wanted a size of 0 or more, found '-1");
  refuses(npy(dictionary("<f4", "(1000000000,)"), ""), "needs 4000000000 bytes, the file has 0");
  refuses(npy(dictionary("<f4", "(1,1,1,1,1,1,1,1,1)"), "1234"), "rank above 8");
  refuses(npy(dictionary("<f4", "(1)"), "1234"), "not a tuple");
  refuses(npy(dictionary("<f4", "(1 1)"), "1234"), "wanted ',' or ')'");
  for (const char* descr : {"<c8", "|O", "f4", "", "<u2", "=f4", "|f4", "<f16", "<f44"}) {
    refuses(npy(dictionary(descr, "(1,)"), "1234"), "dtype '" + std::string(descr) + "', wanted one of");
  }
  refuses(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "1234"), "structured");
  refuses(npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "1234"), "duplicate key");
  refuses(npy("{'descr': '<f4', 'fortran_order': False}", "1234"), "lacks one of");
  refuses(npy("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", "1234"), "neither True nor False");
  refuses(npy("{'descr': '<f4', 'order': False, 'shape': (1,)}", "1234"), "unknown key 'order'");
  refuses(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} import os", "1234"), "after the header");
  // Bytes that are no text, or text that does not show, are told by their numbers; other text is as it is.
  refuses(npy(dictionary("\xff<f4\x01\x7f", "(1,)"), "1234"), "dtype '\\xff<f4\\x01\\x7f', wanted one of");
  refuses(npy(dictionary("\xc3\x28\xc0\x80\xed\xa0\x80\xc2\x9b\xf5", "(1,)"), "1234"),
          "dtype '\\xc3(\\xc0\\x80\\xed\\xa0\\x80\\xc2\\x9b\\xf5', wanted one of");
  refuses(npy(dictionary("gr\xc3\xb6\xc3\x9f\x65 \xf0\x9f\x99\x82", "(1,)"), "1234"),
          "dtype 'gr\xc3\xb6\xc3\x9f\x65 \xf0\x9f\x99\x82', wanted one of");
  refuses(npy("{'descr': '<f4\n\n", "1234"), "a string does not end");
  refuses(npy("", "1234"), "wanted '{'");
  refuses(npy(dictionary("|b1", "(3,)"), std::string("\0\1\2", 3)), "element 2 of a bool array is 2, wanted 0 or 1");
}

TEST(Npy, TakesRegularFilesOnly) {
  const TemporaryDirectory directory;
  expect_format_error(directory / "missing.npy", "No such file", load);
  expect_format_error(directory.path(), "is a directory", load);
  ASSERT_EQ(::mkfifo((directory / "pipe.npy").c_str(), 0600), 0);
  expect_format_error(directory / "pipe.npy", "is not a regular file", load);
  expect_format_error("/dev/zero", "is not a regular file", load);
}

TEST(Npy, SaysWhatCannotBeSaved) {
  const TemporaryDirectory directory;
  const HostTensor half = test::random_tensor(DType::bf16, {2}, 1);
  expect_format_error(directory / "a.npy", "no name for bf16", [&](const auto& path) { save_npy(path, half); });
  EXPECT_THROW(save_npy(directory / "a.npy", DType::f32, {3}, half.bytes), std::invalid_argument);
  EXPECT_THROW(save_npy(directory / "a.npy", DType::f32, {-1}, half.bytes), std::invalid_argument);
  const HostTensor tensor = test::random_tensor(DType::f32, {2}, 1);
  expect_format_error(directory / "none/a.npy", "cannot write", [&](const auto& path) { save_npy(path, tensor); });
  expect_format_error(directory.path(), "not a regular file", [&](const auto& path) { save_npy(path, tensor); });
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(HostTensor, ChecksTheTypeOfItsElements) {
  HostTensor tensor = test::random_tensor(DType::i32, {2, 3}, 1);
  EXPECT_EQ(tensor.as<std::int32_t>().size(), 6u);
  EXPECT_THROW(tensor.as<float>(), std::invalid_argument);
  tensor.bytes.pop_back();
  EXPECT_THROW(tensor.as<std::int32_t>(), std::invalid_argument);
}

TEST(Npy, SurvivesFuzzing) {
  const std::string good = npy(dictionary("<f4", "(3, 4)", "True"), std::string(48, 'x'));
  test::fuzz(
      good, good.size() - 48, 4000, 1, [](std::size_t size) { return size + 4096; }, load);
}

}  // namespace
}  // namespace sluice
