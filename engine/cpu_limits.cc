#include "sluice/engine/cpu_limits.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "sluice/engine/number_text.h"

namespace sluice {
namespace {

int cpus_of_thread() {
#ifdef __linux__
  for (int most = 1024; most <= (1 << 20); most *= 2) {  // the kernel's mask may be longer than cpu_set_t
    cpu_set_t* const set = CPU_ALLOC(most);
    if (!set) break;
    const std::size_t size = CPU_ALLOC_SIZE(most);
    const int failed = ::sched_getaffinity(0, size, set) == 0 ? 0 : errno;
    const int count = failed ? 0 : CPU_COUNT_S(size, set);
    CPU_FREE(set);
    if (count > 0) return count;
    if (failed != EINVAL) break;
  }
#endif
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end = text.find(separator); end != std::string::npos; end = text.find(separator, begin)) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

bool has(const std::string& list, std::string_view word) {
  const std::vector<std::string> words = split(list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// The first line; empty where there is no file.
std::string line_of(const std::string& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::vector<std::string> lines_of(const std::string& file) {
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::int64_t whole(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : 0;
}

/// "\040" is a space.
std::string unescaped(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](std::size_t k) { return i + k < text.size() && text[i + k] >= '0' && text[i + k] <= '7'; };
    if (text[i] == '\\' && digit(1) && digit(2) && digit(3)) {
      result += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      result += text[i];
    }
  }
  return result;
}

/// Of one group; 0: none.
double quota_at(const std::string& folder, bool second) {
  std::int64_t quota = 0, period = 0;
  if (second) {  // "max 100000", "50000 100000"
    const std::vector<std::string> words = split(line_of(folder + "/cpu.max"), ' ');
    if (words.size() < 2) return 0;
    quota = whole(words[0]);
    period = whole(words[1]);
  } else {  // -1: none
    quota = whole(line_of(folder + "/cpu.cfs_quota_us"));
    period = whole(line_of(folder + "/cpu.cfs_period_us"));
  }
  return quota > 0 && period > 0 ? static_cast<double>(quota) / static_cast<double>(period) : 0;
}

/// The group as a path below the mount, which shows the groups from `top` on. Empty: the mount itself, also for a group
/// that it does not show.
std::string below(const std::string& group, const std::string& top) {
  std::string path = group;
  if (top != "/") {
    if (group.compare(0, top.size(), top) != 0) return "";
    path = group.substr(top.size());
  }
  while (path.ends_with('/')) path.pop_back();
  if (path.empty() || path.front() != '/' || path.find("/..") != std::string::npos) return "";
  return path;
}

}  // namespace

double cpu_quota(const std::string& root) {
  std::optional<std::string> first_group, second_group;
  for (const std::string& line : lines_of(root + "/proc/self/cgroup")) {  // "4:cpu,cpuacct:/docker/5a"
    const std::size_t one = line.find(':'), two = one == std::string::npos ? one : line.find(':', one + 1);
    if (two == std::string::npos) continue;
    const std::string controllers = line.substr(one + 1, two - one - 1);
    if (controllers.empty()) second_group = line.substr(two + 1);
    if (has(controllers, "cpu")) first_group = line.substr(two + 1);
  }
  double least = 0;
  // "36 25 0:31 /docker/5a /sys/fs/cgroup/cpu ro,nosuid - cgroup cgroup rw,cpu,cpuacct"
  for (const std::string& line : lines_of(root + "/proc/self/mountinfo")) {
    const std::vector<std::string> words = split(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 4) continue;
    const bool second = dash[1] == "cgroup2";
    if (!second && !(dash[1] == "cgroup" && has(dash[3], "cpu"))) continue;
    const std::optional<std::string>& group = second ? second_group : first_group;
    if (!group) continue;
    const std::string mount = root + unescaped(words[4]);
    for (std::string path = below(*group, unescaped(words[3]));; path.erase(path.rfind('/'))) {
      const double quota = quota_at(mount + path, second);
      if (quota > 0 && (least == 0 || quota < least)) least = quota;
      if (path.empty()) break;
    }
  }
  return least;
}

CpuLimit cpu_limit(const std::string& root) {
  const int mask = cpus_of_thread();
  const double quota = cpu_quota(root);
  if (quota > 0 && std::ceil(quota) < mask) {
    return {std::max(1, static_cast<int>(std::ceil(quota))), "a quota of " + general_text(quota, 4) + " CPUs"};
  }
  return {mask, std::to_string(mask) + (mask == 1 ? " CPU" : " CPUs") + " in the affinity mask"};
}

}  // namespace sluice
