// Pictures: one file as an array, and folders of them, read when a batch needs them.
#pragma once

#include <source_location>
#include <string>
#include <vector>

#include "sluice/ndarray/formats/image.h"
#include "sluice/nn/data/samples.h"

namespace sluice::nn {

/// The pixels of a PNG or JPEG file, u8, (channels, height, width), on cpu(0). What ImageOptions say is done
/// (ndarray/formats/image.h). Blocks. Throws FormatError where the file is missing, is neither, or is corrupt.
NDArray read_image(const std::string& path, const ImageOptions& options = {},
                   std::source_location where = std::source_location::current());

/// A folder that has a folder of pictures for each class, as in train/cat/1.jpg, train/dog/7.png:
///
///     nn::ImageFolder pictures("train", {.height = 64, .width = 64});
///     nn::Loader loader(pictures, {.batch = 32, .shuffle = true, .x = nn::pixels(), .workers = cpu(1)});
///
/// x is u8, (channels, height, width) for each, y i64, (n,), the number of the class among `classes`. Files are read
/// and decoded when a batch is made, where that is done (LoaderOptions::workers); one that cannot be is an error that
/// names it and the line that made the ImageFolder, where the program waits for the batch. Without a height and a width
/// all must have the size of the first.
struct ImageFolder : LazyTable {
  /// Lists the folder, and decodes the first picture. Blocks. Files are those that end in .png, .jpg or .jpeg, whatever
  /// the case; hidden ones, links that lead nowhere, and all others are passed over. Throws FormatError where there is
  /// no such folder, no folder in it, one without pictures, or something in them that cannot be looked at; and
  /// std::invalid_argument for options out of range.
  explicit ImageFolder(const std::string& folder, const ImageOptions& options = {},
                       std::source_location where = std::source_location::current());

  std::vector<std::string> classes;  ///< the folders' names, sorted by bytes
  std::vector<std::string> files;    ///< by sample: sorted by class, then by name

 private:
  struct Listing;
  explicit ImageFolder(Listing&& listing);
};

}  // namespace sluice::nn
