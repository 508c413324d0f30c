// A file that rows are put behind each other in. Internal to nn/report/.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::nn::detail {

/// Open for one writer: while it is, no other AppendFile of this file opens, where the file system has locks. Throws
/// FormatError. For one thread at a time.
class AppendFile {
 public:
  /// Makes the file, if it is not there.
  explicit AppendFile(std::string path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// All of it, or, where it throws, nothing.
  void put(const std::string& bytes);
  /// What was put is there after a power cut, too. Also beside a put() of another thread.
  void sync() const;

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
};

}  // namespace sluice::nn::detail
