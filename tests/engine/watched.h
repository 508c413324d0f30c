// An engine with a watchdog whose clock the test drives.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <source_location>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/engine/stream.h"
#include "support.h"

namespace sluice::testing {

using Site = std::source_location;

inline constexpr std::chrono::seconds kLimit{10};

struct Watched : QuietEngine {
  explicit Watched(const EngineOptions& options = {}) : QuietEngine(options) {}

  bool has(const std::vector<std::string>& words) const {
    std::istringstream lines(reports);
    for (std::string line; std::getline(lines, line);) {
      bool all = true;
      for (const std::string& word : words) all = all && line.find(word) != std::string::npos;
      if (all) return true;
    }
    return false;
  }

  /// Until some line of a report has all these words. Time goes on by half the limit with each look.
  void names(const std::vector<std::string>& words) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!has(words)) {
      if (std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "no line with " << ::testing::PrintToString(words) << " in:\n" << reports;
        return;
      }
      look();
      std::this_thread::yield();
    }
  }
  void look() {
    now += kLimit / 2;
    if (const std::string report = overdue(kLimit, now); !report.empty()) reports += report + "\n";
  }

  /// Until the op's explanation has this phrase: it has got to where it hangs.
  void until(const Ticket& op, const std::string& phrase) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (explain(op).find(phrase) == std::string::npos) {
      if (std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "no '" << phrase << "' in: " << explain(op);
        return;
      }
      std::this_thread::yield();
    }
  }

  std::string reports;
  std::chrono::steady_clock::time_point now{};
};

inline std::string at(const Site& site) { return "(" + to_string(site); }

/// A watched engine in which hangs are planted, and which lets all of them go when it ends. Ops are known by their
/// names; each function returns when what it plants has got to where it stays.
class Planted : public Watched {
 public:
  using Watched::Watched;
  ~Planted() { let_go(); }

  /// The variable of that name, made at its first use.
  const Variable& v(const std::string& name) {
    const auto [it, made] = variables_.try_emplace(name);
    if (made) it->second = variable(it->first.c_str());
    return it->second;
  }
  /// An op that would do nothing.
  Ticket op(const char* name, std::vector<Access> accesses, Place on = cpu(0), Site site = Site::current()) {
    sites_[name] = site;
    return push([] {}, accesses, {.on = on, .name = name}, site);
  }
  /// One whose body blocks.
  Ticket blocked(const char* name, std::vector<Access> accesses, Place on = cpu(0), Site site = Site::current()) {
    sites_[name] = site;
    Signal& begun = signal();
    const Ticket t = push([this, &begun] { begun.raise(), gate_.pass(); }, accesses, {.on = on, .name = name}, site);
    begun.wait();
    return t;
  }
  /// One whose body waits for something else of the engine's.
  Ticket waiting(const char* name, std::vector<Access> accesses, std::function<void()> body,
                 Site site = Site::current()) {
    sites_[name] = site;
    const Ticket t = push(std::move(body), accesses, {.name = name}, site);
    until(t, "blocked in its body");
    return t;
  }
  /// One whose Completion nobody answers.
  Ticket unanswered(const char* name, std::vector<Access> accesses, Site site = Site::current()) {
    sites_[name] = site;
    Held& held = held_.emplace_back();
    const Ticket t = push(held.body(), accesses, {.name = name}, site);
    held.begun.wait();
    until(t, "Completion");
    return t;
  }
  /// One whose kernel does not end.
  Ticket kernel(const char* name, std::vector<Access> accesses, int device, Site site = Site::current()) {
    sites_[name] = site;
    const auto launch = [this](Context& c) { c.stream()->launch([this] { gate_.pass(); }); };
    const Ticket t = push(launch, accesses, {.on = sim(device), .name = name}, site);
    until(t, "issued");
    return t;
  }
  /// One that is issued at once, to a device that waits for something.
  Ticket issued(const char* name, std::vector<Access> accesses, int device, Site site = Site::current()) {
    sites_[name] = site;
    Signal& begun = signal();
    const Ticket t = push([&begun] { begun.raise(); }, accesses, {.on = sim(device), .name = name}, site);
    begun.wait();
    until(t, "waits for");  // from here on it has returned
    return t;
  }
  /// A Borrow of this thread, known as `name`.
  void borrowed(const char* name, Access access, Site site = Site::current()) {
    sites_[name] = site;
    borrows_.push_back(borrow(access, site));
  }
  /// A thread outside of ops that blocks in f, which is known as `name`.
  void thread(const char* name, std::function<void(const Site&)> f, Site site = Site::current()) {
    sites_[name] = site;
    threads_.emplace_back([f = std::move(f), site] { f(site); });
  }
  Site& site(const char* name) { return sites_[name]; }
  /// A new one, which lives as long as this.
  Signal& signal() { return signals_.emplace_back(); }
  /// Opened by let_go.
  const Gate& gate() const { return gate_; }

  /// Watched::names, of a line such as "{show} ... waits for x behind a borrow [mine]": {show} stands for 'show' and
  /// its site, [mine] for a site alone, and what lies at the dots does not matter.
  void names_line(std::string_view line) {
    std::vector<std::string> words(1);
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (line.substr(i, 5) == " ... ") {
        words.emplace_back();
        i += 4;
      } else if (line[i] == '{' || line[i] == '[') {
        const std::size_t end = line.find(line[i] == '{' ? '}' : ']', i);
        const std::string name(line.substr(i + 1, end - i - 1));
        ASSERT_TRUE(sites_.contains(name)) << name;
        words.back() += (line[i] == '{' ? "'" + name + "' " : "") + at(sites_[name]);
        i = end;
      } else {
        words.back() += line[i];
      }
    }
    names(words);
  }

  void let_go() {
    borrows_.clear();
    gate_.open();
    for (Held& h : held_) h.completion.done();
    for (std::thread& t : threads_) t.join();
    threads_.clear();
  }

 private:
  std::map<std::string, Variable> variables_;  ///< their names lie in the keys
  std::map<std::string, Site> sites_;
  Gate gate_;
  std::deque<Signal> signals_;
  std::deque<Held> held_;
  std::vector<Borrow> borrows_;
  std::vector<std::thread> threads_;
};

}  // namespace sluice::testing
