// How fast the file of a checkpoint is written. Internal to nn/files/.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace sluice::nn::detail {

/// What a Pace does; a test may change it before there is one.
struct PaceRule {
  int rests = 6;                                                      ///< times the processor's time that a part took
  std::chrono::nanoseconds longest = std::chrono::milliseconds(100);  ///< of one rest
};
PaceRule& pace_rule();

/// Spreads the work of writing over more steps: after each part, as long as nobody waits for the file, a rest of a few
/// times the processor's time that it took. A step is then slower by a small share while the file is written, and it is
/// written later.
class Pace {
 public:
  /// Of the thread that writes. Blocks for the rest.
  void rest();
  /// Somebody waits from now on: a rest ends, and there is no other. Thread-safe.
  void hurry();

 private:
  std::mutex mutex_;
  std::condition_variable hurried_;
  bool hurry_ = false;
  std::chrono::nanoseconds worked_{};
};

/// If the calling thread is the main one: when it ends, files that are still written take no rest after the one that
/// they are in. To be called after the first use of an engine, whose wait at the end of that thread is then later.
void hurry_at_exit();

}  // namespace sluice::nn::detail
