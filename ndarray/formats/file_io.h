// Files for the formats: a reader that trusts nothing, and a writer that never leaves half a file under the final name.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "sluice/ndarray/formats/host_tensor.h"

namespace sluice::formats {

/// A regular file, open for reading from its start. Blocks while it reads. For one thread at a time.
class InputFile {
 public:
  /// Throws FormatError where the file is missing, is not a regular file (a folder, a pipe, a device), or cannot be
  /// opened. Opening a pipe does not wait for its writer.
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  /// Bytes, as the file system said when it was opened.
  std::uint64_t size() const { return size_; }
  /// Bytes not read yet, by the same word.
  std::uint64_t left() const { return size_ - position_; }

  /// Reads up to `into.size()` bytes, never beyond size(); fewer only at the end. Throws FormatError on a read error.
  std::size_t read_some(std::span<std::byte> into);
  /// Fills `into`, or throws FormatError: "truncated: WHAT needs N bytes, M are left".
  void read(std::span<std::byte> into, std::string_view what);
  /// Goes on to a byte counted from the file's start, or by a number of bytes; at most to size(). Throws FormatError.
  void seek(std::uint64_t position);
  void skip(std::uint64_t bytes) { seek(position_ + std::min(bytes, left())); }
  std::uint64_t position() const { return position_; }
  /// For mmap: belongs to this object.
  int descriptor() const { return descriptor_; }

 private:
  std::string path_;  // not a std::filesystem::path, which takes memory for each of its parts
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  std::uint64_t position_ = 0;
};

/// A file that appears under its name whole, or not at all: it is written without a name, synced, and named by
/// commit(). An interrupted program leaves the old file as it was, and nothing else: where a file is replaced, a kill
/// between the two calls of the system that do it leaves `NAME.sluice-tmp-0` (or a higher number), and so does one at
/// any time where the file system knows no files without names (NFS, FAT). The next OutputFile of that name removes it:
/// a writer holds a lock (flock) on what it writes, so what nobody has locked was left. Where a file system's locks do
/// not reach other machines, two that write one name at once may take each other's for left; then one commit() throws,
/// and the file is the other's. For one thread at a time; any number of objects may write the same name, and the last
/// commit() stays.
class OutputFile {
 public:
  /// Throws FormatError where the folder is missing or not writable, or `path` is empty, or exists and is not a regular
  /// file. A symbolic link is followed: its target is replaced, by a file of the same mode, and of the same owner and
  /// group where the process may give it away (else a group that was allowed more than all others is not). Access
  /// control lists and further attributes are not kept, and other hard links to the target keep the old file.
  explicit OutputFile(const std::filesystem::path& path);
  /// Removes what was written, where commit() was not reached.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Throws FormatError (a full disk, for one).
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  /// Lets the system begin to write to the disk what it has, and does not wait for it.
  void begin_sync() noexcept;
  /// Syncs, and gives the file its name; afterwards it is there, also after a power cut. Throws FormatError, and the
  /// old file stands; but where the folder cannot be synced the new one may be there by then.
  void commit();

 private:
  [[noreturn]] void fail(std::string_view what, int error) const;
  bool open_unnamed(unsigned mode);
  void open_named(unsigned mode);
  /// Calls `create` with names for a temporary until one is free. Returns what it returned, with errno.
  template <class F>
  int try_names(const F& create);
  void remove_left() const;
  void keep_mode();
  void sync();
  void copy_to_named();

  std::filesystem::path path_;
  std::filesystem::path folder_;
  std::filesystem::path temporary_;  ///< empty: the file has no name yet
  int descriptor_ = -1;
};

/// Bytes of an array of this dtype and these sizes; nothing where a size is negative, or where the product, counting
/// sizes of 0 as 1 so that strides fit too, passes 2^63 - 1.
std::optional<std::uint64_t> checked_bytes(DType dtype, const Dims& shape);

/// Throws std::invalid_argument, which names the function that the program called and the line, as FormatError does:
/// for a caller's error, not a file's.
[[noreturn]] void refuse_argument(const std::string& message);
/// The same where `bytes` is not what this dtype and shape need.
void check_bytes(DType dtype, const Dims& shape, std::size_t bytes);

/// Throws FormatError where an element of a bool tensor is neither 0 nor 1: as a C++ bool it would have no meaning.
void check_bools(const std::filesystem::path& path, std::string_view what, DType dtype,
                 std::span<const std::byte> bytes);

/// 'TEXT' for a message, cut where it is long. What is no text in UTF-8, and control characters, are as \\xNN.
std::string in_quotes(std::string_view text);

/// Reverses the bytes of each element in place.
void swap_elements(std::span<std::byte> bytes, std::size_t element_size);

}  // namespace sluice::formats
