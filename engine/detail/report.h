// What SLUICE_REPORT=1 prints when an engine is made.
#pragma once

#include <string>

#include "sluice/engine/detail/core_setup.h"

namespace sluice::detail {

/// What an upper floor adds to the line. Static objects, made before the first engine.
class ReportPart {
 public:
  explicit ReportPart(std::string (*text)()) noexcept;
  ReportPart(const ReportPart&) = delete;
  ReportPart& operator=(const ReportPart&) = delete;

  std::string (*const text)();
  const ReportPart* const next;
};

/// "sluice 0.1.0; 2 threads (2 CPUs in the affinity mask); oneTBB 2021.8; cpu(0)", with the parts before the devices.
std::string report_text(const CoreOptions& options, const std::string& why_threads);

}  // namespace sluice::detail
