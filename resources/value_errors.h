// What fails an op whose input holds a number that it cannot take: one sentence for all backends.
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <string>

namespace sluice {

/// The label of a row is not in [0, classes).
inline std::string label_outside(std::int64_t label, std::int64_t row, std::int64_t classes) {
  return "the label " + std::to_string(label) + " of row " + std::to_string(row) + " is not in [0, " +
         std::to_string(classes) + ")";
}

/// An index, the `element`-th of its array, is not in [low, size): low is 0, or -size where negative ones count from
/// the end.
inline std::string index_outside(std::int64_t index, std::int64_t element, std::int64_t low, std::int64_t size) {
  return "the index " + std::to_string(index) + " (element " + std::to_string(element) + ") is not in [" +
         std::to_string(low) + ", " + std::to_string(size) + ")";
}

/// A probability, the `element`-th of its array, is not in [0, 1].
inline std::string probability_outside(double probability, std::int64_t element) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), probability).ptr;
  return "the probability " + std::string(text.data(), end) + " (element " + std::to_string(element) +
         ") is not in [0, 1]";
}

}  // namespace sluice
