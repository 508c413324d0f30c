// A file in memory as it lies on the disk.
#pragma once

#include <cstddef>
#include <span>

#include "sluice/ndarray/formats/file_io.h"

namespace sluice::formats {

/// Shows a whole file, read-only and privately (a write to the memory would end the process). Pages are read when they
/// are touched. Where the file is written meanwhile, the bytes shown may change; where it is cut, touching what is gone
/// ends the process with SIGBUS. Replacing it by rename, as OutputFile does, is harmless: the old file stays mapped.
class MappedFile {
 public:
  /// Throws FormatError. The file may be closed afterwards.
  explicit MappedFile(const InputFile& file);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace sluice::formats
