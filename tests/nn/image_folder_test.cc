// Folders of pictures: read when a batch is made, and what is wrong with a file said where the program waits.
#include <gmock/gmock.h>

#include <filesystem>
#include <stdexcept>
#include <string>

#include "nn_support.h"
#include "sluice/nn/data/images.h"
#include "sluice/nn/data/loader.h"
#include "sluice/tests/support/format_checks.h"
#include "sluice/tests/support/image_files.h"

namespace sluice {
namespace {

using test::bits;
using test::expect_format_error;
using test::TemporaryDirectory;
using test::TestEngine;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A picture of one colour, (value, value, value).
std::string picture(int value, std::uint32_t side = 4) {
  return test::png(side, side, PNG_COLOR_TYPE_GRAY, std::string(std::size_t{side} * side, static_cast<char>(value)));
}

class ImageFolders : public ::testing::Test {
 protected:
  ImageFolders() {
    put("dog/2.PNG", picture(20));
    put("dog/1.jpeg", test::jpeg(4, 4, JCS_GRAYSCALE, 1, std::string(16, '\x0a')));
    put("cat/9.png", picture(90));
    put("cat/notes.txt", "not a picture");
    put("cat/.hidden.png", "not a picture");
    put(".cache/1.png", "not a class");
    put("eel/3.png", picture(30));
    put("eel/4.png", picture(40));
    put("README", "");
  }
  void put(const std::string& name, const std::string& contents) {
    std::filesystem::create_directories((folder_ / name).parent_path());
    write_file(folder_ / name, contents);
  }
  TestEngine engine_;
  TemporaryDirectory folder_;
};

TEST_F(ImageFolders, HaveAClassForEachFolder) {
  const nn::ImageFolder pictures(folder_.path());
  EXPECT_THAT(pictures.classes, ElementsAre("cat", "dog", "eel"));
  EXPECT_THAT(pictures.files, ElementsAre((folder_ / "cat/9.png").string(), (folder_ / "dog/1.jpeg").string(),
                                          (folder_ / "dog/2.PNG").string(), (folder_ / "eel/3.png").string(),
                                          (folder_ / "eel/4.png").string()));
  EXPECT_THAT(pictures.y.to_vector<std::int64_t>(), ElementsAre(0, 1, 1, 2, 2));
  nn::Loader loader(pictures, {.batch = 2});
  EXPECT_EQ(loader.samples(), 5);
  EXPECT_EQ(loader.size(), 3);
  const std::vector<int> colours{90, 10, 20, 30, 40};
  std::size_t at = 0;
  for (const auto& [x, y, first] : loader) {
    EXPECT_EQ(x.dtype(), DType::u8);
    EXPECT_EQ(x.shape(), (Dims{at == 4 ? 1 : 2, 3, 4, 4}));
    const std::vector<std::uint8_t> values = x.to_vector<std::uint8_t>();
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], colours[at + i / 48]) << i;
    at += values.size() / 48;
  }
  EXPECT_EQ(at, 5U);
  EXPECT_EQ(bits(nn::read_image(folder_ / "cat/9.png", {.channels = 1})), std::string(16, '\x5a'));
}

TEST_F(ImageFolders, GiveWhatATableOfThemWouldGive) {
  std::vector<std::string> all;
  for (const int threads : {1, 4}) {
    for (const bool lazy : {false, true}) {
      TestEngine engine({.threads = threads, .logical_cpus = 2});
      const nn::ImageFolder pictures(folder_.path(), {.height = 6, .width = 5});
      const nn::LoaderOptions options{
          .batch = 2, .shuffle = true, .seed = 7, .x = nn::then(nn::random_crop(2), nn::pixels()), .workers = cpu(1)};
      std::vector<NDArray> rows;
      for (const std::string& file : pictures.files) {
        rows.push_back(nn::read_image(file, {.height = 6, .width = 5}).unsqueeze(0));
      }
      nn::Loader plain(nn::Table{concat(rows, 0), pictures.y}, options), read(pictures, options);
      nn::Loader& loader = lazy ? read : plain;
      std::string seen;
      for (int epoch = 0; epoch < 3; ++epoch) {
        for (const auto& [x, y, first] : loader) seen += bits(x) + bits(y);
      }
      all.push_back(seen);
    }
  }
  for (const std::string& seen : all) EXPECT_TRUE(seen == all[0]);
}

