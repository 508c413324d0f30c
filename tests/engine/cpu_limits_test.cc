// The default number of threads: the affinity mask's, or the quota's of a container; what else is said of numbers of
// threads; and the line that SLUICE_REPORT=1 prints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "../support/one_cpu.h"
#include "../support/temporary_directory.h"
#include "sluice/engine/cpu_limits.h"
#include "support.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

/// A root directory of made-up files.
class Root {
 public:
  Root& file(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = there_.path().string() + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
    return *this;
  }
  Root& group(const std::string& text) { return file("/proc/self/cgroup", text); }
  Root& mounts(const std::string& text) { return file("/proc/self/mountinfo", text); }
  std::string path() const { return there_.path().string(); }
  double quota() const { return cpu_quota(path()); }

 private:
  const test::TemporaryDirectory there_;
};

constexpr const char* kSecond = "31 24 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

TEST(CpuLimits, TheSecondVersionOfControlGroups) {
  Root root;
  root.group("0::/user.slice/job\n").mounts(std::string("22 1 8:1 / / rw - ext4 /dev/a rw\n") + kSecond);
  EXPECT_EQ(root.quota(), 0);
  EXPECT_EQ(root.file("/sys/fs/cgroup/user.slice/job/cpu.max", "max 100000\n").quota(), 0);
  EXPECT_EQ(root.file("/sys/fs/cgroup/user.slice/job/cpu.max", "150000 100000\n").quota(), 1.5);
  // A parent's counts where it is less.
  EXPECT_EQ(root.file("/sys/fs/cgroup/user.slice/cpu.max", "400000 100000\n").quota(), 1.5);
  EXPECT_EQ(root.file("/sys/fs/cgroup/user.slice/cpu.max", "50000 100000\n").quota(), 0.5);
  EXPECT_EQ(root.file("/sys/fs/cgroup/user.slice/cpu.max", "max 100000\n").quota(), 1.5);
}

