// Writes the protocol's headers once more, with every mutant in them: which one is on is chosen at run time (chosen.h).
//
//   rewrite SOURCES BY_HAND OUT      or, to see whether all that is named is there:
//   rewrite SOURCES BY_HAND --check EQUIVALENT
//
// SOURCES is engine/detail; OUT gets the headers that were changed, under sluice/engine/detail/, and sites.inc, a row
// for each place that a mutant may change. The mechanical ones are found in the text: each memory order, and each call
// or operator that notifies, poisons, hands over, counts or stores. BY_HAND (by_hand.txt) has the others. What BY_HAND
// names and is not there becomes a row too, which mutants_main tells at its end.
//
// A place is named by its file, its function and what stands there: "chain.h take: tail.load acquire". The second such
// place of a function has " #2" behind it. Lines keep their numbers. What stands in comments and strings is left alone.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "sites.h"
#include "source.h"

namespace sluice::mutants {
namespace {

/// The protocol's headers: these, and all that begin with "core".
const std::set<std::string> kOtherFiles = {"chain.h", "record.h", "slot.h", "captured.h", "device_queue.h"};
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

std::vector<Site> sites;
std::map<std::string, int> counted;  ///< sites by file, function and what stands there

std::size_t add_site(Site site) {
  // Of an order without the order, which a weaker one of the same operation may have too.
  const std::string what = site.kind == "order" ? site.detail.substr(0, site.detail.rfind(' ')) : site.detail;
  site.nth = ++counted[site.file + " " + site.function + " " + site.kind + " " + what];
  sites.push_back(std::move(site));
  return sites.size() - 1;
}

int line_of(const std::string& text, std::size_t at) {
  return 1 + static_cast<int>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
}

// ---- what is changed by hand

struct Edit {
  std::string mutant;  ///< its name; empty: for the judge's use
  std::string file, function, how, words, code;
};

/// by_hand.txt, whose first lines say how it is written.
std::vector<Edit> read_by_hand(const std::filesystem::path& path) {
  std::vector<Edit> edits;
  Edit now;
  std::istringstream in(slurp(path));
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::string first = line.substr(0, line.find(' ')), rest = trimmed(line.substr(first.size()));
    if (first == "mutant" || first == "harness") {
      now = {};
      if (first == "mutant") now.mutant = rest;
    } else if (first == "in") {
      now.file = rest.substr(0, rest.find(' '));
      now.function = trimmed(rest.substr(now.file.size()));
    } else if (first == "replace" || first == "before" || first == "after") {
      now.how = first, now.words = rest, now.code.clear();
      edits.push_back(now);
    } else if (first == "+" && !edits.empty()) {
      edits.back().code += (edits.back().code.empty() ? "" : " ") + rest;
    } else {
      fail("by_hand.txt: " + line);
    }
  }
  return edits;
}

/// Makes the edit in the text of its file; what it names and is not there becomes a site of its own.
void make(const Edit& e, std::string& text, std::map<std::string, std::size_t>& ids) {
  const std::string code = code_of(text);
  const Range place = find_words(code, e.function, e.words);
  if (place.found != 1) {
    add_site({"missing", e.file, e.function,
              "by_hand.txt, " + (e.mutant.empty() ? "harness" : e.mutant) + ": " + e.words +
                  (place.found ? " is there " + std::to_string(place.found) + " times" : " is not there")});
    return;
  }
  std::string added = e.code;
  if (!e.mutant.empty()) {
    if (!ids.count(e.mutant))
      ids[e.mutant] = add_site({"by hand", e.file, e.function, e.mutant, 1, line_of(text, place.from)});
    added = std::regex_replace(added, std::regex("\\bMUTANT\\b"),
                               "::sluice::mutants::out(" + std::to_string(ids[e.mutant]) + ")");
  }
  const Range whole = e.how == "replace" ? place : statement_around(code, place);
  if (e.how == "before") {
    text.insert(whole.from, added + " ");
  } else if (e.how == "after") {
    text.insert(whole.to, " " + added);
  } else {
    const auto lines = line_of(text, whole.to) - line_of(text, whole.from);
    text.replace(whole.from, whole.to - whole.from, added + std::string(static_cast<std::size_t>(lines), '\n'));
  }
}

// ---- mutants made mechanically

class File {
 public:
  File(std::string name, std::string text)
      : name_(std::move(name)), text_(std::move(text)), code_(code_of(text_)), functions_(functions_of(code_)) {}

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

  std::string site(const std::string& kind, const std::string& detail, std::size_t at) {
    std::string function;
    for (const Function& f : functions_)
      if (f.from <= at && at < f.to) function = f.name;
    return std::to_string(add_site({kind, name_, function, detail, 1, line_of(text_, at)}));
  }
  void insert(std::size_t at, std::string what) { inserts_.push_back({at, std::move(what)}); }
  /// What closes comes before what opens at the same place, and inner before outer.
  void wrap(std::size_t from, std::size_t to, const std::string& before, const std::string& after) {
    insert(from, before);
    inserts_.insert(inserts_.begin(), {to, after});
  }

