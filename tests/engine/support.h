// What several engine tests share: gates to hold ops at, and what a call throws.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>

#include "sluice/engine/engine.h"

namespace sluice::testing {

/// Holds bodies until opened. Blocks the thread, outside of the engine.
class Gate {
 public:
  void open() {
    open_.store(true);
    open_.notify_all();
  }
  void pass() const { open_.wait(false); }

 private:
  std::atomic<bool> open_{false};
};

/// Lets go once `n` threads have arrived: only ops that run at the same time get through.
class Meeting {
 public:
  explicit Meeting(int n) : missing_(n) {}
  void arrive_and_wait() {
    if (missing_.fetch_sub(1) == 1) missing_.notify_all();
    for (int m = missing_.load(); m > 0; m = missing_.load()) missing_.wait(m);
  }

 private:
  std::atomic<int> missing_;
};

/// Tells that something happened, and waits for it.
class Signal {
 public:
  void raise() {
    raised_.store(true);
    raised_.notify_all();
  }
  void wait() const { raised_.wait(false); }
  bool raised() const { return raised_.load(); }
  /// For the next time; nobody waits now.
  void lower() { raised_.store(false); }

 private:
  std::atomic<bool> raised_{false};
};

/// An op that completes when the test says so.
struct Held {
  Completion completion;
  Signal begun;
  auto body() {
    return [this](Completion done) {
      completion = std::move(done);
      begun.raise();
    };
  }
};

/// The root that `f` throws; null if it throws no Error.
inline ErrorRef thrown(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.root_ref();
  }
  return nullptr;
}

/// "name: message" of the Error that `f` throws, or "".
inline std::string failure(const std::function<void()>& f) {
  const ErrorRef root = thrown(f);
  return root ? root->operation + ": " + root->message : "";
}

/// An engine of the given mode, whatever the environment says, that keeps silent about errors nobody waits for.
struct QuietEngine : Engine {
  explicit QuietEngine(EngineOptions options = {}) : Engine(given(options)) {
    on_unobserved_error([](const ErrorRoot&) {});
  }
  static EngineOptions given(EngineOptions options) {
    options.mode_given = true;
    if (options.threads == 0) options.threads = 2;
    return options;
  }
};

}  // namespace sluice::testing
