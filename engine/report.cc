#include "sluice/engine/detail/report.h"

#include <oneapi/tbb/version.h>

#include <atomic>
#include <exception>
#include <utility>

namespace sluice::detail {
namespace {
constinit std::atomic<const ReportPart*> parts{nullptr};
}

ReportPart::ReportPart(std::string (*f)()) noexcept : text(f), next(parts.load()) { parts.store(this); }

std::string report_text(const CoreOptions& options, const std::string& why_threads) {
  std::string line = "sluice " SLUICE_VERSION "; ";
  line += options.serial ? "no threads (serial)"
                         : std::to_string(options.threads) + (options.threads == 1 ? " thread (" : " threads (") +
                               why_threads + ")";
  line += std::string("; oneTBB ") + TBB_runtime_version();
  for (const ReportPart* part = parts.load(); part; part = part->next) {
    try {
      line += "; " + part->text();
    } catch (const std::exception& error) {
      line += std::string("; ") + error.what();
    }
  }
  line += "; ";
  bool first = true;
  for (const auto& provider : options.providers) {
    if (!std::exchange(first, false)) line += ", ";
    const int devices = provider->devices();
    const std::string name = to_string(Device{provider->kind(), 0});
    if (devices == 0) {
      line += "no " + name.substr(0, name.find('('));
      if (const std::string why = provider->unavailable(); !why.empty()) line += " (" + why + ")";
    } else {
      line += name;
      if (devices > 1) line += " to " + to_string(Device{provider->kind(), static_cast<std::uint8_t>(devices - 1)});
    }
  }
  return line;
}

}  // namespace sluice::detail
