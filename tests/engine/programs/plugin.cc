// A shared library with an engine of its own, which a test loads and closes while ops are in flight.
#include "sluice/engine/engine.h"

/// Pushes ops that count to the library's engine, and does not wait for them.
extern "C" void keep_busy(int n, std::atomic<int>* ran) {
  static sluice::Engine engine({.mode_given = true, .threads = 2});
  const sluice::Variable v = engine.variable();
  for (int i = 0; i < n; ++i) {
    const auto count = [ran] {
      const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(100);
      while (std::chrono::steady_clock::now() < end) {
      }
      ran->fetch_add(1);
    };
    engine.push(count, {update(v)});
    sluice::Engine::instance().push(count, {});
  }
}
