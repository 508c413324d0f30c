// The partial-order reduction of the exhaustive search leaves out no behaviour: what a search without it comes to, for
// the same number of deviations, a search with it comes to as well. Behaviours are compared by the trace's hash.
#include <gtest/gtest.h>

#include <algorithm>

#include "explore_search.h"
#include "explore_small.h"
#include "slice.h"

namespace sluice::testing {
namespace {
using detail::Draw;
using detail::ExplorePolicy;
using detail::Explorer;

/// Three strands that each make four steps, drawn from a seed, on three atomics, a mutex, a queue and a parker.
bool little(std::uint64_t seed) {
  ExplorePolicy::Atomic<int> cells[3]{0, 0, 0};
  ExplorePolicy::Mutex mutex;
  ExplorePolicy::Queue<int> queue;
  ExplorePolicy::Parker parker;
  constexpr std::memory_order loads[] = {std::memory_order_relaxed, std::memory_order_acquire,
                                         std::memory_order_seq_cst};
  constexpr std::memory_order stores[] = {std::memory_order_relaxed, std::memory_order_release,
                                          std::memory_order_seq_cst};
  const auto strand = [&](std::uint64_t number) {
    Draw draw(seed * 8 + number);
    for (int i = 0; i < 4; ++i) {
      auto& cell = cells[draw.below(3)];
      const std::size_t order = draw.below(3);
      int old = 0;
      switch (draw.below(10)) {
        case 0:
        case 1:
          cell.store(static_cast<int>(number) + 1, stores[order]);
          break;
        case 2:
        case 3:
          cell.load(loads[order]);
          break;
        case 4:
          cell.fetch_add(1, std::memory_order_acq_rel);
          break;
        case 5:
          cell.compare_exchange_strong(old, 5, std::memory_order_acq_rel);
          break;
        case 6:
          ExplorePolicy::fence();
          break;
        case 7: {
          const std::lock_guard lock(mutex);
          cell.store(9, std::memory_order_relaxed);
          break;
        }
        case 8:
          draw.below(2) ? static_cast<void>(queue.enqueue(1)) : static_cast<void>(queue.try_dequeue(old));
          break;
        case 9:
          if (number == 0) {
            parker.wait(std::chrono::milliseconds(1));
          } else {
            parker.signal();
          }
          break;
      }
    }
  };
  return Explorer::get().run({[&] { strand(0); }, [&] { strand(1); }, [&] { strand(2); }});
}

template <class F>
void compare(int budget, std::uint64_t at_most, const char* what, F&& once) {
  const Search all = every_schedule(budget, once, at_most, false),
               reduced = every_schedule(budget, once, at_most, true);
  if (all.schedules == at_most) return;
  EXPECT_LE(reduced.schedules, all.schedules) << what;
  const auto lost = std::count_if(all.hashes.begin(), all.hashes.end(),
                                  [&](std::uint64_t hash) { return !reduced.hashes.contains(hash); });
  EXPECT_EQ(lost, 0) << what << ", " << budget << " deviations: of " << all.distinct << " behaviours in "
                     << all.schedules << " schedules, the reduced search has " << reduced.distinct << " in "
                     << reduced.schedules;
  EXPECT_EQ(reduced.distinct, all.distinct) << what;
}

TEST(Reduction, LosesNothingOfLittlePrograms) {
  const std::uint64_t kPrograms = slice(5, 40, 150);
  for (std::uint64_t seed = 0; seed < kPrograms; ++seed)
    for (int budget = 0; budget <= 2; ++budget)
      compare(budget, 20'000, ("program " + std::to_string(seed)).c_str(), [&] { return little(seed); });
}

TEST(Reduction, LosesNothingOfAnEngine) {
  for (const bool waits : {false, true})
    for (int budget = 0; budget <= 1; ++budget)
      compare(budget, 100'000, "engine", [&] { return run_small(waits).good(); });
}

}  // namespace
}  // namespace sluice::testing
