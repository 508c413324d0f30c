// A header of the protocol as text: its functions, and places in them that are named by a few words.
#pragma once

#include <algorithm>
#include <cctype>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::mutants {

inline bool of_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
inline bool blank(char c) { return std::isspace(static_cast<unsigned char>(c)); }

inline std::string trimmed(const std::string& s) {
  const auto first = s.find_first_not_of(" \t\n"), last = s.find_last_not_of(" \t\n");
  return first == std::string::npos ? "" : s.substr(first, last - first + 1);
}

/// The text with comments, literals and the preprocessor's lines blanked; its length is the same.
inline std::string code_of(const std::string& text) {
  std::string code = text;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::size_t end = i;
    if (text.compare(i, 2, "//") == 0 || (text[i] == '#' && (i == 0 || text[i - 1] == '\n'))) {
      end = std::min(text.find('\n', i), text.size());
    } else if (text.compare(i, 2, "/*") == 0) {
      end = text.find("*/", i) + 2;
    } else if (text[i] == '"' ||
               (text[i] == '\'' && (i == 0 || !std::isalnum(static_cast<unsigned char>(text[i - 1]))))) {
      end = i + 1;
      while (text[end] != text[i]) end += text[end] == '\\' ? 2 : 1;
      ++end;
    }
    if (end == i) continue;
    for (std::size_t k = i; k < end; ++k)
      if (code[k] != '\n') code[k] = ' ';
    i = end - 1;
  }
  return code;
}

/// Where the bracket closes that opens at `open`; npos: nowhere.
inline std::size_t closing(const std::string& code, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < code.size(); ++i) {
    if (std::string_view("([{").find(code[i]) != std::string_view::npos) ++depth;
    if (std::string_view(")]}").find(code[i]) != std::string_view::npos && --depth == 0) return i;
  }
  return std::string::npos;
}

struct Function {
  std::string name;
  std::size_t from, to;  ///< from its name on
};

/// The functions that are defined in a header, without those inside of functions.
inline std::vector<Function> functions_of(const std::string& code) {
  std::vector<Function> found;
  std::string name;  ///< of what may be a function: the word before the first bracket since the last declaration
  std::size_t from = 0;
  bool initialisers = false, value = false;
  const auto next = [&] { name.clear(), initialisers = value = false; };
  for (std::size_t i = 0; i < code.size(); ++i) {
    const char c = code[i];
    std::size_t before = i;
    while (before > 0 && blank(code[before - 1])) --before;
    if (c == ';' || c == '}') {
      next();
    } else if (c == '=' && name.empty()) {
      value = true;
    } else if (c == '(') {
      std::size_t start = before;
      while (start > 0 && (of_word(code[start - 1]) || code[start - 1] == '~')) --start;
      if (name.empty() && !value && start < before) {
        const std::string word = code.substr(start, before - start);
        if (word != "requires" && word != "alignas" && word != "decltype" && word != "noexcept")
          name = word, from = start;
      }
      i = closing(code, i);
    } else if (c == '[') {
      i = closing(code, i);
    } else if (c == ':' && !name.empty() && code[i + 1] != ':' && code[i - 1] != ':') {
      initialisers = true;
    } else if (c == '{' && !name.empty()) {
      const std::size_t close = closing(code, i);
      if (initialisers && before > 0 && of_word(code[before - 1])) {
        i = close;  // member{value}
        continue;
      }
      found.push_back({name, from, close});
      i = close;
      next();
    } else if (c == '{') {
      next();
    }
    if (i == std::string::npos) break;
  }
  return found;
}

struct Range {
  std::size_t from = std::string::npos, to = 0;
  int found = 0;  ///< how often it is there
};

/// Where `words` stand in the code, however they are spaced; "in FUNCTION" only, if one is named.
inline Range find_words(const std::string& code, const std::string& function, const std::string& words) {
  std::string pattern;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (blank(words[i])) continue;
    if (!pattern.empty()) {
      // Two words that were apart stay apart.
      const bool apart = blank(words[i - 1]) && of_word(words[i]) && of_word(words[words.find_last_not_of(" ", i - 1)]);
      if (apart) pattern += "\\s+";
      if (!apart && !(of_word(words[i]) && of_word(words[i - 1]))) pattern += "\\s*";
    }
    if (!of_word(words[i])) pattern += '\\';
    pattern += words[i];
  }
  if (of_word(words.front())) pattern.insert(0, "\\b");
  if (of_word(words.back())) pattern += "\\b";
  const std::regex expression(pattern);
  Range range;
  const auto look = [&](std::size_t from, std::size_t to) {
    const auto begin = code.begin() + static_cast<std::ptrdiff_t>(from),
               end = code.begin() + static_cast<std::ptrdiff_t>(to);
    for (std::sregex_iterator it(begin, end, expression), none; it != none; ++it) {
      if (range.found++ > 0) continue;
      range.from = from + static_cast<std::size_t>(it->position());
      range.to = range.from + static_cast<std::size_t>(it->length());
    }
  };
  if (function.empty()) {
    look(0, code.size());
  } else {
    for (const Function& f : functions_of(code))
      if (f.name == function) look(f.from, f.to);
  }
  return range;
}

/// The statement that has the place: from behind the last ; { or } to its own semicolon.
inline Range statement_around(const std::string& code, Range place) {
  int depth = 0;
  std::size_t from = place.from;
  for (; from > 0; --from) {
    const char c = code[from - 1];
    if (c == ')' || c == ']') ++depth;
    if (c == '(' || c == '[') --depth;
    if (depth <= 0 && (c == ';' || c == '{' || c == '}')) break;
  }
  while (blank(code[from])) ++from;
  std::size_t to = place.from;
  while (to < code.size() && code[to] != ';') {
    if (code[to] == '(' || code[to] == '[' || code[to] == '{') to = closing(code, to);
    ++to;
  }
  return {from, to + 1, 1};
}

}  // namespace sluice::mutants
