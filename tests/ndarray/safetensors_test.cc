#define SLUICE_DEFINE_COUNTING_NEW
#include "sluice/tests/support/largest_allocation.h"
//
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "sluice/ndarray/formats/file_io.h"
#include "sluice/ndarray/formats/safetensors.h"
#include "sluice/ndarray/formats/safetensors_writer.h"
#include "sluice/tests/support/format_checks.h"

namespace sluice {
namespace {

using test::expect_equal;
using test::expect_format_error;
using test::TemporaryDirectory;
using test::write_file;

void load(const std::filesystem::path& path) { load_safetensors(path); }

std::string little_endian(std::uint64_t value) {
  std::string text;
  for (int i = 0; i < 8; ++i) text.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  return text;
}
std::string file_of(const std::string& json, const std::string& data) {
  return little_endian(json.size()) + json + data;
}

NamedTensor named(const std::string& name, const HostTensor& tensor) {
  return {name, tensor.dtype, tensor.shape, tensor.bytes};
}

TEST(Safetensors, RoundTripsEveryDtypeAndShape) {
  const TemporaryDirectory directory;
  std::vector<HostTensor> held;
  for (DType dtype : test::all_dtypes()) {
    for (const Dims& shape : test::odd_shapes()) {
      held.push_back(test::random_tensor(dtype, shape, static_cast<unsigned>(held.size())));
    }
  }
  std::vector<NamedTensor> tensors;
  for (std::size_t i = 0; i < held.size(); ++i) tensors.push_back(named("t" + std::to_string(i), held[i]));
  const std::map<std::string, std::string> metadata = {
      {"step", "50"}, {"text", "quote \" and \n line, \u00e9"}, {"", ""}};
  save_safetensors(directory / "a.safetensors", tensors, metadata);
  const Safetensors loaded = load_safetensors(directory / "a.safetensors");
  EXPECT_EQ(loaded.metadata, metadata);
  ASSERT_EQ(loaded.tensors.size(), held.size());
  for (std::size_t i = 0; i < held.size(); ++i) {
    const HostTensor* found = loaded.find(tensors[i].name);
    ASSERT_NE(found, nullptr);
    expect_equal(*found, held[i]);
  }
  EXPECT_EQ(loaded.find("t"), nullptr);

  save_safetensors(directory / "empty.safetensors", {});
  EXPECT_EQ(test::read_file(directory / "empty.safetensors"), file_of("{}      ", ""));
  EXPECT_TRUE(load_safetensors(directory / "empty.safetensors").tensors.empty());
}

TEST(Safetensors, WritesTheFormatToTheByte) {
  const TemporaryDirectory directory;
  const HostTensor small{DType::u8, {3}, {std::byte{'a'}, std::byte{'b'}, std::byte{'c'}}};
  const HostTensor large{DType::i32, {1, 1}, {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}}};
  save_safetensors(directory / "a.safetensors", std::vector{named("small", small), named("w.0", large)}, {{"k", "v"}});
  std::string json = R"({"__metadata__":{"k":"v"},"w.0":{"dtype":"I32","shape":[1,1],"data_offsets":[0,4]},)"
                     R"("small":{"dtype":"U8","shape":[3],"data_offsets":[4,7]}})";
  json.append((8 - json.size() % 8) % 8, ' ');
  EXPECT_EQ(test::read_file(directory / "a.safetensors"), file_of(json, "\1\2\3\4abc"));
}

TEST(Safetensors, ReadsEntriesInAnyOrder) {
  const TemporaryDirectory directory;
  write_file(directory / "a.safetensors",
             file_of(R"({"b":{"data_offsets":[2,4],"shape":[2],"dtype":"I8"},"z":{"dtype":"F32","shape":[0],)"
                     R"("data_offsets":[2,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}  )",
                     "1234"));
  const Safetensors loaded = load_safetensors(directory / "a.safetensors");
  ASSERT_EQ(loaded.tensors.size(), 3u);
  EXPECT_EQ(loaded.tensors[0].first, "a");
  EXPECT_EQ(loaded.tensors[1].first, "z");
  EXPECT_EQ(loaded.tensors[2].first, "b");
  EXPECT_EQ(loaded.tensors[2].second.bytes[0], std::byte{'3'});
}

TEST(Safetensors, RefusesMalformedFiles) {
  const TemporaryDirectory directory;
  const auto path = directory / "bad.safetensors";
  const auto refuses_file = [&](const std::string& contents, const std::string& words) {
    write_file(path, contents);
    expect_format_error(path, words, load);
  };
  const auto refuses = [&](const std::string& json, const std::string& words) {
    refuses_file(file_of(json, "12345678"), words);
  };
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  write_file(path, file_of(good, "12345678"));
  EXPECT_NO_THROW(load_safetensors(path));

  // Lengths.
  refuses_file("", "truncated: the header's length needs 8 bytes, 0 are left");
  refuses_file(file_of(good, "12345678").substr(0, 30), "header of");
  refuses_file(little_endian(std::uint64_t{1} << 63) + "{}", "header of 9223372036854775808 bytes, wanted at most 2");
  refuses_file(little_endian(4294967295u) + "{}", "header of 4294967295 bytes, wanted at most 2");
  refuses_file(file_of(good, "1234567"), "in 7 bytes of data");
  refuses_file(file_of(good, "123456789"), "cover 8 bytes, the file has 9");
  refuses_file(file_of("{}", "1"), "cover 0 bytes, the file has 1");
  // JSON.
  refuses("", "starts with '{'");
  refuses("[]", "starts with '{'");
  refuses(" " + good, "starts with '{'");
  refuses("\xef\xbb\xbf" + good, "starts with '{'");
  refuses(good + std::string(1, '\0'), "starts with '{'");
  refuses(good + "x", "malformed JSON in the header, at its byte");
  refuses(good.substr(0, good.size() - 1), "malformed JSON");
  refuses("{\"\xff\":{}}", "malformed JSON");
  refuses(R"({"a":3})", "unexpected 3");
  refuses(R"({"a":null})", "unexpected null");
  refuses(R"({"a":[0]})", "unexpected an array");
  refuses(R"({"a":{"dtype":{"dtype":"F32"}}})", "tensor 'a': malformed header: unexpected an object");
  refuses(std::string(R"({"a":{"shape":)") + std::string(5000, '[') + "}}", "unexpected an array");
  // Duplicate keys, at each level.
  refuses(
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
      "duplicate key 'a'");
  refuses(R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "duplicate key 'dtype'");
  refuses(R"({"__metadata__":{"k":"1","k":"2"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
          "__metadata__: duplicate key 'k'");
  refuses(R"({"__metadata__":{},"__metadata__":{}})", "duplicate key '__metadata__'");
  refuses(R"({"__metadata__":{"k":1}})", "__metadata__: malformed header: unexpected 1");
  // Fields.
  refuses(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"path":"../x"}})", "unknown field 'path'");
  refuses(R"({"a":{"shape":[2],"data_offsets":[0,8]}})", "lacks one of");
  refuses(R"({"a":{"dtype":"U16","shape":[8],"data_offsets":[0,8]}})", "shape (8,) of U16 needs 16 bytes");
  refuses(R"({"a":{"dtype":"F8","shape":[8],"data_offsets":[0,9]}})", "in 8 bytes of data");
  refuses(R"({"a":{"dtype":["F32"],"shape":[2],"data_offsets":[0,8]}})", "unexpected an array");
  refuses(R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", "unexpected 2");
  refuses(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "unexpected -2");
  refuses(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", "unexpected '2.0'");
  refuses(R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}})", "size 18446744073709551615");
  refuses(R"({"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8]}})", "unexpected '99999");
  refuses(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,8],"data_offsets":[0,8]}})", "tensor 'a': rank above 8");
  refuses(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", "data_offsets is not a pair");
  refuses(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}})", "unexpected 8");
  refuses(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "offsets [8, 0) in 8 bytes");
  refuses(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "needs 12 bytes, offsets [0, 8) give 8");
  refuses(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", "needs too many bytes");
  refuses(R"({"a":{"dtype":"F32","shape":[0,9223372036854775807,2],"data_offsets":[0,0]}})", "needs too many bytes");
  // Overlaps and holes.
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
  };
  refuses(two("[0,4]", "[3,7]"), "tensor 'b': offsets [3, 7) overlap the tensor before, wanted 4");
  refuses(two("[0,4]", "[0,4]"), "overlap");
  refuses(two("[0,3]", "[4,8]"), "tensor 'a': shape (4,) of U8 needs 4 bytes, offsets [0, 3) give 3");
  refuses(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", "leave a hole before, wanted 0");
  refuses(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "cover 4 bytes, the file has 8");
  refuses_file(file_of(R"({"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", "\1\2"),
               "tensor 'a': element 1 of a bool array is 2");
  expect_format_error(directory.path(), "is a directory", load);
  expect_format_error(directory / "missing", "No such file", load);
}

TEST(Safetensors, RefusesATensorOfAnUnknownDtypeNotTheFile) {
  const TemporaryDirectory directory;
  const auto path = directory / "a.safetensors";
  const std::vector<std::string> foreign = {"I16", "U16",  "U32", "U64",     "F8_E4M3", "F8_E5M2", "F8_E8M0",
                                            "C64", "C128", "F4",  "F6_E2M3", "F6_E3M2", "E8M0_NEW"};
  const std::vector<int> bits = {16, 16, 32, 64, 8, 8, 8, 64, 128, 4, 6, 6, 8};
  std::string json = R"({"first":{"dtype":"U8","shape":[3],"data_offsets":[0,3]})";
  std::size_t offset = 3;
  for (std::size_t i = 0; i < foreign.size(); ++i) {
    const std::size_t bytes = static_cast<std::size_t>(bits[i]);  // 8 elements
    json += R"(,"x)" + foreign[i] + R"(":{"dtype":")" + foreign[i] + R"(","shape":[2,4],"data_offsets":[)" +
            std::to_string(offset) + "," + std::to_string(offset + bytes) + "]}";
    offset += bytes;
  }
  json += R"(,"last":{"dtype":"I8","shape":[2],"data_offsets":[)" + std::to_string(offset) + "," +
          std::to_string(offset + 2) + "]}}";
  write_file(path, file_of(json, "abc" + std::string(offset - 3, 'x') + "yz"));
  const Safetensors file = load_safetensors(path);
  ASSERT_EQ(file.tensors.size(), 2u);
  EXPECT_EQ(file.find("first")->as<std::uint8_t>()[2], 'c');
  EXPECT_EQ(file.find("last")->as<std::int8_t>()[0], 'y');
  ASSERT_EQ(file.refused.size(), foreign.size());
  for (const std::string& dtype : foreign) {
    EXPECT_EQ(file.refused.at("x" + dtype), dtype);
    expect_format_error(path, "tensor 'x" + dtype + "' has the dtype '" + dtype + "', wanted one of F32 F64",
                        [&](const auto&) { file.find("x" + dtype); });
  }
}

TEST(Safetensors, SaysWhatCannotBeSaved) {
  const TemporaryDirectory directory;
  const auto path = directory / "a.safetensors";
  const HostTensor tensor = test::random_tensor(DType::f32, {2}, 1);
  const auto save = [&](const std::vector<NamedTensor>& tensors) { save_safetensors(path, tensors); };
  EXPECT_THROW(save({named("a", tensor), named("a", tensor)}), std::invalid_argument);
  EXPECT_THROW(save({named("__metadata__", tensor)}), std::invalid_argument);
  EXPECT_THROW(save({named("\xff", tensor)}), std::invalid_argument);
  EXPECT_THROW(save({{"a", DType::f64, {2}, tensor.bytes}}), std::invalid_argument);
  EXPECT_THROW(save_safetensors(directory / "none/a", std::vector{named("a", tensor)}), FormatError);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(Safetensors, WritesTheSameFileInParts) {
  const TemporaryDirectory directory;
  const std::int64_t mib = std::int64_t{1} << 20;
  std::vector<HostTensor> held;
  for (const std::int64_t bytes : {3 * mib, std::int64_t{0}, mib, 9 * mib - 1, std::int64_t{5}}) {
    held.push_back(test::random_tensor(DType::u8, {bytes}, static_cast<unsigned>(held.size())));
  }
  std::vector<NamedTensor> tensors;
  for (std::size_t i = 0; i < held.size(); ++i) tensors.push_back(named(std::to_string(i), held[i]));
  int parts = 0;
  formats::write_safetensors(directory / "parts", tensors, {{"a", "b"}}, [&] { ++parts; });
  EXPECT_EQ(parts, 3);  // of 4 MiB, and a rest
  save_safetensors(directory / "whole", tensors, {{"a", "b"}});
  EXPECT_TRUE(test::read_file(directory / "parts") == test::read_file(directory / "whole"));
  EXPECT_THROW(formats::write_safetensors(directory / "none", tensors, {}, [] { throw std::runtime_error("a part"); }),
               std::runtime_error);
  EXPECT_FALSE(std::filesystem::exists(directory / "none"));
}

TEST(Safetensors, ReplacesTheFileWholeOrNotAtAll) {
  const TemporaryDirectory directory;
  const auto path = directory / "model.safetensors";
  const HostTensor first = test::random_tensor(DType::f32, {2}, 1), second = test::random_tensor(DType::f32, {9}, 2);
  save_safetensors(path, std::vector{named("a", first)});
  std::filesystem::create_symlink(path, directory / "latest");
  save_safetensors(directory / "latest", std::vector{named("a", second)});
  EXPECT_TRUE(std::filesystem::is_symlink(directory / "latest"));
  expect_equal(*load_safetensors(path).find("a"), second);
  {
    formats::OutputFile interrupted(path);
    interrupted.write("half a file");
    expect_equal(*load_safetensors(path).find("a"), second);
  }
  expect_equal(*load_safetensors(path).find("a"), second);
  // Nothing temporary stays behind.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 2);
}

TEST(Safetensors, SurvivesFuzzing) {
  const TemporaryDirectory directory;
  const HostTensor a = test::random_tensor(DType::f32, {3, 4}, 1), b = test::random_tensor(DType::boolean, {5}, 2),
                   c = test::random_tensor(DType::i64, {0, 2}, 3);
  save_safetensors(directory / "a", std::vector{named("layer.weight", a), named("mask", b), named("none", c)},
                   {{"step", "12"}, {"seed", "7"}});
  const std::string good = test::read_file(directory / "a");
  test::fuzz(
      good, good.size() - a.bytes.size() - b.bytes.size(), 4000, 2, [](std::size_t size) { return 4 * size + 8192; },
      load);
}

}  // namespace
}  // namespace sluice
