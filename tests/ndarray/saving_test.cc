// What saving leaves on the disk: modes and owners, names of every length, and what is there after a kill. Processes of
// their own, some of them under a filter that refuses files without names, as NFS and FAT do, or that kills at
// rename().
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "sluice/ndarray/files.h"
#include "sluice/ndarray/formats/file_io.h"
#include "sluice/operators/operators.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice {
namespace {

using formats::OutputFile;
using test::read_file;
using test::TemporaryDirectory;
using test::write_file;

/// Of system calls; any of them together.
enum Filter : unsigned { none = 0, no_unnamed_files = 1, no_links = 2, kill_at_rename = 4 };

/// For the rest of this process. O_TMPFILE is refused as by a file system that does not know it, and linkat() as by a
/// container that forbids it.
void install(unsigned filter) {
  if (filter == none) return;
  std::vector<sock_filter> program;
  const auto load = [&](std::size_t offset) {
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offset)));
  };
  load(offsetof(seccomp_data, nr));
  const auto kill_at = [&](unsigned call) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  };
  if (filter & no_links) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_linkat, 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  }
  if (filter & kill_at_rename) {
#ifdef SYS_rename
    kill_at(SYS_rename);
#endif
#ifdef SYS_renameat
    kill_at(SYS_renameat);
#endif
    kill_at(SYS_renameat2);
  }
  if (filter & no_unnamed_files) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3));
    load(offsetof(seccomp_data, args) + 2 * sizeof(std::uint64_t));
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_TMPFILE & ~O_DIRECTORY, 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog whole{static_cast<unsigned short>(program.size()), program.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole) != 0) {
    throw std::runtime_error("no filter of system calls here");
  }
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);  // a process that the filter kills would leave one
}

pid_t start(unsigned filter, const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(60);
  try {
    install(filter);
    body();
    ::_exit(0);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    ::_exit(1);
  }
}

/// As wait() has it.
int status_of(pid_t child) {
  int status = -1;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

/// In a process of its own, so that the filter goes with it.
void run(unsigned filter, const std::function<void()>& body) { EXPECT_EQ(status_of(start(filter, body)), 0); }

void save(const std::filesystem::path& path, const std::string& text) {
  OutputFile file(path);
  file.write(text);
  file.commit();
}

void check(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("wrong: " + what);
}

std::set<std::string> files_in(const TemporaryDirectory& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) names.insert(entry.path().filename());
  return names;
}

unsigned mode_of(const std::filesystem::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_mode & 07777U : 0;
}

class Saving : public testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(, Saving, testing::Values(none, no_unnamed_files, no_links), [](const auto& of) {
  return of.param == none ? "Unnamed" : of.param == no_links ? "NamedLate" : "Named";
});

TEST_P(Saving, KeepsTheMode) {
  const TemporaryDirectory directory;
  run(GetParam(), [&] {
    ::umask(022);
    save(directory / "new", "1");
    check(mode_of(directory / "new") == 0644, "a new file has what the umask leaves");
    for (const unsigned mode : {0600U, 0640U, 0444U, 0755U, 0666U}) {
      ::chmod((directory / "new").c_str(), mode);
      save(directory / "new", std::to_string(mode));
      check(mode_of(directory / "new") == mode, "mode " + std::to_string(mode));
      check(read_file(directory / "new") == std::to_string(mode), "contents");
    }
    std::filesystem::create_symlink("new", directory / "link");
    ::chmod((directory / "new").c_str(), 0600);
    save(directory / "link", "through the link");
    check(std::filesystem::is_symlink(directory / "link"), "the link stays");
    check(mode_of(directory / "new") == 0600 && read_file(directory / "new") == "through the link", "its target");
  });
  EXPECT_EQ(files_in(directory), (std::set<std::string>{"new", "link"}));
}

