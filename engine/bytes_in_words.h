// bytes_in_words: a number of bytes for people.
#pragma once

#include <cmath>
#include <cstddef>
#include <iterator>
#include <string>

#include "sluice/engine/number_text.h"

namespace sluice {

/// "1.50 GiB", "17 B": in the largest unit of 1,024 of which there is one, up to TiB, and with two decimals above
/// bytes. A part of a byte counts as one.
inline std::string bytes_in_words(double bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = std::ceil(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(units); ++unit) value /= 1024;
  return fixed_text(value, unit == 0 ? 0 : 2) + " " + units[unit];
}

}  // namespace sluice
