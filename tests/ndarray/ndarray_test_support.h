// An engine of a test's own, and ops that can be held back.
#pragma once

#include <atomic>
#include <memory>

#include "sluice/sluice.h"

namespace sluice::testing {

/// New arrays belong to this engine while it lives.
class TestEngine {
 public:
  explicit TestEngine(int threads, int logical_cpus = 1, EngineMode mode = EngineMode::threaded)
      : engine(options(threads, logical_cpus, mode)) {
    set_default_engine(&engine);
  }
  ~TestEngine() {
    set_default_engine(nullptr);
    engine.stop();
  }
  Engine engine;

 private:
  static EngineOptions options(int threads, int logical_cpus, EngineMode mode) {
    EngineOptions o;
    o.threads = threads;
    o.logical_cpus = logical_cpus;
    o.mode = mode;
    o.mode_given = true;
    return o;
  }
};

/// Pushes an op that reads `x` and does not complete before open().
class Gate {
 public:
  explicit Gate(const NDArray& x) : open_(std::make_shared<std::atomic<bool>>(false)) {
    push_op([open = open_](ArrayContext&) { open->wait(false); }, {x}, {}, {.name = "gate"});
  }
  ~Gate() { open(); }
  void open() {
    open_->store(true);
    open_->notify_all();
  }

 private:
  std::shared_ptr<std::atomic<bool>> open_;
};

/// Pushes an op that overwrites `x` and throws.
inline void poison(const NDArray& x) {
  push_op([](ArrayContext&) { throw std::runtime_error("spoilt"); }, {}, {x}, {.name = "spoil"});
}

}  // namespace sluice::testing
