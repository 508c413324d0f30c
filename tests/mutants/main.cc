// Runs the mutants of the protocol (tests/mutations.sh): one process each, judged by the schedule explorer.
//
//   mutants_main [--quick | --few] [--slice K/N] [--seconds S] [--jobs N] [--only TEXT] [--with-equivalents] [--list]
//   mutants_main --unmutated S [--family NAME]   the judge on the protocol as it is, which must find nothing
//   mutants_main --family NAME --replay SEED     one schedule of a program of the judge's own, step by step
//
// A mutant is caught by a mismatch, a race, a hang, a crash or a lost wake-up. equivalent.txt lists those that change
// nothing, with the argument. The last line is `caught N of N`; the exit status is 0 if those are the same number and
// the list of equivalents is right.
#include <malloc.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "chosen.h"
#include "judge.h"
#include "sites.h"

namespace sluice::mutants {
namespace {

const std::vector<Site> kSites = {
#include "sites.inc"
};

struct Mutant {
  std::size_t site;
  Change change;
  const Site& place() const { return kSites[site]; }
  std::string name() const { return place().named(change.what); }
};

std::vector<Mutant> mutants_of(std::size_t site, const Order* from = nullptr) {
  std::vector<Mutant> made;
  for (Change& c : changes_of(kSites[site], from)) made.push_back({site, std::move(c)});
  return made;
}

struct Equivalents {
  std::map<std::string, std::string> arguments;  ///< by name
  std::set<std::string> used;

