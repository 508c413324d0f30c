#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>
#include <vector>

#include "sluice/ndarray/formats/file_io.h"

namespace sluice::formats {
namespace {

// One call moves at most this much, so that a count fits the system's signed sizes everywhere.
constexpr std::size_t kMaxTransfer = std::size_t{1} << 30;
// Temporaries of one name are numbered from 0. Numbers are looked through until so many in a row are not there.
constexpr int kMissing = 8;
constexpr int kMostNames = 1000;

std::string reason(int error) { return std::generic_category().message(error); }

/// By which the system names an open file that has no name of its own.
std::string name_of_descriptor(int descriptor) { return "/proc/self/fd/" + std::to_string(descriptor); }

/// The name of the n-th temporary of `path`. A name for which the folder has no room is cut, and its hash appended.
std::filesystem::path temporary_of(const std::filesystem::path& path, const std::filesystem::path& folder, int n) {
  const std::string end = ".sluice-tmp-" + std::to_string(n);
  const long limit = ::pathconf(folder.c_str(), _PC_NAME_MAX);
  const std::size_t longest = limit > 0 ? static_cast<std::size_t>(limit) : 255;
  std::string name = path.filename().native();
  if (name.size() + end.size() > longest) {
    std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    char digits[20];
    std::snprintf(digits, sizeof digits, "~%016llx", static_cast<unsigned long long>(hash));
    std::size_t kept = longest - std::min(longest, end.size() + 17);
    while (kept > 0 && (static_cast<unsigned char>(name[kept]) & 0xc0) == 0x80) --kept;  // not inside of a character
    name = name.substr(0, kept) + digits;
  }
  return path.parent_path() / (name + end);
}

bool lock(int descriptor) {
  int status;
  do {
    status = ::flock(descriptor, LOCK_EX | LOCK_NB);
  } while (status != 0 && errno == EINTR);
  return status == 0;
}

bool is_named(int descriptor, const std::filesystem::path& path) {
  struct stat open {
  }, named{};
  return ::fstat(descriptor, &open) == 0 && ::lstat(path.c_str(), &named) == 0 && open.st_dev == named.st_dev &&
         open.st_ino == named.st_ino;
}

}  // namespace

OutputFile::OutputFile(const std::filesystem::path& path) : path_(path) {
  if (path.empty()) throw FormatError(path, "cannot write: the path is empty");
  // The system judges a link before it is followed here: one in a folder that all may write may be a trap.
  struct stat target {};
  if (::stat(path.c_str(), &target) != 0 && errno != ENOENT) fail("cannot write", errno);
  std::error_code error;
  if (std::filesystem::is_symlink(std::filesystem::symlink_status(path_, error))) {
    path_ = std::filesystem::canonical(path, error);
    if (error) throw FormatError(path, "cannot write: the link's target is missing");
  }
  const auto status = std::filesystem::status(path_, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw FormatError(path, "cannot write: it exists and is not a regular file");
  }
  folder_ = path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
  remove_left();
  // Until it has the mode of the file that it replaces nobody else may open it.
  const unsigned mode = std::filesystem::exists(status) ? 0600 : 0666;
  if (!open_unnamed(mode)) open_named(mode);
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  ::close(descriptor_);
}

void OutputFile::fail(std::string_view what, int error) const {
  throw FormatError(path_, std::string(what) + ": " + reason(error));
}

bool OutputFile::open_unnamed(unsigned mode) {
  do {
    descriptor_ = ::open(folder_.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, mode);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) return false;  // for whatever reason: open_named() tells those that are errors
  if (::access(name_of_descriptor(descriptor_).c_str(), F_OK) != 0) {  // no /proc: it could not be named
    ::close(std::exchange(descriptor_, -1));
    return false;
  }
  lock(descriptor_);
  return true;
}

void OutputFile::open_named(unsigned mode) {
  // A writer that removes what was left may find the file between open() and lock(): then the next name.
  const auto create = [&](const char* name) {
    descriptor_ = ::open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (descriptor_ < 0) return -1;
    const bool held = lock(descriptor_) || errno != EWOULDBLOCK;  // a file system may have no locks
    if (held && is_named(descriptor_, name)) return 0;
    ::close(std::exchange(descriptor_, -1));
    errno = EEXIST;
    return -1;
  };
  if (try_names(create) != 0) fail("cannot write", errno);
}

template <class F>
int OutputFile::try_names(const F& create) {
  for (int n = 0; n < kMostNames;) {
    temporary_ = temporary_of(path_, folder_, n);
    if (create(temporary_.c_str()) == 0) return 0;
    if (errno == EINTR) continue;
    if (errno != EEXIST) break;
    ++n;
  }
  temporary_.clear();
  return -1;
}

/// Whoever has locked a temporary may remove it or give it its final name, and nobody else; so the name means the same
/// file from is_named() to unlink().
void OutputFile::remove_left() const {
  for (int n = 0, missing = 0; missing < kMissing && n < kMostNames; ++n) {
    const std::filesystem::path name = temporary_of(path_, folder_, n);
    struct stat status {};
    if (::lstat(name.c_str(), &status) != 0) {
      ++missing;
      continue;
    }
    missing = 0;
    if (!S_ISREG(status.st_mode)) continue;
    constexpr int flags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int descriptor = ::open(name.c_str(), O_RDWR | flags);  // NFS locks only what is open for writing
    if (descriptor < 0) descriptor = ::open(name.c_str(), O_RDONLY | flags);
    if (descriptor < 0) continue;
    if (lock(descriptor) && is_named(descriptor, name)) ::unlink(name.c_str());
    ::close(descriptor);
  }
}

void OutputFile::keep_mode() {
  struct stat old {
  }, own{};
  if (::stat(path_.c_str(), &old) != 0 || ::fstat(descriptor_, &own) != 0) return;
  mode_t mode = old.st_mode & 07777;
  // The group alone where the owner may not be set.
  const bool owner = own.st_uid == old.st_uid || ::fchown(descriptor_, old.st_uid, static_cast<gid_t>(-1)) == 0;
  const bool group = own.st_gid == old.st_gid || ::fchown(descriptor_, static_cast<uid_t>(-1), old.st_gid) == 0;
  if (!owner || !group) mode &= 0777;
  // Another group than was meant, or an access list, which is not kept, and whose mask stands in the group's place: no
  // more than all others.
  const bool listed = ::getxattr(path_.c_str(), "system.posix_acl_access", nullptr, 0) > 0;
  if (!group || listed) mode &= ~mode_t{070} | (mode & 07) << 3;
  ::fchmod(descriptor_, mode);
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto done = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kMaxTransfer));
    if (done < 0) {
      if (errno == EINTR) continue;
      fail("cannot write", errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

void OutputFile::begin_sync() noexcept {
  ::sync_file_range(descriptor_, 0, 0, SYNC_FILE_RANGE_WRITE);  // where a file system cannot, commit() writes all
}

void OutputFile::sync() {
  keep_mode();  // now that all is written, which takes the bits from a file that set a user
  if (::fsync(descriptor_) != 0) fail("cannot sync", errno);
}

/// Where a file may be without a name, but may not be given one.
void OutputFile::copy_to_named() {
  struct Closed {
    ~Closed() { ::close(descriptor); }
    int descriptor;
  } const unnamed{std::exchange(descriptor_, -1)};
  struct stat status {};
  if (::fstat(unnamed.descriptor, &status) != 0 || ::lseek(unnamed.descriptor, 0, SEEK_SET) != 0) {
    fail("cannot read what was written", errno);
  }
  open_named(0600);
  std::vector<std::byte> part(std::size_t{1} << 20);
  for (;;) {
    const auto size = ::read(unnamed.descriptor, part.data(), part.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) fail("cannot read what was written", errno);
    if (size == 0) break;
    write(std::span(part).first(static_cast<std::size_t>(size)));
  }
  struct stat old {};
  if (::stat(path_.c_str(), &old) != 0) ::fchmod(descriptor_, status.st_mode & 0777);  // else keep_mode() does
  sync();
}

void OutputFile::commit() {
  sync();
  if (temporary_.empty()) {
    const auto link = [from = name_of_descriptor(descriptor_)](const char* name) {
      return ::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, name, AT_SYMLINK_FOLLOW);
    };
    if (link(path_.c_str()) != 0) {
      // There is no call that puts a file without a name in the place of another.
      if (errno != EEXIST || try_names(link) != 0) copy_to_named();
    }
  }
  if (!temporary_.empty() && ::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot rename into place", errno);
  ::close(std::exchange(descriptor_, -1));
  // The new name lives in the folder: sync that too. A file system that cannot sync folders loses nothing but that.
  const int directory = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return;
  const int error = ::fsync(directory) == 0 ? 0 : errno;
  ::close(directory);
  if (error == EIO) fail("it is there, but its folder cannot be synced", error);
}

}  // namespace sluice::formats
