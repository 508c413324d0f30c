// How many CPUs the process may use: what the numbers of threads are by default.
#pragma once

#include <string>

namespace sluice {

struct CpuLimit {
  int cpus = 1;
  std::string why;  ///< "2 CPUs in the affinity mask", "a quota of 1.5 CPUs"
};

/// The number of CPUs in the affinity mask of the calling thread, which those that it starts have too; or that of its
/// control group's quota, or a parent's (cgroup v1 and v2), rounded up, where that is less. At least 1. Looked up at
/// each call. `root` as in cpu_quota().
CpuLimit cpu_limit(const std::string& root = "");

/// The quota alone, in CPUs, of the files /proc/self/cgroup, /proc/self/mountinfo and those that they name, under
/// `root`; 0 where there is none, or none that can be read.
double cpu_quota(const std::string& root = "");

}  // namespace sluice
