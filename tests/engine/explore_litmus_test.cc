// What the explorer's memory permits and forbids, for the little programs that everybody knows. Each is run in every
// schedule; the outcomes that came up are compared with what C++20 says.
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <vector>

#include "explore_search.h"

namespace sluice {
namespace {
using detail::ExplorePolicy;
using detail::Explorer;
using Int = ExplorePolicy::Atomic<int>;
using Outcome = std::vector<int>;

constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr auto release = std::memory_order_release;
constexpr auto acq_rel = std::memory_order_acq_rel;
constexpr auto seq_cst = std::memory_order_seq_cst;

/// Three atomics, and what the threads saw.
struct Cells {
  Int x{0}, y{0}, z{0};
  int r1 = -1, r2 = -1, r3 = -1, r4 = -1;
};
using Body = void (*)(Cells&);

/// All values that `result` takes.
std::set<Outcome> outcomes(const std::vector<Body>& bodies, Outcome (*result)(const Cells&), int budget = 6) {
  std::set<Outcome> seen;
  const testing::Search search = testing::every_schedule(budget, [&] {
    Cells cells;
    std::vector<std::function<void()>> threads;
    for (Body body : bodies) threads.push_back([&cells, body] { body(cells); });
    EXPECT_TRUE(Explorer::get().run(threads));
    seen.insert(result(cells));
    return true;
  });
  EXPECT_FALSE(search.unsteady);
  return seen;
}

Outcome two(const Cells& c) { return {c.r1, c.r2}; }
Outcome four(const Cells& c) { return {c.r1, c.r2, c.r3, c.r4}; }

// ---- store buffering: both may miss the other's store, unless both accesses are seq_cst or a fence stands between

template <std::memory_order Store, std::memory_order Load>
std::set<Outcome> store_buffering() {
  return outcomes({[](Cells& c) { c.x.store(1, Store), c.r1 = c.y.load(Load); },
                   [](Cells& c) { c.y.store(1, Store), c.r2 = c.x.load(Load); }},
                  two);
}

const std::set<Outcome> kAllOfTwo{{0, 0}, {0, 1}, {1, 0}, {1, 1}};
const std::set<Outcome> kNotBothZero{{0, 1}, {1, 0}, {1, 1}};

TEST(Litmus, StoreBuffering) {
  EXPECT_EQ((store_buffering<relaxed, relaxed>()), kAllOfTwo);
  EXPECT_EQ((store_buffering<release, acquire>()), kAllOfTwo);
  EXPECT_EQ((store_buffering<seq_cst, acquire>()), kAllOfTwo);
  EXPECT_EQ((store_buffering<release, seq_cst>()), kAllOfTwo);
  EXPECT_EQ((store_buffering<seq_cst, seq_cst>()), kNotBothZero);
}

TEST(Litmus, StoreBufferingWithFences) {
  EXPECT_EQ(outcomes({[](Cells& c) { c.x.store(1, relaxed), ExplorePolicy::fence(), c.r1 = c.y.load(relaxed); },
                      [](Cells& c) { c.y.store(1, relaxed), ExplorePolicy::fence(), c.r2 = c.x.load(relaxed); }},
                     two),
            kNotBothZero);
  EXPECT_EQ(outcomes({[](Cells& c) { c.x.store(1, relaxed), ExplorePolicy::fence(), c.r1 = c.y.load(relaxed); },
                      [](Cells& c) { c.y.store(1, release), c.r2 = c.x.load(acquire); }},
                     two),
            kAllOfTwo)
      << "one fence is not enough";
  EXPECT_EQ(outcomes({[](Cells& c) { c.x.store(1, relaxed), ExplorePolicy::fence(), c.r1 = c.y.load(relaxed); },
                      [](Cells& c) { c.y.store(1, seq_cst), c.r2 = c.x.load(seq_cst); }},
                     two),
            kNotBothZero)
      << "a fence on one side, seq_cst accesses on the other";
}

TEST(Litmus, StoreBufferingWithReadModifyWrites) {
  EXPECT_EQ(outcomes({[](Cells& c) { c.x.exchange(1, acq_rel), c.r1 = c.y.load(acquire); },
                      [](Cells& c) { c.y.exchange(1, acq_rel), c.r2 = c.x.load(acquire); }},
                     two),
            kAllOfTwo)
      << "a locked instruction is a fence on x86 only";
  EXPECT_EQ(outcomes({[](Cells& c) { c.x.exchange(1, acq_rel), c.r1 = c.y.fetch_add(0, acq_rel); },
                      [](Cells& c) { c.y.exchange(1, acq_rel), c.r2 = c.x.fetch_add(0, acq_rel); }},
                     two),
            kNotBothZero)
      << "a read-modify-write reads the newest";
}

// ---- message passing

template <std::memory_order Store, std::memory_order Load>
std::set<Outcome> message_passing() {
  return outcomes({[](Cells& c) { c.x.store(1, relaxed), c.y.store(1, Store); },
                   [](Cells& c) { c.r1 = c.y.load(Load), c.r2 = c.x.load(relaxed); }},
                  two);
}

const std::set<Outcome> kNoMessageLost{{0, 0}, {0, 1}, {1, 1}};

TEST(Litmus, MessagePassing) {
  EXPECT_EQ((message_passing<relaxed, relaxed>()), kAllOfTwo);
  EXPECT_EQ((message_passing<release, relaxed>()), kAllOfTwo);
  EXPECT_EQ((message_passing<relaxed, acquire>()), kAllOfTwo);
  EXPECT_EQ((message_passing<release, acquire>()), kNoMessageLost);
  EXPECT_EQ((message_passing<seq_cst, seq_cst>()), kNoMessageLost);
}

TEST(Litmus, MessagePassingWithFences) {
  EXPECT_EQ(outcomes({[](Cells& c) { c.x.store(1, relaxed), ExplorePolicy::fence(), c.y.store(1, relaxed); },
                      [](Cells& c) { c.r1 = c.y.load(relaxed), ExplorePolicy::fence(), c.r2 = c.x.load(relaxed); }},
                     two),
            kNoMessageLost);
  EXPECT_EQ(outcomes({[](Cells& c) { c.x.store(1, relaxed), ExplorePolicy::fence(), c.y.store(1, relaxed); },
                      [](Cells& c) { c.r1 = c.y.load(acquire), c.r2 = c.x.load(relaxed); }},
                     two),
            kNoMessageLost)
      << "a fence releases with the stores behind it";
  EXPECT_EQ(outcomes({[](Cells& c) { c.x.store(1, relaxed), c.y.store(1, relaxed); },
                      [](Cells& c) { c.r1 = c.y.load(relaxed), ExplorePolicy::fence(), c.r2 = c.x.load(relaxed); }},
                     two),
            kAllOfTwo)
      << "nothing was released";
}

TEST(Litmus, AReadModifyWriteContinuesARelease) {
  const std::vector<Body> counted{[](Cells& c) { c.x.store(1, relaxed), c.y.store(1, release); },
                                  [](Cells& c) { c.y.fetch_add(1, relaxed); },
                                  [](Cells& c) { c.r1 = c.y.load(acquire), c.r2 = c.x.load(relaxed); }};
  EXPECT_FALSE(outcomes(counted, two).contains({2, 0}));
  EXPECT_TRUE(outcomes(counted, two).contains({1, 0})) << "the addition came first and released nothing";
  const std::vector<Body> stored{[](Cells& c) { c.x.store(1, relaxed), c.y.store(1, release), c.y.store(2, relaxed); },
                                 [](Cells& c) { c.r1 = c.y.load(acquire), c.r2 = c.x.load(relaxed); }};
  EXPECT_TRUE(outcomes(stored, two).contains({2, 0})) << "since C++20 a later store does not";
}

// ---- coherence: one order for the stores of each atomic

TEST(Litmus, ReadsOfOneAtomicDoNotGoBack) {
  const std::vector<Body> bodies{[](Cells& c) { c.x.store(1, relaxed), c.x.store(2, relaxed); },
                                 [](Cells& c) { c.r1 = c.x.load(relaxed), c.r2 = c.x.load(relaxed); }};
  EXPECT_EQ(outcomes(bodies, two), (std::set<Outcome>{{0, 0}, {0, 1}, {0, 2}, {1, 1}, {1, 2}, {2, 2}}));
  const std::vector<Body> writers{[](Cells& c) { c.x.store(1, relaxed); }, [](Cells& c) { c.x.store(2, relaxed); },
                                  [](Cells& c) { c.r1 = c.x.load(relaxed), c.r2 = c.x.load(relaxed); },
                                  [](Cells& c) { c.r3 = c.x.load(relaxed), c.r4 = c.x.load(relaxed); }};
  EXPECT_FALSE(outcomes(writers, four, 4).contains({1, 2, 2, 1})) << "two readers see one order";
}

TEST(Litmus, AThreadSeesItsOwnStore) {
  EXPECT_EQ(outcomes({[](Cells& c) { c.x.store(1, relaxed), c.r1 = c.x.load(relaxed); },
                      [](Cells& c) { c.x.store(2, relaxed), c.r2 = c.x.load(relaxed); }},
                     two),
            (std::set<Outcome>{{1, 1}, {1, 2}, {2, 2}}));
}

TEST(Litmus, WhatWasSeenBeforeAReleaseIsSeenAfterTheAcquire) {
  const std::vector<Body> bodies{[](Cells& c) { c.x.store(1, relaxed); },
                                 [](Cells& c) { c.r1 = c.x.load(relaxed), c.y.store(1, release); },
                                 [](Cells& c) { c.r2 = c.y.load(acquire), c.r3 = c.x.load(relaxed); }};
  EXPECT_FALSE(outcomes(bodies, four).contains({1, 1, 0, -1}));
  const std::vector<Body> weak{[](Cells& c) { c.x.store(1, relaxed); },
                               [](Cells& c) { c.r1 = c.x.load(relaxed), c.y.store(1, relaxed); },
                               [](Cells& c) { c.r2 = c.y.load(acquire), c.r3 = c.x.load(relaxed); }};
  EXPECT_TRUE(outcomes(weak, four).contains({1, 1, 0, -1}));
}

// ---- independent reads of independent writes

template <std::memory_order Store, std::memory_order Load, bool Fence>
bool readers_disagree() {
  const std::vector<Body> bodies{[](Cells& c) { c.x.store(1, Store); }, [](Cells& c) { c.y.store(1, Store); },
                                 [](Cells& c) {
                                   c.r1 = c.x.load(Load);
                                   if (Fence) ExplorePolicy::fence();
                                   c.r2 = c.y.load(Load);
                                 },
                                 [](Cells& c) {
                                   c.r3 = c.y.load(Load);
                                   if (Fence) ExplorePolicy::fence();
                                   c.r4 = c.x.load(Load);
                                 }};
  return outcomes(bodies, four, 4).contains({1, 0, 1, 0});
}

TEST(Litmus, IndependentReadsOfIndependentWrites) {
  EXPECT_TRUE((readers_disagree<release, acquire, false>()));
  EXPECT_TRUE((readers_disagree<relaxed, relaxed, false>()));
  EXPECT_FALSE((readers_disagree<seq_cst, seq_cst, false>()));
  EXPECT_FALSE((readers_disagree<relaxed, relaxed, true>()));
  EXPECT_TRUE((readers_disagree<seq_cst, acquire, false>()));
}

// ---- 2+2W and load buffering: C++20 permits more than the explorer shows; what it forbids must not show

TEST(Litmus, TwoWritersOfTwo) {
  const auto last = [](const Cells& c) { return Outcome{c.x.load(), c.y.load()}; };
  const std::set<Outcome> strong{{1, 2}, {2, 1}, {2, 2}};  // (1, 1) is the weak one
  EXPECT_EQ(outcomes({[](Cells& c) { c.x.store(1, seq_cst), c.y.store(2, seq_cst); },
                      [](Cells& c) { c.y.store(1, seq_cst), c.x.store(2, seq_cst); }},
                     last),
            strong);
  const std::set<Outcome> weak = outcomes({[](Cells& c) { c.x.store(1, relaxed), c.y.store(2, relaxed); },
                                           [](Cells& c) { c.y.store(1, relaxed), c.x.store(2, relaxed); }},
                                          last);
  for (const Outcome& o : strong) EXPECT_TRUE(weak.contains(o));
}

// ---- read-modify-writes

TEST(Litmus, AdditionsAreNotLost) {
  EXPECT_EQ(outcomes({[](Cells& c) { c.x.fetch_add(1, relaxed); }, [](Cells& c) { c.x.fetch_add(1, relaxed); },
                      [](Cells& c) { c.x.fetch_add(1, relaxed); }},
                     [](const Cells& c) { return Outcome{c.x.load()}; }),
            (std::set<Outcome>{{3}}));
}

TEST(Litmus, CompareExchange) {
  EXPECT_EQ(outcomes({[](Cells& c) {
                        int none = 0;
                        c.r1 = c.x.compare_exchange_strong(none, 1, relaxed);
                      },
                      [](Cells& c) {
                        int none = 0;
                        c.r2 = c.x.compare_exchange_strong(none, 1, relaxed);
                      }},
                     two),
            (std::set<Outcome>{{0, 1}, {1, 0}}))
      << "one of two";
  EXPECT_TRUE(outcomes({[](Cells& c) {
                         int none = 0;
                         c.r1 = c.x.compare_exchange_weak(none, 1, relaxed);
                       }},
                       two)
                  .contains({0, -1}))
      << "a weak one may fail for no reason";
}

// ---- mutexes, parkers, queues, threads

TEST(Litmus, AMutexHandsOverWhatItsHolderKnew) {
  static ExplorePolicy::Mutex mutex;
  const auto add = [](Cells& c) {
    mutex.lock();
    c.x.store(c.x.load(relaxed) + 1, relaxed);
    mutex.unlock();
  };
  EXPECT_EQ(outcomes({add, add, add}, [](const Cells& c) { return Outcome{c.x.load()}; }), (std::set<Outcome>{{3}}));
}

TEST(Litmus, ASignalHandsOverWhatItsSenderKnew) {
  static ExplorePolicy::Parker parker;
  EXPECT_EQ(outcomes({[](Cells& c) { c.x.store(1, relaxed), parker.signal(); },
                      [](Cells& c) { parker.wait(std::chrono::seconds(1)), c.r1 = c.x.load(relaxed); }},
                     two),
            (std::set<Outcome>{{1, -1}}));
}

TEST(Litmus, AQueueMayLookEmptyUnlessFencesForbidIt) {
  using Queue = ExplorePolicy::Queue<int>;
  static Queue* queue;
  const auto run = [](bool fence) {
    static bool fenced;
    fenced = fence;
    std::set<Outcome> seen;
    testing::every_schedule(6, [&] {
      Queue fresh;
      queue = &fresh;
      Cells c;
      EXPECT_TRUE(Explorer::get().run({[&] {
                                         queue->enqueue(7);
                                         if (fenced) ExplorePolicy::fence();
                                         c.r1 = c.x.load(relaxed);
                                       },
                                       [&] {
                                         c.x.store(1, relaxed);
                                         if (fenced) ExplorePolicy::fence();
                                         int got = 0;
                                         queue->try_dequeue(got);
                                         c.r2 = got;
                                       }}));
      seen.insert(two(c));
      return true;
    });
    return seen;
  };
  EXPECT_TRUE(run(false).contains({0, 0}));
  EXPECT_EQ(run(true), (std::set<Outcome>{{0, 7}, {1, 0}, {1, 7}}));
}

TEST(Litmus, AQueueIsInOrderForEachProducerOnly) {
  std::set<Outcome> seen;
  testing::every_schedule(4, [&] {
    ExplorePolicy::Queue<int> queue;
    ExplorePolicy::Queue<int>::Producer one(queue);
    int out[4];
    EXPECT_TRUE(
        Explorer::get().run({[&] { queue.enqueue(one, 1), queue.enqueue(one, 2); }, [&] { queue.enqueue(3); }}));
    EXPECT_TRUE(Explorer::get().run({[&] { EXPECT_EQ(queue.try_dequeue_bulk(out, 4), 3u); }}));
    seen.insert({out[0], out[1], out[2]});
    return true;
  });
  EXPECT_EQ(seen, (std::set<Outcome>{{1, 2, 3}, {1, 3, 2}, {3, 1, 2}}));
}

TEST(Litmus, AThreadBeginsWithWhatItsStarterKnew) {
  EXPECT_EQ(outcomes({[](Cells& c) {
                       c.x.store(1, relaxed);
                       ExplorePolicy::start_substitute([&c] { c.r1 = c.x.load(relaxed); });
                     }},
                     two),
            (std::set<Outcome>{{1, -1}}));
}

// ---- spin loops

TEST(Litmus, ASpinLoopIsOneStep) {
  std::uint64_t schedules = 0;
  const testing::Search search = testing::every_schedule(3, [&] {
    Cells c;
    EXPECT_TRUE(Explorer::get().run({[&] { c.x.store(1, relaxed), c.y.store(1, release); },
                                     [&] {
                                       while (c.y.load(acquire) == 0) ExplorePolicy::pause();
                                       c.r1 = c.x.load(relaxed);
                                     }}));
    EXPECT_EQ(c.r1, 1);
    ++schedules;
    return true;
  });
  EXPECT_FALSE(search.unsteady);
  EXPECT_LT(schedules, 60u);
}

}  // namespace
}  // namespace sluice
