// The switch of tests/reach.py: which of the planted faults is on in this process. Included before every file.
#pragma once

#include <cstdlib>

namespace sluice {

/// 0, which is no fault's number, until it is set.
inline const int planted_fault = [] {
  const char* const number = std::getenv("SLUICE_FAULT");
  return number ? std::atoi(number) : 0;
}();
inline bool planted(int fault) { return planted_fault == fault; }

}  // namespace sluice
