// What errors quote of a text from outside: never more than a line has room for.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::parallel {

/// True for a byte that stands within a character of UTF-8.
inline bool is_continued(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

/// The text, or where it has more than `most` bytes (at least 3) its beginning and "...": no character of UTF-8 is cut
/// through. Control characters become '?', so that it stays one line.
inline std::string excerpt(std::string_view text, std::size_t most) {
  std::size_t size = text.size();
  if (size > most) {
    size = most - 3;
    while (size > 0 && is_continued(text[size])) --size;
  }
  std::string quoted(text.substr(0, size));
  for (char& c : quoted) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  if (size < text.size()) quoted += "...";
  return quoted;
}

}  // namespace sluice::parallel
