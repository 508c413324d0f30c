// The program whose every schedule is explored: two pushers, two workers, three ops over two variables; and with a
// wait.
#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "sluice/engine/explore/explore.h"

namespace sluice::testing {

struct SmallResult {
  bool hang = false;
  std::string mismatch;
  bool good() const { return !hang && mismatch.empty(); }
};

/// Values are relaxed atomics of the explorer: a body without a happens-before edge from the one before may see them
/// old. No order is logged (the log would put a lock around each push): the result must be that of one of the three
/// orders that the pushers' own orders allow, and the bodies must not overlap.
inline SmallResult run_small(bool waits) {
  using Value = detail::ExplorePolicy::Atomic<int>;
  constexpr auto relaxed = std::memory_order_relaxed;
  constexpr int kX = 3, kY = 5;
  static constexpr std::array<void (*)(int&, int&), 3> steps{[](int& x, int& y) { x = x * 10 + y; },
                                                             [](int& x, int& y) { y = y * 10 + x; },
                                                             [](int& x, int& y) { x += 1, y += 2; }};
  SmallResult result;
  Value values[2]{kX, kY};
  Value third_done{0};
  int inside = 0;
  bool overlap = false, early = false;
  const auto body = [&](std::size_t step) {
    overlap |= inside++ != 0;
    int x = values[0].load(relaxed), y = values[1].load(relaxed);
    steps[step](x, y);
    if (step != 1) values[0].store(x, relaxed);
    if (step != 0) values[1].store(y, relaxed);
    if (step == 2) third_done.store(1, relaxed);
    --inside;
  };
  auto engine = std::make_unique<Engine>(EngineOptions{.mode = EngineMode::explore, .mode_given = true, .threads = 2});
  Variable a = engine->variable("a"), b = engine->variable("b");
  result.hang = !detail::Explorer::get().run({[&] {
                                                engine->push([&] { body(0); }, {update(a), read(b)});
                                                engine->push([&] { body(1); }, {read(a), update(b)});
                                              },
                                              [&] {
                                                engine->push([&] { body(2); }, {update(b), update(a)});
                                                if (!waits) return;
                                                engine->wait(a);
                                                early = third_done.load(relaxed) == 0;
                                              }});
  if (result.hang) {
    static_cast<void>(engine.release());
    return result;
  }
  const std::pair<int, int> got{values[0].load(), values[1].load()};
  bool found = false;
  for (const auto& order : {std::array<std::size_t, 3>{0, 1, 2}, {0, 2, 1}, {2, 0, 1}}) {
    int x = kX, y = kY;
    for (std::size_t step : order) steps[step](x, y);
    found |= got == std::pair(x, y);
  }
  if (!found) result.mismatch = "values that no order of the pushes gives";
  if (overlap) result.mismatch = "two bodies that conflict ran at once";
  if (early) result.mismatch = "a wait ended before the op that it follows";
  if (detail::Explorer::get().race()) result.mismatch = std::string("a race on ") + detail::Explorer::get().race();
  if (detail::Explorer::get().stalls()) result.mismatch = "a lost wake-up: all stood until a time limit passed";
  return result;
}

}  // namespace sluice::testing
