// An engine of a test's own, and ops that can be held back.
#pragma once

#include <atomic>
#include <memory>

#include "../support/devices.h"
#include "sluice/sluice.h"

namespace sluice::testing {

/// New arrays belong to this engine while it lives.
class TestEngine : test::DefaultEngine {
 public:
  explicit TestEngine(int threads, int logical_cpus = 1, EngineMode mode = EngineMode::threaded)
      : DefaultEngine(options(threads, logical_cpus, mode)), engine(DefaultEngine::engine()) {}
  Engine& engine;

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
    if (test::on_sim()) {  // a kernel that does not end would hold up its stream
      hold_ = x.engine().borrow(read(x));
      return;
    }
    push_op([open = open_](ArrayContext&) { open->wait(false); }, {x}, {}, {.name = "gate"});
  }
  ~Gate() { open(); }
  void open() {
    hold_.release();
    open_->store(true);
    open_->notify_all();
  }

 private:
  Borrow hold_;
  std::shared_ptr<std::atomic<bool>> open_;
};

/// Pushes an op that overwrites `x` and throws.
inline void poison(const NDArray& x) {
  push_op([](ArrayContext&) { throw std::runtime_error("spoilt"); }, {}, {x}, {.name = "spoil"});
}

}  // namespace sluice::testing