TEST(SavingArrays, KeepsTheMode) {
  const TemporaryDirectory directory;
  const NDArray x = zeros({3});
  const std::string npy = directory / "a.npy", npz = directory / "a.npz", tensors = directory / "a.safetensors";
  for (int round = 0; round < 2; ++round) {
    save_npy(npy, x);
    save_npz(npz, {{"x", x}});
    save_arrays(tensors, {{"x", x}});
    for (const std::string& path : {npy, npz, tensors}) {
      if (round == 0) ::chmod(path.c_str(), 0600);
      EXPECT_TRUE(round == 0 || mode_of(path) == 0600) << path;
    }
  }
  EXPECT_EQ(files_in(directory).size(), 3U);
}

// Only root may give files away; other users find here that they keep what is theirs.
TEST_P(Saving, KeepsOwnerAndGroupWhereItMay) {
  const TemporaryDirectory directory;
  const auto path = directory / "a";
  write_file(path, "old");
  struct stat status {};
  if (::geteuid() == 0) {
    if (::chown(path.c_str(), 12345, 23456) != 0) GTEST_SKIP() << "a root that gives nothing away, as in a container";
    ::chmod(path.c_str(), 02640);
    run(GetParam(), [&] { save(path, "new"); });
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_uid, 12345U);
    EXPECT_EQ(status.st_gid, 23456U);
    EXPECT_EQ(mode_of(path), 02640U);
    // One who may write the folder and not give files to that group: the group's rights are not another group's.
    ::chmod(directory.path().c_str(), 0777);
    ::chmod(path.c_str(), 02664);
    const int ended = status_of(start(GetParam(), [&] {
      check(::setgroups(0, nullptr) == 0 && ::setgid(34567) == 0 && ::setuid(34567) == 0, "another user");
      if (::access(directory.path().c_str(), W_OK) != 0) ::_exit(77);  // the folder above is root's alone
      save(path, "newer");
    }));
    if (WIFEXITED(ended) && WEXITSTATUS(ended) == 77) GTEST_SKIP() << "temporary files lie in a folder of root's alone";
    EXPECT_EQ(ended, 0);
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_uid, 34567U);
    EXPECT_EQ(mode_of(path), 0644U);
  } else {
    ::chmod(path.c_str(), 0660);
    run(GetParam(), [&] { save(path, "newer"); });
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_uid, ::geteuid());
    EXPECT_EQ(mode_of(path), 0660U);
  }
}

// Of a file with an access list the group's bits are the list's mask. The list is not kept, so nor are they.
TEST_P(Saving, GivesNoGroupWhatAnAccessListGaveAnother) {
  const TemporaryDirectory directory;
  const auto path = directory / "a";
  write_file(path, "old");
  struct Entry {
    std::uint16_t tag, rights;
    std::uint32_t id;
  };
  const struct {
    std::uint32_t version = 2;
    // The owner, user 1234, the group, the mask, others.
    Entry entries[5] = {{1, 6, ~0U}, {2, 6, 1234}, {4, 0, ~0U}, {16, 6, ~0U}, {32, 0, ~0U}};
  } list;
  if (::setxattr(path.c_str(), "system.posix_acl_access", &list, sizeof list, 0) != 0) {
    GTEST_SKIP() << "no access lists here";
  }
  ASSERT_EQ(mode_of(path), 0660U);
  run(GetParam(), [&] { save(path, "new"); });
  EXPECT_EQ(mode_of(path), 0600U);
}

TEST_P(Saving, TakesNamesOf255Bytes) {
  const TemporaryDirectory directory;
  std::string umlauts = "x";
  for (int i = 0; i < 127; ++i) umlauts += "\xc3\xa4";
  const std::set<std::string> names{std::string(255, 'n'), std::string(254, 'n') + "m", std::string(243, 'n'),
                                    std::string(242, 'n'), umlauts};
  run(GetParam(), [&] {
    for (const std::string& name : names) {
      for (const char* const text : {"1", "2"}) {
        OutputFile file(directory / name);
        file.write(text);
        save(directory / name, "of another, meanwhile");
        file.commit();
        check(read_file(directory / name) == text, name);
      }
    }
  });
  EXPECT_EQ(files_in(directory), names);
}

