#include "sluice/nn/data/images.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>
#include <utility>

#include "sluice/ndarray/called.h"
#include "sluice/ndarray/formats/file_io.h"
#include "sluice/ndarray/formats/picture.h"
#include "sluice/nn/data/table.h"

namespace sluice::nn {
namespace {

class Pictures final : public Samples {
 public:
  Pictures(std::vector<std::string> files, const ImageOptions& options, std::source_location where)
      : files_(std::move(files)),
        options_(options),
        where_(where),
        shape_(formats::Picture::load(files_[0], options).shape()) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  Map::Result sample() const override { return {shape_, DType::u8}; }
  void read(std::int64_t i, const TensorView& out) const override {
    const std::string& file = files_[static_cast<std::size_t>(i)];
    const sluice::detail::Called called("nn::ImageFolder", where_);
    const auto picture = formats::Picture::load(file, options_);
    if (picture.shape() != shape_) {
      throw FormatError(file, "is " + to_string(picture.shape()) + ", and the folder's first picture " +
                                  to_string(shape_) + ": give the ImageFolder a .height and a .width");
    }
    picture.write(out.as<std::uint8_t>());
  }

 private:
  std::vector<std::string> files_;
  ImageOptions options_;
  std::source_location where_;  ///< of the program, for errors on other threads
  Dims shape_;
};

bool is_picture(const std::filesystem::path& path) {
  std::string end = path.extension().string();
  std::transform(end.begin(), end.end(), end.begin(), [](unsigned char c) { return std::tolower(c); });
  return !path.filename().string().starts_with('.') && (end == ".png" || end == ".jpg" || end == ".jpeg");
}

/// What is in a folder, sorted; links are followed.
template <class F>
std::vector<std::filesystem::path> listed(const std::filesystem::path& folder, const F& wanted) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator(folder, error); !error && entry != end(entry);
       entry.increment(error)) {
    if (wanted(*entry)) found.push_back(entry->path());
  }
  if (error) throw FormatError(folder, "cannot list: " + error.message());
  std::sort(found.begin(), found.end());
  return found;
}

/// Of what is_directory() and its like said of an entry: a link that leads nowhere is neither, all else must be known.
void check(const std::filesystem::path& path, const std::error_code& error) {
  if (!error || error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) return;
  throw FormatError(path, "cannot read: " + error.message());
}

}  // namespace

struct ImageFolder::Listing {
  std::shared_ptr<const Samples> x;
  NDArray y;
  std::vector<std::string> classes, files;

  Listing(const std::string& folder, const ImageOptions& options, std::source_location where) {
    std::error_code error;
    const auto folders = listed(folder, [&](const std::filesystem::directory_entry& entry) {
      if (entry.path().filename().string().starts_with('.')) return false;
      const bool found = entry.is_directory(error);
      check(entry.path(), error);
      return found;
    });
    if (folders.empty()) throw FormatError(folder, "holds no folder; wanted one of pictures for each class");
    HostTensor labels{DType::i64, {0}, {}};
    for (const std::filesystem::path& of_class : folders) {
      const auto pictures = listed(of_class, [&](const std::filesystem::directory_entry& entry) {
        if (!is_picture(entry.path())) return false;
        const bool found = entry.is_regular_file(error);
        check(entry.path(), error);
        return found;
      });
      if (pictures.empty()) throw FormatError(of_class, "holds no file that ends in .png, .jpg or .jpeg");
      for (const std::filesystem::path& picture : pictures) {
        files.push_back(picture);
        const auto label = static_cast<std::int64_t>(classes.size());
        const auto* const bytes = reinterpret_cast<const std::byte*>(&label);
        labels.bytes.insert(labels.bytes.end(), bytes, bytes + sizeof(label));
      }
      classes.push_back(of_class.filename());
    }
    labels.shape = {static_cast<std::int64_t>(files.size())};
    y = column(std::move(labels));
    x = std::make_shared<const Pictures>(files, options, where);
  }
};

ImageFolder::ImageFolder(Listing&& l)
    : LazyTable(std::move(l.x), std::move(l.y)), classes(std::move(l.classes)), files(std::move(l.files)) {}

ImageFolder::ImageFolder(const std::string& folder, const ImageOptions& options, std::source_location where)
    : ImageFolder([&] {
        const sluice::detail::Called called("nn::ImageFolder", where);
        return Listing(folder, options, called.where());
      }()) {}

NDArray read_image(const std::string& path, const ImageOptions& options, std::source_location where) {
  const sluice::detail::Called called("nn::read_image", where);
  return column(load_image(path, options));
}

}  // namespace sluice::nn
