#include "sluice/operators/backends/cpu/dispatch.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/detail/report.h"
#include "sluice/operators/backends/cpu/libraries.h"

namespace sluice::cpu_backend {
namespace {

constexpr const char* kNames[] = {"default", "avx2", "avx512"};

InstructionSet best() {
#if SLUICE_X86_KERNELS
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  return avx512 ? InstructionSet::avx512 : avx2 ? InstructionSet::avx2 : InstructionSet::plain;
#else
  return InstructionSet::plain;
#endif
}

InstructionSet choose() {
  const char* wanted = std::getenv("SLUICE_ISA");
  if (wanted == nullptr || *wanted == '\0') return best();
  for (int i = 0; i < 3; ++i) {
    if (std::string(wanted) != kNames[i]) continue;
    const auto set = static_cast<InstructionSet>(i);
    if (set > best()) {
      throw std::invalid_argument("SLUICE_ISA=" + std::string(wanted) + ": this CPU has " +
                                  kNames[static_cast<int>(best())] + " at most");
    }
    return set;
  }
  throw std::invalid_argument("SLUICE_ISA=" + std::string(wanted) + ": expected default, avx2 or avx512");
}

const sluice::detail::ReportPart report([] { return std::string(instruction_set()) + "; " + libraries_text(); });

}  // namespace

InstructionSet instruction_set_in_use() {
  return sluice::detail::first_use([] {
    static const InstructionSet set = choose();
    return &set;
  });
}

const char* instruction_set() { return kNames[static_cast<int>(instruction_set_in_use())]; }

}  // namespace sluice::cpu_backend
