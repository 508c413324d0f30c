// Progress: how far a long run is.
//
//   nn::Progress progress("train", steps, {.samples = batch});
//   progress.show(done, "loss 1.234");
//   train ████████████················  43 %  loss 1.234, 12.4 steps/s, 397 samples/s, 0:42 left
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>

namespace sluice::nn {

struct ProgressOptions {
  double samples = 0;  ///< of a step; 0: no samples/s
  std::FILE* to = stdout;
  /// One line that is drawn anew, at most ten times a second; else a line for each tenth of the run. Empty: whether
  /// `to` is a terminal.
  std::optional<bool> terminal{};
  /// Seconds, from any time on. Empty: the system's steady clock.
  std::function<double()> now{};
};

/// For one thread at a time.
class Progress {
 public:
  /// Of so many steps, of which `done` were made before: speeds count from here on. Throws UsageError for a total below
  /// 1 and for a `done` below 0.
  Progress(std::string title, std::int64_t total, ProgressOptions options = {}, std::int64_t done = 0);
  /// Leaves a line that is drawn anew.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// So many steps are made, of all; with a text of the program's own. The last line is that of show(total).
  void show(std::int64_t done, const std::string& text = "");
  /// Leaves the line that is drawn anew, so that other text can follow.
  void leave();

 private:
  std::string rates(std::int64_t done, double seconds) const;

  std::string title_;
  std::int64_t total_, first_;
  ProgressOptions options_;
  bool terminal_, drawn_ = false;
  double begin_, last_draw_ = 0;
  std::int64_t last_tenth_;
};

}  // namespace sluice::nn