TEST_F(ImageFolders, NameTheFileThatCannotBeRead) {
  put("dog/2.PNG", picture(20).substr(0, 60));
  put("eel/4.png", picture(40, 5));
  constexpr int line = __LINE__ + 1;
  const nn::ImageFolder all(folder_.path());
  nn::Loader loader(all, {.batch = 1, .prefetch = 4});
  EXPECT_EQ(loader.next().y.item<std::int64_t>(), 0);
  EXPECT_EQ(loader.next().y.item<std::int64_t>(), 1);
  const NDArray cut = loader.next().x;
  const auto at = [](int number) { return "image_folder_test.cc:" + std::to_string(number) + ": "; };
  EXPECT_EQ(test::what_of([&] { cut.wait(); }), "[load batch] " + at(line + 1) + "[nn::ImageFolder] " + at(line) +
                                                    (folder_ / "dog/2.PNG").string() +
                                                    ": corrupt PNG at byte 57: truncated");
  EXPECT_EQ(loader.next().y.item<std::int64_t>(), 2) << "the others are as they were";
  const NDArray large = loader.next().x;
  EXPECT_THAT(test::what_of([&] { large.wait(); }),
              HasSubstr("eel/4.png: is (3, 5, 5), and the folder's first picture (3, 4, 4): give the ImageFolder a"));
  put("cat/9.png", "");
  expect_format_error(folder_ / "cat/9.png", "is neither PNG nor JPEG",
                      [&](const auto&) { nn::ImageFolder pictures(folder_.path()); });
}

TEST_F(ImageFolders, WrongOnesAreRefused) {
  const auto open = [](const std::filesystem::path& path) { nn::ImageFolder pictures(path); };
  expect_format_error(folder_ / "none", "[nn::ImageFolder] image_folder_test.cc:", open);
  expect_format_error(folder_ / "none", "cannot list: No such file or directory", open);
  expect_format_error(folder_ / "README", "cannot list: Not a directory", open);
  expect_format_error(folder_ / "cat", "holds no folder; wanted one of pictures for each class", open);
  std::filesystem::create_directories(folder_ / "fox");
  expect_format_error(folder_ / "fox", "holds no file that ends in .png, .jpg or .jpeg",
                      [&](const auto&) { open(folder_.path()); });
  EXPECT_THROW(nn::read_image(folder_ / "cat/9.png", {.channels = 2}), std::invalid_argument);
  std::filesystem::remove(folder_ / "fox");
  for (const ImageOptions& wrong : {ImageOptions{.height = 64}, {.channels = 2, .height = 4, .width = 4}}) {
    EXPECT_THROW(nn::ImageFolder(folder_.path(), wrong), std::invalid_argument);
  }
  // A link that leads nowhere is passed over; what cannot be looked at, here a link to itself, is not.
  std::filesystem::create_symlink("none.png", folder_ / "cat/a.png");
  std::filesystem::create_symlink("none", folder_ / "elk");
  EXPECT_EQ(nn::ImageFolder(folder_.path()).files.size(), 5U);
  std::filesystem::create_symlink("b.png", folder_ / "cat/b.png");
  expect_format_error(folder_ / "cat/b.png", "cannot read: Too many levels of symbolic links",
                      [&](const auto&) { open(folder_.path()); });
  std::filesystem::remove(folder_ / "cat/b.png");
  std::filesystem::create_symlink("emu", folder_ / "emu");
  expect_format_error(folder_ / "emu", "cannot read: Too many levels of symbolic links",
                      [&](const auto&) { open(folder_.path()); });
}

/// Samples of one's own, each of which is its number.
class Numbers final : public nn::Samples {
 public:
  std::int64_t size() const override { return 3; }
  nn::Map::Result sample() const override { return {{}, DType::i32}; }
  void read(std::int64_t i, const TensorView& out) const override {
    *out.as<std::int32_t>() = static_cast<int>(10 * i);
  }
};

TEST_F(ImageFolders, AnySamplesMayBeRead) {
  const DeviceScope host(cpu(0));
  const auto numbers = std::make_shared<const Numbers>();
  nn::Loader loader(nn::LazyTable(numbers, from<std::int64_t>({4, 5, 6}, {3})), {.batch = 5});
  EXPECT_THAT(loader.next().x.to_vector<std::int32_t>(), ElementsAre(0, 10, 20));
  EXPECT_THAT(test::what_of([&] { nn::Loader wrong(nn::LazyTable(numbers, ones({2}))); }),
              HasSubstr("3 samples and a column (2,) of two lengths"));
  EXPECT_THAT(test::what_of([&] { nn::Loader wrong(nn::LazyTable(nullptr, ones({2}))); }),
              HasSubstr("[nn::Loader] image_folder_test.cc:"));
}

}  // namespace
}  // namespace sluice
