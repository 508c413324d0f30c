// Arrays over a mapped .safetensors file: no copy, and no write reaches the file.
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <optional>

#include "sluice/ndarray/files.h"
#include "sluice/ndarray/formats/safetensors.h"
#include "sluice/operators/operators.h"
#include "sluice/tests/support/format_checks.h"

namespace sluice {
namespace {

using test::expect_format_error;
using test::read_file;
using test::TemporaryDirectory;
using test::write_file;

bool lies_in(const void* address, std::span<const std::byte> memory) {
  const auto* const at = static_cast<const std::byte*>(address);
  return std::less_equal<>()(memory.data(), at) && std::less<>()(at, memory.data() + memory.size());
}

class Mapped : public ::testing::Test {
 protected:
  Mapped() {
    std::vector<float> numbers(64);
    std::iota(numbers.begin(), numbers.end(), 0.f);
    save_arrays(path,
                {{"w", from(numbers, {8, 8})},
                 {"b", from({std::int64_t{5}, std::int64_t{-6}}, {2})},
                 {"mask", from(std::vector<bool>{true, false, true}, {3})},
                 {"none", empty({0, 4})}},
                {{"step", "7"}});
    before = read_file(path);
    file.emplace(path);
  }
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "a.safetensors";
  std::string before;
  std::optional<MappedArrays> file;
};

TEST_F(Mapped, ShowsTheFileWithoutACopy) {
  EXPECT_EQ(file->metadata().at("step"), "7");
  ASSERT_EQ(file->tensors().size(), 4u);
  EXPECT_EQ(file->tensors().at("w").dtype, "F32");
  EXPECT_EQ(file->tensors().at("w").shape, (Dims{8, 8}));
  const NDArray w = file->array("w"), b = file->array("b"), mask = file->array("mask");
  EXPECT_TRUE(lies_in(w.borrow<const float>().data(), file->mapping()));
  EXPECT_TRUE(lies_in(b.borrow<const std::int64_t>().data(), file->mapping()));
  EXPECT_TRUE(lies_in(mask.borrow<const bool>().data(), file->mapping()));
  EXPECT_EQ(file->array("none").shape(), (Dims{0, 4}));
  EXPECT_EQ(file->copied_bytes(), 0u);
  EXPECT_EQ(sum(w).item<float>(), 2016.f);
  EXPECT_EQ(b.to_vector<std::int64_t>(), (std::vector<std::int64_t>{5, -6}));
  EXPECT_EQ(w.borrow<const float>().data(), file->array("w").borrow<const float>().data());
}

TEST_F(Mapped, CopiesAtTheFirstWriteAndLeavesTheFileAlone) {
  NDArray w = file->array("w");
  const NDArray again = file->array("w"), whole = file->array("w"), row = w(3);
  w(2) += 100.;
  EXPECT_FALSE(lies_in(w.borrow<const float>().data(), file->mapping()));
  EXPECT_TRUE(lies_in(again.borrow<const float>().data(), file->mapping()));
  EXPECT_EQ(w(2, 1).item<float>(), 117.f);
  EXPECT_EQ(w(1, 1).item<float>(), 9.f);
  row.fill(1.);  // a view made before the first write sees the same array
  EXPECT_EQ(w(3, 4).item<float>(), 1.f);
  const float* const address = w.borrow<const float>().data();
  w += 1.;
  EXPECT_EQ(w.borrow<const float>().data(), address) << "the second write needs no copy";
  whole.fill(2.);
  whole.borrow<float>()[0] = 3.f;
  const NDArray borrowed = file->array("w");
  borrowed.borrow<float>()[5] = -1.f;
  EXPECT_EQ(borrowed(0, 5).item<float>(), -1.f);
  EXPECT_EQ(borrowed(0, 6).item<float>(), 6.f);
  EXPECT_EQ(again(0, 5).item<float>(), 5.f);
  EXPECT_EQ(read_file(path), before);
  EXPECT_EQ(file->copied_bytes(), 0u);
}

TEST_F(Mapped, OutlivesItsObjectAndAReplacedFile) {
  const NDArray w = file->array("w");
  file.reset();
  save_arrays(path, {{"w", zeros({8, 8})}});
  EXPECT_EQ(sum(w).item<float>(), 2016.f);
  EXPECT_EQ(sum(MappedArrays(path).array("w")).item<float>(), 0.f);
}

TEST_F(Mapped, CopiesWhatIsNotAlignedAndRefusesWhatIsNotKnown) {
  const auto odd = directory / "odd.safetensors";
  const std::string json = R"({"u":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                           R"("f":{"dtype":"F32","shape":[2],"data_offsets":[1,9]},)"
                           R"("q":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[9,12]},)"
                           R"("t":{"dtype":"BOOL","shape":[2],"data_offsets":[12,14]}})";
  std::string contents(8, '\0');
  contents[0] = static_cast<char>(json.size() + (8 - json.size() % 8) % 8);
  ASSERT_LT(json.size(), 256u);
  contents +=
      json + std::string((8 - json.size() % 8) % 8, ' ') + "u" + std::string("\0\0\x80\x3f\0\0\0\x40", 8) + "qqq\1\2";
  write_file(odd, contents);
  const MappedArrays unaligned(odd);
  EXPECT_EQ(unaligned.array("f").to_vector<float>(), (std::vector<float>{1.f, 2.f}));
  EXPECT_EQ(unaligned.copied_bytes(), 8u);
  EXPECT_EQ(unaligned.array("u").to_vector<std::uint8_t>(), (std::vector<std::uint8_t>{'u'}));
  EXPECT_EQ(unaligned.copied_bytes(), 8u);
  EXPECT_FALSE(unaligned.tensors().at("q").known);
  EXPECT_EQ(unaligned.tensors().at("q").dtype, "F8_E4M3");
  const auto asked = [&](const std::string& name) {
    return [&, name](const std::filesystem::path&) { unaligned.array(name); };
  };
  expect_format_error(odd, "tensor 'q' has the dtype 'F8_E4M3', wanted one of", asked("q"));
  expect_format_error(odd, "tensor 't': element 1 of a bool array is 2", asked("t"));
  expect_format_error(odd, "no tensor 'z'", asked("z"));
  write_file(odd, contents.substr(0, contents.size() - 1));
  expect_format_error(odd, "in 13 bytes of data", [](const auto& at) { MappedArrays cut(at); });
}

}  // namespace
}  // namespace sluice
