// The names of the functions that the public headers declare with arrays among their parameters, and of the layers that
// are called with them, read from their text.
#pragma once

#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "paths.h"

namespace sluice::testing {

inline std::string text_of_file(const std::filesystem::path& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string without_comments_and_directives(const std::string& text) {
  const std::string code = std::regex_replace(text, std::regex("//[^\n]*"), "");
  return std::regex_replace(code, std::regex("#[^\n]*(\\\\\n[^\n]*)*"), "");
}

/// All of nn/, whose headers are public.
inline std::vector<std::string> headers_of_nets() {
  std::vector<std::string> texts;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(SLUICE_SOURCE_DIR "/nn")) {
    if (entry.path().extension() != ".h") continue;
    texts.push_back(without_comments_and_directives(text_of_file(entry.path())));
  }
  return texts;
}

/// Those, and the headers that the other folders' umbrella headers include.
inline std::vector<std::string> public_headers() {
  std::vector<std::string> texts = headers_of_nets();
  const std::regex include("#include \"sluice/([a-z_]+)/([a-z_]+[.]h)\"");
  for (const std::string folder : {"ndarray", "operators", "autograd", "parallel"}) {
    const std::string umbrella = text_of_file(SLUICE_SOURCE_DIR "/" + folder + "/" + folder + ".h");
    for (std::sregex_iterator at(umbrella.begin(), umbrella.end(), include), end; at != end; ++at) {
      texts.push_back(
          without_comments_and_directives(text_of_file(SLUICE_SOURCE_DIR "/" + (*at)[1].str() + "/" + (*at)[2].str())));
    }
  }
  return texts;
}

/// What comes before `(` where the text between it and its `)` names arrays as parameters do.
inline std::set<std::string> functions_of_arrays() {
  const std::regex arrays(
      "(Operand|NDArray|NDArrays|\\bArrays|IndexedArray|Batch|Table|vector<NDArray>|span<const NDArray>|"
      "initializer_list<NDArray>|map<std::string, NDArray>|LstmState|RecurrentWeights|RunningStatistics)(&| )");
  std::set<std::string> names;
  for (const std::string& text : public_headers()) {
    for (std::size_t open = text.find('('); open != text.npos; open = text.find('(', open + 1)) {
      std::size_t begin = open;
      while (begin > 0 && (std::isalnum(static_cast<unsigned char>(text[begin - 1])) != 0 || text[begin - 1] == '_')) {
        --begin;
      }
      std::size_t close = open + 1;
      for (int depth = 1; close < text.size() && depth > 0; ++close)
        depth += text[close] == '(' ? 1 : text[close] == ')' ? -1 : 0;
      const std::string name = text.substr(begin, open - begin), parameters = text.substr(open, close - open);
      if (!name.empty() && std::regex_search(parameters, arrays)) names.insert(name);
    }
  }
  return names;
}

/// The structs and classes of nn/ that are called with arrays.
inline std::set<std::string> layers_of_arrays() {
  const std::regex part("\n(?:struct|class) ([A-Za-z0-9]+)|operator\\(\\)\\([^)]*NDArray&");
  std::set<std::string> names;
  for (const std::string& text : headers_of_nets()) {
    std::string name;
    for (std::sregex_iterator at(text.begin(), text.end(), part), end; at != end; ++at) {
      if ((*at)[1].matched) {
        name = (*at)[1];
      } else {
        names.insert(name);
      }
    }
  }
  return names;
}

/// The members of NDArray that take the place of their call: those that use the array.
inline std::set<std::string> members_of_arrays() {
  std::string text = text_of_file(SLUICE_SOURCE_DIR "/ndarray/nd_array.h");
  text = text.substr(text.find("class NDArray {"));
  text = text.substr(0, text.find(" public:  // for operators/ and autograd/"));
  const std::regex member("([a-z_]+)\\([^;{]*(Where where|Operand&)");
  std::set<std::string> names;
  text = std::regex_replace(text, std::regex("//[^\n]*"), "");
  for (std::sregex_iterator at(text.begin(), text.end(), member), end; at != end; ++at) names.insert((*at)[1]);
  return names;
}

}  // namespace sluice::testing
