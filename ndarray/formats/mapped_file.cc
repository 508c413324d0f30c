#include "sluice/ndarray/formats/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <system_error>

namespace sluice::formats {

MappedFile::MappedFile(const InputFile& file) : size_(static_cast<std::size_t>(file.size())) {
  if (size_ == 0) return;  // the system maps no empty file
  void* const data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (data == MAP_FAILED) {
    throw FormatError(file.path(), "cannot map into memory: " + std::generic_category().message(errno));
  }
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace sluice::formats
