// An engine with a watchdog whose clock the test drives.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <source_location>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "sluice/engine/engine.h"
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

}  // namespace sluice::testing