TEST(CpuLimits, InsideOfAContainerTheGroupIsTheMount) {
  Root own, shown;
  own.group("0::/\n").mounts(kSecond).file("/sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(own.quota(), 2);
  // The host's name of the group, of which the mount shows no more than this one.
  shown.group("5:memory:/docker/5a\n4:cpu,cpuacct:/docker/5a\n")
      .mounts("36 25 0:31 /docker/5a /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n")
      .file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n")
      .file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(shown.quota(), 2.5);
}

TEST(CpuLimits, TheFirstVersionOfControlGroups) {
  Root root;
  root.group("4:cpu,cpuacct:/a/b\n3:cpuset:/\n0::/\n")
      .mounts(
          "36 25 0:31 / /sys/fs/cgroup/with\\040space rw - cgroup cgroup rw,cpu,cpuacct\n"
          "37 25 0:32 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
          "38 25 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n")
      .file("/sys/fs/cgroup/with space/a/b/cpu.cfs_quota_us", "-1\n")
      .file("/sys/fs/cgroup/with space/a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(root.quota(), 0);
  root.file("/sys/fs/cgroup/with space/a/cpu.cfs_quota_us", "30000\n");
  root.file("/sys/fs/cgroup/with space/a/cpu.cfs_period_us", "10000\n");
  EXPECT_EQ(root.quota(), 3);
}

TEST(CpuLimits, FilesThatSayNothingAreNoLimit) {
  EXPECT_EQ(Root().quota(), 0);
  for (const char* const text :
       {"", "\n", "max", "1", "x y", "-5 100000", "5 0", "99999999999999999999 1", "1 2 3 4"}) {
    Root root;
    root.group("0::/a\nnonsense\n:\n0:").mounts("x - \n - - -\n" + std::string(kSecond));
    const double quota = root.file("/sys/fs/cgroup/a/cpu.max", text).quota();
    EXPECT_EQ(quota, std::string(text) == "1 2 3 4" ? 0.5 : 0) << text;
  }
  Root outside;  // of what the process can see
  outside.group("0::/../../b\n").mounts(kSecond).file("/sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(outside.quota(), 1);
}

TEST(CpuLimits, AQuotaIsRoundedUpAndCountsWhereItIsLess) {
  const int mask = cpu_limit(Root().path()).cpus;
  Root root;
  root.group("0::/a\n").mounts(kSecond);
  const auto limit = [&](const char* text) { return cpu_limit(root.file("/sys/fs/cgroup/a/cpu.max", text).path()); };
  EXPECT_EQ(limit("max 100000").cpus, mask);
  EXPECT_EQ(limit("100000000 100000").cpus, mask);
  if (mask < 2) GTEST_SKIP() << "one CPU, of which no quota is less than 1";
  EXPECT_EQ(limit("50000 100000").cpus, 1);
  EXPECT_EQ(limit("50000 100000").why, "a quota of 0.5 CPUs");
  EXPECT_EQ(limit("1000 100000").cpus, 1);
  if (mask < 3) GTEST_SKIP() << "two CPUs, which is 1.5 rounded up";
  EXPECT_EQ(limit("150000 100000").cpus, 2);
}

class Unset {
 public:
  Unset() { unsetenv("SLUICE_THREADS"); }
  ~Unset() {
    if (before_) setenv("SLUICE_THREADS", text_.c_str(), 1);
  }

 private:
  const bool before_ = std::getenv("SLUICE_THREADS") != nullptr;
  const std::string text_ = before_ ? std::getenv("SLUICE_THREADS") : "";
};

TEST(CpuLimits, AnEngineOfOneCpuHasOneThread) {
  const Unset unset;
  test::on_one_cpu([] {
    EXPECT_EQ(cpu_limit().cpus, 1);
    EXPECT_EQ(cpu_limit().why, "1 CPU in the affinity mask");
    EXPECT_EQ(Engine().threads(), 1);
  });
}

TEST(CpuLimits, AsManyThreadsRunAsAreAccepted) {
  Engine engine({.threads = 255});
  std::atomic<int> here{0};
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (int i = 0; i < 255; ++i) {
    engine.push(
        [&] {
          ++here;
          while (here.load() < 255 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
        },
        {});
  }
  engine.wait_all();
  EXPECT_LT(std::chrono::steady_clock::now(), limit) << "fewer than 255 ran at once";
}

std::string refusal(const EngineOptions& options) {
  try {
    const Engine engine(options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(CpuLimits, MoreThreadsAreRefusedAndTheMostIsNamed) {
  const Unset unset;
  EXPECT_THAT(refusal({.threads = 256}), HasSubstr("threads = 256: a number from 1 to 255 is wanted"));
  for (const char* const text : {"256", "1024", "0", "-1", "4x"}) {
    setenv("SLUICE_THREADS", text, 1);
    EXPECT_THAT(refusal({}), HasSubstr(std::string("SLUICE_THREADS=") + text + ": a number from 1 to 255 is wanted"));
  }
  unsetenv("SLUICE_THREADS");
}

/// What is printed while an engine is made.
std::string report(const EngineOptions& options) {
  ::testing::internal::CaptureStderr();
  const Engine engine(options);
  return ::testing::internal::GetCapturedStderr();
}

TEST(Report, IsOneLineThatSaysHowManyThreadsAndWhy) {
  const Unset unset;
  setenv("SLUICE_REPORT", "1", 1);
  EXPECT_THAT(report({}), HasSubstr(std::to_string(cpu_limit().cpus) + " thread"));
  EXPECT_THAT(report({}), HasSubstr("(" + cpu_limit().why + ")"));
  EXPECT_THAT(
      report({.threads = 3, .logical_cpus = 2}),
      MatchesRegex("sluice [0-9.]+; 3 threads \\(EngineOptions\\); oneTBB [0-9.]+.*; cpu\\(0\\) to cpu\\(1\\)\n"));
  EXPECT_THAT(report({.mode = EngineMode::serial}), HasSubstr("; no threads (serial); "));
  setenv("SLUICE_THREADS", "2", 1);
  EXPECT_THAT(report({}), HasSubstr("; 2 threads (SLUICE_THREADS); "));
  setenv("SLUICE_REPORT", "0", 1);
  EXPECT_EQ(report({}), "");
  setenv("SLUICE_REPORT", "yes", 1);
  EXPECT_EQ(refusal({}), "SLUICE_REPORT=yes: 0 or 1 is wanted");
  unsetenv("SLUICE_REPORT");
}

}  // namespace
}  // namespace sluice