  std::size_t closing(std::size_t open) const {
    const std::size_t close = mutants::closing(code_, open);
    if (close == std::string::npos) fail(name_ + ": a bracket that never closes");
    return close;
  }
  std::vector<Range> arguments(std::size_t open) const {
    std::vector<Range> found;
    const std::size_t close = closing(open);
    std::size_t from = open + 1;
    for (std::size_t i = from; i <= close; ++i) {
      if (i == close || code_[i] == ',') {
        std::size_t first = from, last = i;
        while (first < last && std::isspace(static_cast<unsigned char>(code_[first]))) ++first;
        while (last > first && std::isspace(static_cast<unsigned char>(code_[last - 1]))) --last;
        if (first < last) found.push_back({first, last, 1});
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
  /// The name of what an operation is called on, which ends before `end`: "drainers" of lane.drainers[i].
  std::string object_before(std::size_t end) const {
    int depth = 0;
    while (end > 0 && (depth > 0 || code_[end - 1] == ')' || code_[end - 1] == ']')) {
      --end;
      depth += (code_[end] == ')' || code_[end] == ']') - (code_[end] == '(' || code_[end] == '[');
    }
    std::size_t start = end;
    while (start > 0 && of_word(code_[start - 1])) --start;
    return code_.substr(start, end - start);
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
          const std::string name = m[2], whole = object_before(at) + "." + name;
          const std::size_t open = at + static_cast<std::size_t>(m.length()) - 1, close = closing(open);
          const std::vector<Range> given = arguments(open);
          int orders = 0;
          for (const Range& r : given) {
            if (text(r).find("hand::") != std::string::npos) return;
            if (!text(r).starts_with("std::memory_order_")) continue;
            const bool failure = orders++ > 0;
            const std::string what = failure ? "failure of " + whole : whole;
            wrap(r.from, r.to,
                 "::sluice::mutants::order(" + site("order", what + " " + text(r).substr(18), r.from) + ", ", ")");
          }
          if (orders == 0)
            inserts_.insert(inserts_.begin(),
                            {close, std::string(given.empty() ? "" : ", ") + "::sluice::mutants::order(" +
                                        site("order", whole + " seq_cst", at) + ", std::memory_order_seq_cst)"});
          if (name.starts_with("fetch_"))
            wrap(given.front().from, given.front().to,
                 "::sluice::mutants::amount(" + site("count", whole, given.front().from) + ", ", ")");
          if (name == "store") {
            const std::size_t from = expression_start(at);
            const bool mark = text_.substr(from, at - from).ends_with("mark");
            leave_out(mark ? "poison" : "store", whole, from, close + 1);
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
    for (const auto& [kind_of, names] : kinds)
      each("(?:" + std::string(names) + ")\\(", [&, kind = kind_of](const std::smatch& m) {
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
  std::vector<Function> functions_;
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

/// The headers, changed; fills `sites`.
std::map<std::string, std::string> rewrite(const std::filesystem::path& source, const std::filesystem::path& by_hand) {
  std::map<std::string, std::string> changed;
  for (const auto& entry : std::filesystem::directory_iterator(source)) {
    const std::string file = entry.path().filename();
    if (kOtherFiles.count(file) || (file.starts_with("core") && file.ends_with(".h"))) changed[file] = slurp(entry);
  }
  std::map<std::string, std::size_t> ids;
  for (const Edit& e : read_by_hand(by_hand)) {
    if (changed.count(e.file)) {
      make(e, changed[e.file], ids);
    } else {
      add_site({"missing", e.file, e.function, "by_hand.txt names a file that is not there"});
    }
  }
  for (auto& [file, text] : changed) {
    if (std::find_if(std::begin(kOnlyByHand), std::end(kOnlyByHand),
                     [&](const char* f) { return std::string(f) == file; }) == std::end(kOnlyByHand))
      text = File(file, text).rewritten();
    const std::string marker = "#pragma once\n";
    const std::size_t at = text.find(marker);
    if (at == std::string::npos) fail(file + " has no #pragma once");
    text.insert(at, "#include \"chosen.h\"\n#include \"end_check.h\"\n#line " + std::to_string(line_of(text, at)) +
                        " \"" + file + "\"\n");
  }
  return changed;
}

/// All that the two lists name is there. (Whether an equivalent is needed, a whole run of mutants_main tells.)
int check(const std::filesystem::path& equivalents) {
  int wrong = 0;
  std::set<std::string> names;
  for (const Site& s : sites) {
    if (s.kind == "missing") std::printf("%s\n", s.named(s.detail).c_str()), ++wrong;
    std::vector<Change> left = changes_of(s);
    if (s.kind == "order" && !left.empty()) names.insert(s.named(to_order(s, written_at(s), Order::relaxed).what));
    while (!left.empty()) {
      const Change c = left.back();
      left.pop_back();
      names.insert(s.named(c.what));
      if (!c.order) continue;
      for (Change& weaker : changes_of(s, &c.weaker)) left.push_back(std::move(weaker));
    }
  }
  for (const auto& [name, argument] : read_equivalents(equivalents)) {
    if (names.count(name) && !argument.empty()) continue;
    std::printf("equivalent.txt %s: %s\n", argument.empty() ? "has no argument for" : "names what is not there",
                name.c_str());
    ++wrong;
  }
  std::printf("%zu places to change, %d names of none\n", sites.size(), wrong);
  return wrong ? 1 : 0;
}

}  // namespace
}  // namespace sluice::mutants

int main(int count, char** words) {
  using namespace sluice::mutants;
  const bool only_check = count == 5 && std::string(words[3]) == "--check";
  if (count != 4 && !only_check) fail("rewrite SOURCES BY_HAND OUT, or rewrite SOURCES BY_HAND --check EQUIVALENT");
  const std::map<std::string, std::string> changed = rewrite(words[1], words[2]);
  if (only_check) return check(words[4]);
  const std::filesystem::path out = words[3], headers = out / "sluice/engine/detail";
  std::filesystem::create_directories(headers);
  for (const auto& [file, text] : changed) replace_if_new(headers / file, text);
  std::string table;
  for (const Site& s : sites)
    table += "{" + quoted(s.kind) + ", " + quoted(s.file) + ", " + quoted(s.function) + ", " + quoted(s.detail) + ", " +
             std::to_string(s.nth) + ", " + std::to_string(s.line) + "},\n";
  replace_if_new(out / "sites.inc", table);
  std::printf("%zu sites\n", sites.size());
}
