#include "sluice/nn/report/append_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "sluice/ndarray/formats/host_tensor.h"

namespace sluice::nn::detail {

AppendFile::AppendFile(std::string path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("cannot write");
  const auto close = [this] { ::close(std::exchange(descriptor_, -1)); };
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close();
    throw FormatError(path_, "another log writes it");
  }
  size_ = ::lseek(descriptor_, 0, SEEK_END);
  if (size_ >= 0) return;
  close();
  fail("cannot write");
}

AppendFile::~AppendFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void AppendFile::fail(const char* what) const {
  throw FormatError(path_, std::string(what) + ": " + std::generic_category().message(errno));
}

void AppendFile::put(const std::string& bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const auto part = ::pwrite(descriptor_, bytes.data() + done, bytes.size() - done,
                               static_cast<off_t>(size_ + static_cast<std::int64_t>(done)));
    if (part < 0 && errno == EINTR) continue;
    if (part >= 0) {
      done += static_cast<std::size_t>(part);
      continue;
    }
    const int error = errno;
    if (::ftruncate(descriptor_, static_cast<off_t>(size_)) != 0) {  // then the next row is written over it
    }
    errno = error;
    fail("cannot write");
  }
  size_ += static_cast<std::int64_t>(bytes.size());
}

void AppendFile::sync() const {
  if (::fsync(descriptor_) != 0 && errno != EINVAL) fail("cannot sync");
}

}  // namespace sluice::nn::detail
