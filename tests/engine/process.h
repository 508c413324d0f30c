// What this process takes of the machine.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

namespace sluice::testing {

inline std::ptrdiff_t threads_now() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

/// True if every other thread of this process sleeps: none runs, or would if there were a core for it. Takes nothing
/// from operator new.
inline bool others_asleep_now() {
  DIR* const tasks = ::opendir("/proc/self/task");
  if (!tasks) return false;
  bool awake = false;
  while (const dirent* const task = awake ? nullptr : ::readdir(tasks)) {
    if (task->d_name[0] == '.' || std::atol(task->d_name) == ::gettid()) continue;
    char name[300], stat[512] = "";
    std::snprintf(name, sizeof(name), "/proc/self/task/%s/stat", task->d_name);
    const int file = ::open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;  // of a thread that is just gone there is nothing
    if (::read(file, stat, sizeof(stat) - 1) > 0)
      if (const char* const name_end = std::strrchr(stat, ')')) awake = std::strncmp(name_end, ") S", 3) != 0;
    ::close(file);
  }
  ::closedir(tasks);
  return !awake;
}

/// Waits until every other thread of this process sleeps, as two looks find it. False if that does not come to pass.
inline bool others_sleep(std::chrono::seconds limit = std::chrono::seconds(10)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  for (int looks = 0; looks < 2; looks = others_asleep_now() ? looks + 1 : 0) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

inline std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

inline double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace sluice::testing
