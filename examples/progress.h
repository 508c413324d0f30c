// A progress bar on a terminal, plain lines elsewhere.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

/// Shows how far a long run is, with a text beside it. On a terminal one line is drawn over and over; elsewhere there
/// is a line for each tenth.
class Progress {
 public:
  Progress(std::string title, long total) : title_(std::move(title)), total_(std::max(total, 1L)) {}

  void show(long done, const std::string& text) {
    if (terminal_) {
      constexpr int width = 28;
      const int full = static_cast<int>(done * width / total_);
      std::string bar;
      for (int i = 0; i < width; ++i) bar += i < full ? "█" : "·";
      std::printf("\r%s %s %3ld %%  %s\033[K", title_.c_str(), bar.c_str(), 100 * done / total_, text.c_str());
      if (done == total_) std::printf("\n");
      std::fflush(stdout);
    } else if (const long tenth = 10 * done / total_; tenth > last_tenth_) {
      last_tenth_ = tenth;
      std::printf("%s %3ld %%  %s\n", title_.c_str(), 100 * done / total_, text.c_str());
      std::fflush(stdout);
    }
  }
  /// Leaves the bar's line, so that other text can follow.
  void leave() {
    if (terminal_) std::printf("\n");
  }

 private:
  std::string title_;
  long total_;
  long last_tenth_ = 0;
  bool terminal_ = isatty(STDOUT_FILENO) != 0;
};
