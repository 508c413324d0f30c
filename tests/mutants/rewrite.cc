// Writes the protocol's headers once more, with every mutant in them: which one is on is chosen at run time (chosen.h).
//
//   rewrite SOURCES BY_HAND OUT
//
// SOURCES is engine/detail; OUT gets the headers that were changed, under sluice/engine/detail/, and sites.inc, a row
// for each place that a mutant may change. The mechanical ones are found in the text: each memory order, and each call
// or operator that notifies, poisons, hands over, counts or stores. BY_HAND (by_hand.txt) has the others.
//
// Lines keep their numbers. What stands in comments and strings is left alone.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace {

const char* const kFiles[] = {"chain.h",        "record.h",      "slot.h",         "captured.h",   "core.h",
                              "core_records.h", "core_push.h",   "core_run.h",     "core_async.h", "core_lanes.h",
                              "core_drain.h",   "core_wait.h",   "core_stop.h",    "core_caps.h",  "core_replay.h",
                              "core_capture.h", "core_errors.h", "core_explain.h", "core_setup.h"};
/// Files in which only the changes made by hand apply.
const char* const kOnlyByHand[] = {"core_setup.h"};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "rewrite: %s\n", what.c_str());
  std::exit(1);
}

std::string slurp(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail("cannot read " + path.string());
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

struct Site {
  std::string kind, file, detail;
  std::size_t line;
  std::string text;  ///< the source line, or what a mutant made by hand is
};
std::vector<Site> sites;

std::string trimmed(const std::string& s) {
  const auto first = s.find_first_not_of(" \t\n"), last = s.find_last_not_of(" \t\n");
  return first == std::string::npos ? "" : s.substr(first, last - first + 1);
}

/// The text with comments and literals blanked.
std::string code_of(const std::string& text) {
  std::string code = text;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::size_t end = i;
    if (text.compare(i, 2, "//") == 0) {
      end = text.find('\n', i);
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

// ---- mutants made by hand

struct Change {
  std::string name, file, before, after;
};

/// by_hand.txt: `mutant NAME` or `harness NAME`, then `in FILE`, then the old lines, each after "- ", and the new ones,
/// each after "+ ". In those MUTANT is true where the mutant is on.
std::vector<Change> read_by_hand(const std::filesystem::path& path) {
  std::vector<Change> changes;
  std::istringstream in(slurp(path));
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (line.starts_with("mutant ")) {
      changes.push_back({line.substr(7), "", "", ""});
    } else if (line.starts_with("harness ")) {
      changes.push_back({"", "", "", ""});
    } else if (changes.empty()) {
      fail("by_hand.txt begins with neither a mutant nor a harness: " + line);
    } else if (line.starts_with("in ")) {
      // One mutant may change several places.
      if (!changes.back().file.empty()) changes.push_back({changes.back().name, "", "", ""});
      changes.back().file = line.substr(3);
    } else if (line.starts_with("- ")) {
      changes.back().before += (changes.back().before.empty() ? "" : "\n") + line.substr(2);
    } else if (line.starts_with("+ ")) {
      changes.back().after += (changes.back().after.empty() ? "" : " ") + line.substr(2);
    } else {
      fail("by_hand.txt: " + line);
    }
  }
  return changes;
}

/// Lines are compared without their indentation.
std::size_t find_lines(const std::string& text, const std::string& wanted, std::size_t* length) {
  std::string pattern;
  std::istringstream lines(wanted);
  for (std::string line; std::getline(lines, line);) {
    if (!pattern.empty()) pattern += "\\n[ \\n]*";
    for (char c : trimmed(line)) {
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != ' ' && c != '_') pattern += '\\';
      pattern += c;
    }
  }
  const std::regex expression(pattern);
  std::smatch found;
  if (!std::regex_search(text, found, expression)) return std::string::npos;
  *length = static_cast<std::size_t>(found.length());
  const auto at = static_cast<std::size_t>(found.position());
  const std::string rest = found.suffix();
  if (std::regex_search(rest, expression)) fail("stands there twice: " + wanted);
  return at;
}

// ---- mutants made mechanically

class File {
 public:
  File(std::string name, std::string original, std::string changed)
      : name_(std::move(name)), text_(std::move(changed)), code_(code_of(text_)) {
    std::istringstream in(original);
    for (std::string line; std::getline(in, line);) lines_.push_back(trimmed(line));
  }

  std::string rewritten() {
    atomics();
    calls();
    counts();
    // Inserted from the end; of those at one place the outer ones first and last.
    std::stable_sort(inserts_.begin(), inserts_.end(), [](const Insert& a, const Insert& b) { return a.at < b.at; });
    std::string out;
    std::size_t from = 0;
    for (const Insert& i : inserts_) {
      out += text_.substr(from, i.at - from) + i.what;
      from = i.at;
    }
    return out + text_.substr(from);
  }

 private:
  struct Insert {
    std::size_t at;
    std::string what;
  };

  std::size_t line_of(std::size_t at) const {
    return 1 +
           static_cast<std::size_t>(std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
  }
  std::string site(const std::string& kind, const std::string& detail, std::size_t at) {
    const std::size_t line = line_of(at);
    sites.push_back({kind, name_, detail, line, lines_.at(line - 1)});
    return std::to_string(sites.size() - 1);
  }
  void insert(std::size_t at, std::string what) { inserts_.push_back({at, std::move(what)}); }
  /// What closes comes before what opens at the same place, and inner before outer.
  void wrap(std::size_t from, std::size_t to, const std::string& before, const std::string& after) {
    insert(from, before);
    inserts_.insert(inserts_.begin(), {to, after});
  }

  std::size_t closing(std::size_t open) const {
    int depth = 0;
    for (std::size_t i = open; i < code_.size(); ++i) {
      if (std::string("([{").find(code_[i]) != std::string::npos) ++depth;
      if (std::string(")]}").find(code_[i]) != std::string::npos && --depth == 0) return i;
    }
    fail(name_ + ": a bracket that never closes");
  }
  struct Range {
    std::size_t from, to;
  };
  std::vector<Range> arguments(std::size_t open) const {
    std::vector<Range> found;
    const std::size_t close = closing(open);
    std::size_t from = open + 1;
    for (std::size_t i = from; i <= close; ++i) {
      if (i == close || code_[i] == ',') {
        std::size_t first = from, last = i;
        while (first < last && std::isspace(static_cast<unsigned char>(code_[first]))) ++first;
        while (last > first && std::isspace(static_cast<unsigned char>(code_[last - 1]))) --last;
        if (first < last) found.push_back({first, last});
        from = i + 1;
      } else if (std::string("([{").find(code_[i]) != std::string::npos) {
        i = closing(i);
      }
    }
    return found;
  }
  std::string text(const Range& r) const { return text_.substr(r.from, r.to - r.from); }

  /// Where the postfix expression begins that ends before `end`: names, ., ->, ::, brackets.
  std::size_t expression_start(std::size_t end) const {
    std::size_t i = end;
    while (i > 0) {
      const char c = code_[i - 1];
      if (std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == ':') {
        --i;
      } else if (c == '>' && i > 1 && code_[i - 2] == '-') {
        i -= 2;
      } else if (c == ')' || c == ']') {
        int depth = 0;
        std::size_t k = i;
        do {
          --k;
          depth += (code_[k] == ')' || code_[k] == ']') - (code_[k] == '(' || code_[k] == '[');
        } while (depth > 0);
        // `for (...) x.store()`: the brackets of a statement are not of the expression.
        if (c == ')' && i < end && (std::isalnum(static_cast<unsigned char>(code_[i])) || code_[i] == '_')) break;
        i = k;
      } else {
        break;
      }
    }
    return i;
  }
  /// Does a statement begin here?
  bool begins_statement(std::size_t at) const {
    std::size_t i = at;
    while (i > 0 && std::isspace(static_cast<unsigned char>(code_[i - 1]))) --i;
    return i == 0 || code_[i - 1] == ';' || code_[i - 1] == '{' || code_[i - 1] == '}' || code_[i - 1] == ')' ||
           code_[i - 1] == ':';
  }
  template <class F>
  void each(const std::string& pattern, F&& f) {
    const std::regex expression(pattern);
    for (std::sregex_iterator it(code_.begin(), code_.end(), expression), end; it != end; ++it) f(*it);
  }
  void leave_out(const std::string& kind, const std::string& what, std::size_t from, std::size_t to) {
    wrap(from, to, "(::sluice::mutants::out(" + site(kind, what, from) + ") ? void() : void(", "))");
  }

  void atomics() {
    each(
        R"((\.|->)(load|store|exchange|fetch_add|fetch_sub|fetch_or|fetch_and|compare_exchange_strong|compare_exchange_weak)\()",
        [&](const std::smatch& m) {
          const auto at = static_cast<std::size_t>(m.position());
          const std::string name = m[2];
          const std::size_t open = at + static_cast<std::size_t>(m.length()) - 1, close = closing(open);
          const std::vector<Range> given = arguments(open);
          int orders = 0;
          for (const Range& r : given) {
            if (text(r).find("hand::") != std::string::npos) return;
            if (!text(r).starts_with("std::memory_order_")) continue;
            const bool failure = orders++ > 0;
            const std::string what = failure ? "failure of " + name : name;
            wrap(r.from, r.to,
                 "::sluice::mutants::order(" + site("order", what + " " + text(r).substr(18), r.from) + ", ", ")");
          }
          if (orders == 0)
            inserts_.insert(inserts_.begin(),
                            {close, std::string(given.empty() ? "" : ", ") + "::sluice::mutants::order(" +
                                        site("order", name + " seq_cst", at) + ", std::memory_order_seq_cst)"});
          if (name.starts_with("fetch_"))
            wrap(given.front().from, given.front().to,
                 "::sluice::mutants::amount(" + site("count", name, given.front().from) + ", ", ")");
          if (name == "store") {
            const std::size_t from = expression_start(at);
            const bool mark = text_.substr(from, at - from).ends_with("mark");
            leave_out(mark ? "poison" : "store", "store", from, close + 1);
          }
        });
  }

  /// Calls that are statements. (A light fence is no instruction, and to leave it out does nothing under the explorer,
  /// which keeps to the order of the program; by_hand.txt has the looks that come too early.)
  void calls() {
    const std::pair<const char*, const char*> kinds[] = {
        {"notify", "(?:[A-Za-z_][A-Za-z_0-9.]*(?:->|\\.))*signal|wake|wake_cap_waiters|rescue|start_drainer|flush"},
        {"fence", "P::fence|P::heavy_fence"},
        {"poison", "set_poison|clear_poison|forget_poison|note_failure|stays_marked|observe"},
        {"hand-over",
         "enqueue|enqueue_all|keep_or_enqueue|ready\\.start\\.push|ready\\.finish\\.push|return_credits|retire|hold|"
         "drop"}};
    for (const auto& [kind, names] : kinds)
      each("(?:" + std::string(names) + ")\\(", [&, kind = kind](const std::smatch& m) {
        const auto at = static_cast<std::size_t>(m.position());
        if (at > 0 && (std::isalnum(static_cast<unsigned char>(code_[at - 1])) ||
                       std::string("_:.>").find(code_[at - 1]) != std::string::npos))
          return;
        if (!begins_statement(at)) return;
        const std::size_t close = closing(at + static_cast<std::size_t>(m.length()) - 1);
        if (code_[close + 1] != ';') return;
        leave_out(kind, trimmed(m.str().substr(0, m.str().size() - 1)), at, close + 1);
      });
  }

  /// ++ and -- of what outlives a statement; += and -= of members.
  void counts() {
    each(R"((\+\+|--)([A-Za-z_]\w*(?:(?:->|\.)\w+)*))", [&](const std::smatch& m) {
      const auto at = static_cast<std::size_t>(m.position());
      const std::string what = m[2];
      if (what.find('.') == std::string::npos && what.find('>') == std::string::npos && what != "retired" &&
          what != "missing")
        return;
      const bool up = m[1] == "++";
      wrap(at + 2, at + static_cast<std::size_t>(m.length()),
           "/**/::sluice::mutants::" + std::string(up ? "up(" : "down(") + site("count", m.str(), at) + ", ", ")");
      // The operator itself is in up() and down().
      text_[at] = text_[at + 1] = ' ';
    });
    each(R"((\.|->)(\w+) (\+=|-=) ([^;{}()]+);)", [&](const std::smatch& m) {
      const auto from = static_cast<std::size_t>(m.position(4));
      wrap(from, from + static_cast<std::size_t>(m.length(4)),
           "::sluice::mutants::amount(" + site("count", m[2].str() + " " + m[3].str(), from) + ", ", ")");
    });
  }

  std::string name_, text_, code_;
  std::vector<std::string> lines_;
  std::vector<Insert> inserts_;
};

std::string quoted(const std::string& s) {
  std::string out = "\"";
  for (char c : s) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

void replace_if_new(const std::filesystem::path& path, const std::string& text) {
  if (std::filesystem::exists(path) && slurp(path) == text) return;
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace

int main(int count, char** words) {
  if (count != 4) fail("rewrite SOURCES BY_HAND OUT");
  const std::filesystem::path source = words[1], out = words[3], headers = out / "sluice/engine/detail";
  std::filesystem::create_directories(headers);
  std::map<std::string, std::string> original, changed;
  for (const char* file : kFiles) changed[file] = original[file] = slurp(source / file);

  std::map<std::string, std::size_t> ids;
  for (Change& c : read_by_hand(words[2])) {
    if (!changed.count(c.file)) fail("by_hand.txt: no such file: " + c.file);
    std::string& text = changed[c.file];
    std::size_t length = 0;
    const std::size_t at = find_lines(text, c.before, &length);
    if (at == std::string::npos)
      fail("by_hand.txt, " + (c.name.empty() ? std::string("harness") : c.name) + ": not in " + c.file +
           " any more:\n" + c.before);
    const std::string old = text.substr(at, length);
    if (!c.name.empty()) {
      if (!ids.count(c.name)) {
        ids[c.name] = sites.size();
        const auto line =
            static_cast<std::size_t>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
        sites.push_back({"by hand", c.file, c.name, line + 1, c.name});
      }
      const std::regex word("\\bMUTANT\\b");
      c.after = std::regex_replace(c.after, word, "::sluice::mutants::out(" + std::to_string(ids[c.name]) + ")");
    }
    std::string replacement = c.after;
    replacement += std::string(static_cast<std::size_t>(std::count(old.begin(), old.end(), '\n')), '\n');
    text.replace(at, length, replacement);
  }

  for (const char* file : kFiles) {
    std::string text = changed[file];
    if (std::find_if(std::begin(kOnlyByHand), std::end(kOnlyByHand),
                     [&](const char* f) { return std::string(f) == file; }) == std::end(kOnlyByHand))
      text = File(file, original[file], text).rewritten();
    const std::string marker = "#pragma once\n";
    const std::size_t at = text.find(marker);
    if (at == std::string::npos) fail(std::string(file) + " has no #pragma once");
    text.insert(at,
                "#include \"chosen.h\"\n#include \"end_check.h\"\n#line " +
                    std::to_string(1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n')) +
                    " \"" + file + "\"\n");
    replace_if_new(headers / file, text);
  }
  std::string table;
  for (const Site& s : sites)
    table += "{" + quoted(s.kind) + ", " + quoted(s.file) + ", " + std::to_string(s.line) + ", " + quoted(s.detail) +
             ", " + quoted(s.text) + "},\n";
  replace_if_new(out / "sites.inc", table);
  std::printf("%zu sites\n", sites.size());
}
