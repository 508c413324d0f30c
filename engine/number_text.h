// Numbers as text, and back: the same in every locale that a program may have set.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace sluice {

/// With so many decimals: "1.50".
inline std::string fixed_text(double number, int decimals) {
  char text[400];  // the largest double has 309 digits
  const auto end = std::to_chars(text, text + sizeof text, number, std::chars_format::fixed, decimals).ptr;
  return std::string(text, end);
}

/// With so many digits at most, and an exponent where that is shorter: "0.25", "1e+300".
inline std::string general_text(double number, int digits) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, number, std::chars_format::general, digits).ptr;
  return std::string(text, end);
}

/// The number that the whole text is, or nothing. Hexadecimal numbers are none.
inline std::optional<double> number_from(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace sluice