TEST(SavingArrays, NamesAnEmptyPath) {
  const NDArray x = zeros({3});
  const auto expect_words = [](const std::function<void()>& call, const std::string& words) {
    try {
      call();
      ADD_FAILURE() << "wanted an error: " << words;
    } catch (const FormatError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  expect_words([&] { save_npy("", x); }, ": '': cannot write: the path is empty");
  expect_words([&] { save_npz("", {{"x", x}}); }, ": '': cannot write: the path is empty");
  expect_words([&] { save_arrays("", {{"x", x}}); }, ": '': cannot write: the path is empty");
  expect_words([&] { read_npy(""); }, ": '': cannot open: the path is empty");
  expect_words([&] { load_arrays(""); }, ": '': cannot open: the path is empty");
}

// Until it is named, a file that is being written is in no folder, where the file system can do that.
TEST(SavingFiles, WritesWithoutAName) {
  const TemporaryDirectory directory;
  const int can = ::open(directory.path().c_str(), O_WRONLY | O_TMPFILE, 0600);
  if (can >= 0) ::close(can);
  OutputFile file(directory / "a");
  file.write("text");
  EXPECT_EQ(files_in(directory).empty(), can >= 0 && ::access("/proc/self/fd", X_OK) == 0);
}

TEST_P(Saving, AKillLeavesAWholeFileAndNothingForLong) {
  const TemporaryDirectory directory;
  for (const std::string& name : {std::string("a.npy"), std::string(255, 'n')}) {
    const auto path = directory / name;
    const auto text = [](int i) { return std::string(20000, static_cast<char>('a' + i % 26)); };
    save(path, text(0));
    const unsigned seed = std::random_device()();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto enough = std::chrono::steady_clock::now() + std::chrono::seconds(20);  // a disk may take long to sync
    for (int round = 0; round < 50 && std::chrono::steady_clock::now() < enough; ++round) {
      const pid_t child = start(GetParam(), [&] {
        for (int i = 0;; ++i) save(path, text(i));
      });
      ::usleep(random() % 8000);
      ::kill(child, SIGKILL);
      EXPECT_EQ(status_of(child), SIGKILL);
      const std::string found = read_file(path);
      ASSERT_EQ(found.size(), 20000U);
      ASSERT_EQ(found.find_first_not_of(found[0]), std::string::npos);
      ASSERT_LE(files_in(directory).size(), 2U);  // the file, and what the kill has left
    }
    save(path, "last");
    EXPECT_EQ(files_in(directory), std::set<std::string>{name});
    std::filesystem::remove(path);
  }
}

TEST_P(Saving, AKillAtTheWorstMomentToo) {
  const TemporaryDirectory directory;
  for (const std::string& name : {std::string("a.npy"), std::string(255, 'n')}) {
    const auto path = directory / name;
    save(path, "old");
    EXPECT_EQ(status_of(start(GetParam() | kill_at_rename, [&] { save(path, "new"); })) & 0x7f, SIGSYS);
    EXPECT_EQ(read_file(path), "old");
    EXPECT_EQ(files_in(directory).size(), 2U);
    run(GetParam(), [&] { save(path, "newer"); });
    EXPECT_EQ(read_file(path), "newer");
    EXPECT_EQ(files_in(directory), std::set<std::string>{name});
    std::filesystem::remove(path);
  }
}

// A writer at work is told from one that has died by its lock: nobody takes its file away.
TEST_P(Saving, SeveralWritersOfOneName) {
  const TemporaryDirectory directory;
  const auto path = directory / "a";
  run(GetParam(), [&] {
    std::vector<std::thread> threads;
    std::vector<std::string> wrong(4);
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        try {
          for (int i = 0; i < 25; ++i) save(path, std::string(10000, static_cast<char>('a' + t)));
        } catch (const std::exception& error) {
          wrong[static_cast<std::size_t>(t)] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& text : wrong) check(text.empty(), text);
    const std::string found = read_file(path);
    check(found.size() == 10000 && found.find_first_not_of(found[0]) == std::string::npos, "one of them whole");
  });
  EXPECT_EQ(files_in(directory), std::set<std::string>{"a"});
}

}  // namespace
}  // namespace sluice
