// Writes a test of each line of docs/from-pytorch.md: from_pytorch_write PAGE OUTPUT. A line of a table is
// "| `PyTorch` | `Sluice` |", where \| stands for |. The test runs the second as a statement.
#include <cstdio>
#include <fstream>
#include <string>

namespace {

/// The code in the last cell of a line; empty if there is none.
std::string last_code(const std::string& line) {
  const std::size_t end = line.rfind('`');
  if (end == std::string::npos || end == 0) return {};
  const std::size_t begin = line.rfind('`', end - 1);
  if (begin == std::string::npos) return {};
  std::string text = line.substr(begin + 1, end - begin - 1);
  for (std::size_t bar; (bar = text.find("\\|")) != std::string::npos;) text.erase(bar, 1);
  return text;
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) return 2;
  std::ifstream page(words[1]);
  std::ofstream out(words[2]);
  out << "#include \"from_pytorch.h\"\n\nnamespace sluice::testing {\n\n";
  int lines = 0, number = 0;
  for (std::string line; std::getline(page, line);) {
    ++number;
    if (!line.starts_with("| `")) continue;
    const std::string ours = last_code(line);
    if (ours.empty()) {
      std::fprintf(stderr, "%s:%d: no code of Sluice\n", words[1], number);
      return 1;
    }
    ++lines;
    out << "TEST_F(FromPyTorch, Line" << number << ") {\n#line " << number << " \"docs/from-pytorch.md\"\n  " << ours
        << ";\n}\n";
  }
  out << "\n}  // namespace sluice::testing\n";
  return lines > 0 && out.good() ? 0 : 1;
}