  /// One for `-> relaxed`, from what is written, says it of all orders between: then the mutant becomes that.
  const std::string* find(Mutant& m) {
    auto it = arguments.end();
    if (m.change.order) {
      Change relaxed = to_order(m.place(), written_at(m.place()), Order::relaxed);
      it = arguments.find(m.place().named(relaxed.what));
      if (it != arguments.end()) m.change = std::move(relaxed);
    }
    if (it == arguments.end()) it = arguments.find(m.name());
    if (it == arguments.end()) return nullptr;
    used.insert(it->first);
    return &it->second;
  }
};

// ---- one mutant, one process

int report_to = -1;  ///< the child's end of the pipe

void report(const char* outcome, const char* family, const char* seed, const char* what, double seconds) {
  char line[700];
  const int size = std::snprintf(line, sizeof(line), "%s\t%s\t%s\t%s\t%.1f\n", outcome, family, seed, what, seconds);
  [[maybe_unused]] const ssize_t n =
      ::write(report_to, line, static_cast<std::size_t>(std::min<int>(size, sizeof(line) - 1)));
}

void broke_off(int signal) {
  static std::uint64_t seen = ~std::uint64_t{0};
  if (signal == SIGALRM && running.schedules != seen) {  // it goes on; or the whole process was stopped for a while
    seen = running.schedules;
    ::alarm(3);
    return;
  }
  const char* const what = signal == SIGALRM   ? "blocked outside of the explorer"
                           : signal == SIGABRT ? "aborted"
                                               : "crashed";
  report("caught", running.what, "-", what, cpu_seconds());
  std::_Exit(0);
}

void handle_signals() {
  static char stack[1 << 16];  // a fiber's may have overflowed
  stack_t other{};
  other.ss_sp = stack;
  other.ss_size = sizeof(stack);
  ::sigaltstack(&other, nullptr);
  struct sigaction action {};
  action.sa_handler = broke_off;
  action.sa_flags = SA_ONSTACK | SA_NODEFER;
  for (int signal : {SIGALRM, SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) ::sigaction(signal, &action, nullptr);
  ::alarm(3);
}

[[noreturn]] void run_child(const Mutant& m, double seconds) {
  if (!std::freopen("/dev/null", "w", stderr)) std::_Exit(1);
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  handle_signals();
  static const std::string name = m.name();
  chosen = static_cast<int>(m.site);
  chosen_name = name.c_str();
  weaker = m.change.weaker;
  const Verdict v = judge(seconds);
  report(!v.what.empty() ? "caught"
         : v.reached     ? "survived"
                         : "unreached",
         v.family.c_str(), v.seed.c_str(), v.what.c_str(), v.seconds);
  std::_Exit(0);
}

struct Child {
  Mutant mutant;
  pid_t pid;
  int pipe;
};

Child start(const Mutant& m, double seconds) {
  int ends[2];
  if (::pipe(ends) != 0) std::abort();
  std::fflush(stdout);
  const pid_t pid = ::fork();
  if (pid < 0) std::abort();
  if (pid == 0) {
    ::close(ends[0]);
    report_to = ends[1];
    run_child(m, seconds);
  }
  ::close(ends[1]);
  return {m, pid, ends[0]};
}

struct Outcome {
  Mutant mutant;
  std::string outcome, family, seed, what;
  double seconds = 0;
};

Outcome read_outcome(const Child& c) {
  std::string line;
  char part[512];
  for (ssize_t n; (n = ::read(c.pipe, part, sizeof(part))) > 0;) line.append(part, static_cast<std::size_t>(n));
  ::close(c.pipe);
  Outcome o{c.mutant, "caught", "?", "-", "died without a word", 0};
  std::vector<std::string> fields;
  std::istringstream in(line.substr(0, line.find('\n')));
  for (std::string field; std::getline(in, field, '\t');) fields.push_back(field);
  if (fields.size() == 5)
    o.outcome = fields[0], o.family = fields[1], o.seed = fields[2], o.what = fields[3],
    o.seconds = std::atof(fields[4].c_str());
  return o;
}

// ---- all of them

struct Options {
  bool quick = false, few = false, list = false, with_equivalents = false;
  double seconds = 60, unmutated = 0;
  std::uint64_t replay = 0;
  int jobs = 1;
  std::size_t slice = 0, slices = 1;  ///< every slices-th mutant from that of this place on
  std::string only, family, equivalents = SLUICE_SOURCE_DIR "/tests/mutants/equivalent.txt";
};

std::vector<Mutant> all_mutants(const Options& options) {
  std::vector<Mutant> all;
  for (std::size_t s = 0; s < kSites.size(); ++s)
    for (Mutant& m : mutants_of(s))
      if (options.only.empty() || (m.name() + " " + m.place().kind).find(options.only) != std::string::npos)
        all.push_back(std::move(m));
  return all;
}

/// Some of each kind in each file; or one of each kind.
std::vector<Mutant> quick_choice(const std::vector<Mutant>& all, bool few) {
  std::map<std::string, int> count;
  std::vector<Mutant> some;
  for (const Mutant& m : all) {
    const Site& s = m.place();
    const int before = count[few ? s.kind : s.kind + s.file]++;
    if (before == 0) some.push_back(m);
  }
  return some;
}

int unmutated(double seconds, const std::string& family) {
  if (family.empty()) {
    int bad = 0;
    for (const Family& f : make_families()) {
      std::fflush(stdout);
      const pid_t pid = ::fork();
      if (pid == 0) {
        if (!std::freopen("/dev/null", "w", stderr)) std::_Exit(1);
        const int result = unmutated(seconds, f.name);
        std::fflush(stdout);
        std::_Exit(result);
      }
      int status = 0;
      ::waitpid(pid, &status, 0);
      bad += status != 0;
    }
    return bad;
  }
  handle_signals();
  report_to = 1;
  const Verdict v = judge(seconds, family);
  std::printf("%s: %llu schedules, %.0f s: %s\n", family.c_str(), static_cast<unsigned long long>(v.schedules),
              v.seconds, v.what.empty() ? "nothing found" : (v.family + " " + v.seed + ": " + v.what).c_str());
  return v.what.empty() ? 0 : 1;
}

int run(const Options& options) {
  Equivalents equivalents;
  equivalents.arguments = read_equivalents(options.equivalents);
  std::vector<Mutant> all = all_mutants(options);
  // One that is equivalent says nothing of the next weaker order.
  std::vector<std::pair<Mutant, std::string>> argued;
  std::vector<Mutant> judged;
  const auto sort_out = [&](Mutant m, auto&& again) -> void {
    const std::string* const argument = equivalents.find(m);
    if (!argument || options.with_equivalents) judged.push_back(m);
    if (!argument) return;
    argued.emplace_back(m, *argument);
    if (!m.change.order) return;
    for (const Mutant& weaker : mutants_of(m.site, &m.change.weaker)) again(weaker, again);
  };
  for (const Mutant& m : all) sort_out(m, sort_out);
  {  // two ways down may lead to one order
    std::set<std::pair<std::size_t, std::string>> seen;
    std::erase_if(judged, [&](const Mutant& m) { return !seen.insert({m.site, m.change.what}).second; });
    seen.clear();
    std::erase_if(argued, [&](const auto& a) { return !seen.insert({a.first.site, a.first.change.what}).second; });
  }
  if (options.quick || options.few) judged = quick_choice(judged, options.few);
  if (options.slices > 1) {
    std::size_t at = 0;
    std::erase_if(judged, [&](const Mutant&) { return at++ % options.slices != options.slice; });
  }
  if (options.list) {
    for (const Mutant& m : judged)
      std::printf("%-80s %-10s line %d\n", m.name().c_str(), m.place().kind.c_str(), m.place().line);
    std::printf("%zu mutants, %zu equivalents\n", judged.size(), argued.size());
    return 0;
  }

  std::printf("%-80s %-10s caught by\n", "mutant", "kind");
  std::deque<Mutant> rest(judged.begin(), judged.end());
  std::vector<Child> children;
  std::vector<Outcome> survivors;
  std::map<std::string, std::pair<int, int>> by_kind;
  std::size_t caught = 0, done = 0;
  while (!rest.empty() || !children.empty()) {
    while (!rest.empty() && children.size() < static_cast<std::size_t>(options.jobs)) {
      children.push_back(start(rest.front(), options.seconds));
      rest.pop_front();
    }
    int status = 0;
    const pid_t pid = ::wait(&status);
    const auto it = std::find_if(children.begin(), children.end(), [&](const Child& c) { return c.pid == pid; });
    if (it == children.end()) continue;
    const Outcome o = read_outcome(*it);
    children.erase(it);
    ++done;
    auto& [kind_caught, kind_total] = by_kind[o.mutant.place().kind];
    ++kind_total;
    if (o.outcome == "caught") {
      ++caught, ++kind_caught;
      std::printf("%-80s %-10s %s %s, %.1f s: %s\n", o.mutant.name().c_str(), o.mutant.place().kind.c_str(),
                  o.family.c_str(), o.seed.c_str(), o.seconds, o.what.c_str());
    } else {
      survivors.push_back(o);
      std::printf("%-80s %-10s %s\n", o.mutant.name().c_str(), o.mutant.place().kind.c_str(),
                  o.outcome == "survived" ? "SURVIVES" : "NOT REACHED");
    }
    if (done % 25 == 0) std::printf("-- %zu of %zu judged, %zu caught\n", done, judged.size(), caught);
    std::fflush(stdout);
  }
  if (!options.quick && !options.few) {
    std::printf("\nequivalents\n");
    for (const auto& [m, argument] : argued) std::printf("%-80s %s\n", m.name().c_str(), argument.c_str());
  }
  std::printf("\n");
  for (const auto& [kind, n] : by_kind) std::printf("%-10s caught %d of %d\n", kind.c_str(), n.first, n.second);
  bool good = caught == judged.size();
  for (const auto& [k, argument] : equivalents.arguments) {
    if (!options.only.empty() || (equivalents.used.count(k) && !argument.empty())) continue;
    std::printf("equivalent.txt %s: %s\n", argument.empty() ? "has no argument for" : "names what is not there",
                k.c_str());
    good = false;
  }
  for (const Site& site : kSites)
    if (site.kind == "missing") {
      std::printf("%s\n", site.named(site.detail).c_str());
      good = false;
    }
  for (const Outcome& o : survivors)
    std::printf("%s: %s:%d, %s\n", o.outcome.c_str(), o.mutant.place().file.c_str(), o.mutant.place().line,
                o.mutant.name().c_str());
  const auto unseen =
      std::count_if(argued.begin(), argued.end(), [](const auto& a) { return a.second.starts_with("Not seen"); });
  std::printf("equivalents %zu, and %td that this judge cannot see (other tests do)\n",
              argued.size() - static_cast<std::size_t>(unseen), unseen);
  std::printf("caught %zu of %zu\n", caught, judged.size());
  return good ? 0 : 1;
}

}  // namespace
}  // namespace sluice::mutants

int main(int count, char** words) {
  using namespace sluice::mutants;
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto value = [&] { return i + 1 < count ? words[++i] : ""; };
    if (word == "--quick") {
      options.quick = true;
    } else if (word == "--few") {
      options.few = true;
    } else if (word == "--list") {
      options.list = true;
    } else if (word == "--slice") {
      unsigned k = 0, n = 0;
      if (std::sscanf(value(), "%u/%u", &k, &n) != 2 || k < 1 || k > n) {
        std::fprintf(stderr, "--slice wants K/N\n");
        return 2;
      }
      options.slice = k - 1;
      options.slices = n;
    } else if (word == "--seconds") {
      options.seconds = std::atof(value());
    } else if (word == "--jobs") {
      options.jobs = std::max(1, std::atoi(value()));
    } else if (word == "--only") {
      options.only = value();
    } else if (word == "--family") {
      options.family = value();
    } else if (word == "--replay") {
      options.replay = std::strtoull(value(), nullptr, 10);
    } else if (word == "--with-equivalents") {
      options.with_equivalents = true;
    } else if (word == "--unmutated") {
      options.unmutated = std::atof(value());
    } else {
      std::fprintf(stderr, "what is %s?\n", word.c_str());
      return 2;
    }
  }
  if (options.replay) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);  // it may crash
    sluice::detail::Explorer::get().print_to(stdout);
    const std::string what = replay_one(options.family, options.replay);
    std::printf("%s\n", what.empty() ? "good" : what.c_str());
    std::fflush(stdout);
    std::_Exit(0);
  }
  if (kSites.size() > kMostSites) {
    std::fprintf(stderr, "more sites than kMostSites\n");
    return 2;
  }
  const int result = options.unmutated > 0 ? unmutated(options.unmutated, options.family) : run(options);
  std::fflush(stdout);
  std::_Exit(result);
}
