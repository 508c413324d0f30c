// What a statement throws, for tests of the texts of errors.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <filesystem>
#include <string>

namespace sluice::testing {

/// What a statement throws, with FILE:LINE for the name of the source file and the number of the line, which must be
/// that of the statement, and DIR for the folder.
template <class F>
std::string text_of(F statement, const char* source, int line, const std::filesystem::path& folder = {}) {
  try {
    statement();
  } catch (const std::exception& e) {
    std::string text = e.what();
    EXPECT_EQ(text.find('\n'), text.npos) << text;
    for (std::size_t at; !folder.empty() && (at = text.find(folder.string())) != text.npos;) {
      text.replace(at, folder.string().size(), "DIR");
    }
    const std::string file = std::filesystem::path(source).filename().string() + ":";
    const std::size_t at = text.find(file);
    if (at == text.npos) return text;
    std::size_t length = 0;
    const int named = std::stoi(text.substr(at + file.size()), &length);
    EXPECT_TRUE(named >= line && named <= line + 3) << text << "; it was called in line " << line;
    return text.replace(at, file.size() + length, "FILE:LINE");
  }
  return "nothing was thrown";
}

#define EXPECT_TEXT(statement, text) EXPECT_EQ(text_of([&] { static_cast<void>(statement); }, __FILE__, __LINE__), text)

}  // namespace sluice::testing
