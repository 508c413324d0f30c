// What this process takes of the machine.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>

namespace sluice::testing {

inline std::ptrdiff_t threads_now() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

/// Waits until every other thread of this process sleeps, as two looks find it. False if that does not come to pass.
inline bool others_sleep(std::chrono::seconds limit = std::chrono::seconds(10)) {
  const std::string self = std::to_string(::gettid());
  const auto awake = [&] {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      if (task.path().filename() == self) continue;
      std::ostringstream text;
      text << std::ifstream(task.path() / "stat").rdbuf();
      const std::string stat = text.str();
      const std::size_t name_end = stat.rfind(')');  // of a thread that is just gone there is nothing
      if (name_end != std::string::npos && stat.compare(name_end, 3, ") S") != 0) return true;
    }
    return false;
  };
  const auto end = std::chrono::steady_clock::now() + limit;
  for (int looks = 0; looks < 2; looks = awake() ? 0 : looks + 1) {
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
