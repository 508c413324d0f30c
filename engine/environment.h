// Switches in the environment.
#pragma once

#include <cstdlib>
#include <string>

#include "sluice/engine/errors.h"

namespace sluice::detail {

/// Whether NAME=1 is set; `fallback` where it is unset or empty. Throws UsageError for anything else than 0 and 1.
inline bool switch_from_environment(const char* name, bool fallback) {
  const char* const value = std::getenv(name);
  const std::string text = value ? value : "";
  if (text.empty()) return fallback;
  if (text != "0" && text != "1") throw UsageError(std::string(name) + "=" + text + ": 0 or 1 is wanted");
  return text == "1";
}

}  // namespace sluice::detail
