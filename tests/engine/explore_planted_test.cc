// Bugs planted on purpose, each of a kind that a scheduler like ours could have: both searches must find each, with
// something that replays it, and must find nothing in the same program put right.
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "explore_search.h"

namespace sluice {
namespace {
using detail::ExplorePolicy;
using detail::Explorer;
template <class T>
using Atomic = ExplorePolicy::Atomic<T>;

constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr auto release = std::memory_order_release;
constexpr auto acq_rel = std::memory_order_acq_rel;
constexpr auto seq_cst = std::memory_order_seq_cst;

/// Runs the bodies; good if they end without a lost wake-up.
bool all_end(std::vector<std::function<void()>> bodies) {
  return Explorer::get().run(std::move(bodies), 5000) && Explorer::get().stalls() == 0;
}

/// Two-variable linking without its lock: two ops come out waiting for each other.
bool two_chains(bool broken) {
  Atomic<int> a{0}, b{0};
  std::pair<int, int> before[2];
  const auto link = [&](int id) {
    constexpr int kLocked = -1;
    std::pair<int, int> found;
    if (broken) {
      found.first = a.exchange(id);
      found.second = b.exchange(id);
    } else {
      while ((found.first = a.exchange(kLocked)) == kLocked) ExplorePolicy::yield();
      while ((found.second = b.exchange(kLocked)) == kLocked) ExplorePolicy::yield();
      a.store(id), b.store(id);
    }
    before[id - 1] = found;
  };
  return all_end({[&] { link(1); }, [&] { link(2); }}) && before[0].first == before[0].second;
}

/// Dekker: both say "I" and look for the other, and both go in.
bool dekker(bool broken) {
  const auto store = broken ? release : seq_cst, load = broken ? acquire : seq_cst;
  Atomic<bool> wants[2]{false, false};
  int inside = 0;
  const auto enter = [&](int me) {
    wants[me].store(true, store);
    if (!wants[1 - me].load(load)) ++inside;
  };
  return all_end({[&] { enter(0); }, [&] { enter(1); }}) && inside < 2;
}

/// A value and a flag that says it is there.
bool message(bool broken) {
  Atomic<int> value{0};
  Atomic<bool> there{false};
  int got = 7;
  return all_end({[&] { value.store(7, relaxed), there.store(true, broken ? relaxed : release); },
                  [&] {
                    if (there.load(acquire)) got = value.load(relaxed);
                  }}) &&
         got == 7;
}

/// The wake handshake of a lane: who enqueues looks for a sleeper, who goes to sleep looks once more for work. Without
/// the fences each may miss the other.
bool lost_wake_up(bool broken) {
  ExplorePolicy::Queue<int> queue;
  ExplorePolicy::Parker parker;
  Atomic<bool> asleep{false};
  int got = 0;
  return all_end({[&] {
                    queue.enqueue(1);
                    if (!broken) ExplorePolicy::fence();
                    if (asleep.load(relaxed)) parker.signal();
                  },
                  [&] {
                    if (queue.try_dequeue(got)) return;
                    asleep.store(true, relaxed);
                    if (!broken) ExplorePolicy::fence();
                    while (!queue.try_dequeue(got)) parker.wait(std::chrono::seconds(1));
                  }}) &&
         got == 1;
}

/// The same, sequentially consistent, but the sleeper forgets to look again.
bool no_second_look(bool broken) {
  Atomic<int> work{0};
  Atomic<bool> asleep{false};
  ExplorePolicy::Parker parker;
  return all_end({[&] {
                    work.store(1);
                    if (asleep.load()) parker.signal();
                  },
                  [&] {
                    if (work.load()) return;
                    asleep.store(true);
                    if (!broken && work.load()) return;
                    parker.wait(std::chrono::seconds(1));
                  }});
}

/// Two lookers that see two independent events in different orders.
bool disagreement(bool broken) {
  const auto order = broken ? acquire : seq_cst;
  Atomic<int> x{0}, y{0};
  int a = 0, b = 0, c = 0, d = 0;
  return all_end({[&] { x.store(1, broken ? release : seq_cst); }, [&] { y.store(1, broken ? release : seq_cst); },
                  [&] { a = x.load(order), b = y.load(order); }, [&] { c = y.load(order), d = x.load(order); }}) &&
         !(a && !b && c && !d);
}

/// A lock whose unlock releases nothing: an addition under it is lost.
bool spin_lock(bool broken) {
  Atomic<bool> held{false};
  Atomic<int> sum{0};
  const auto add = [&] {
    while (held.exchange(true, acquire)) ExplorePolicy::pause();
    sum.store(sum.load(relaxed) + 1, relaxed);
    held.store(false, broken ? relaxed : release);
  };
  return all_end({add, add}) && sum.load() == 2;
}

/// The last to let go destroys what others wrote; it must have seen that.
bool reference_count(bool broken) {
  Atomic<int> refs{2}, written{0};
  int destroyed = 0, left = 1;
  const auto drop = [&] {
    if (refs.fetch_sub(1, broken ? release : acq_rel) == 1) ++destroyed, left = written.load(relaxed);
  };
  return all_end({[&] { written.store(1, relaxed), drop(); }, drop}) && destroyed == 1 && left == 1;
}

/// A counter that is read, added to and stored in steps.
bool split_increment(bool broken) {
  Atomic<int> count{0};
  const auto add = [&] {
    if (broken) {
      count.store(count.load() + 1);
    } else {
      count.fetch_add(1, relaxed);
    }
  };
  return all_end({add, add}) && count.load() == 2;
}

/// Two mutexes, taken in two orders.
bool lock_order(bool broken) {
  ExplorePolicy::Mutex a, b;
  const auto both = [](ExplorePolicy::Mutex& first, ExplorePolicy::Mutex& second) {
    first.lock(), second.lock();
    second.unlock(), first.unlock();
  };
  return all_end({[&] { both(a, b); }, [&] { both(broken ? b : a, broken ? a : b); }});
}

/// A free list without a count: the head comes back while somebody holds its old successor (ABA).
bool free_list(bool broken) {
  struct Node {
    int next = 0;
  };
  Node nodes[4];  // 0: none
  nodes[1].next = 2, nodes[2].next = 3;
  Atomic<std::uint32_t> head{1};  // the node, and above it a count that changes with every pop
  bool owned[4] = {}, twice = false;
  const auto pop = [&] {
    std::uint32_t old = head.load(acquire), node;
    do {
      node = old & 0xff;
      if (!node) return 0;
      const int next = nodes[node].next;
      if (head.compare_exchange_strong(old, static_cast<std::uint32_t>(next) | (broken ? 0 : (old & ~0xffu) + 0x100),
                                       acq_rel, acquire))
        break;
    } while (true);
    twice |= owned[node];
    owned[node] = true;
    return static_cast<int>(node);
  };
  const auto push = [&](int node) {
    owned[node] = false;
    std::uint32_t old = head.load(relaxed);
    do nodes[node].next = static_cast<int>(old & 0xff);
    while (!head.compare_exchange_strong(old, static_cast<std::uint32_t>(node) | (old & ~0xffu), acq_rel, acquire));
  };
  return all_end({[&] { pop(), pop(); },
                  [&] {
                    const int first = pop();
                    pop();
                    if (first) push(first);
                  }}) &&
         !twice;
}

struct Planted {
  const char* name;
  bool (*good)(bool broken);
};
constexpr Planted kPlanted[] = {
    {"two chains", two_chains},
    {"dekker", dekker},
    {"message", message},
    {"lost wake-up", lost_wake_up},
    {"no second look", no_second_look},
    {"disagreement", disagreement},
    {"spin lock", spin_lock},
    {"reference count", reference_count},
    {"split increment", split_increment},
    {"lock order", lock_order},
    {"free list", free_list},
};

bool seeded(const Planted& p, bool broken, std::uint64_t seed) {
  Explorer::get().reset(seed);
  return p.good(broken);
}

TEST(Planted, ARandomSearchFindsEachAndItsSeedReplays) {
  for (const Planted& p : kPlanted) {
    std::optional<std::uint64_t> found;
    for (std::uint64_t seed = 1; seed <= 3000 && !found; ++seed)
      if (!seeded(p, true, seed)) found = seed;
    ASSERT_TRUE(found) << p.name;
    std::printf("%-16s shows with seed %llu\n", p.name, static_cast<unsigned long long>(*found));
    const std::uint64_t hash = Explorer::get().trace_hash();
    for (int i = 0; i < 3; ++i) {
      EXPECT_FALSE(seeded(p, true, *found)) << p.name;
      EXPECT_EQ(Explorer::get().trace_hash(), hash) << p.name;
    }
    for (std::uint64_t seed = 1; seed <= 3000; ++seed)
      ASSERT_TRUE(seeded(p, false, seed)) << p.name << ", seed " << seed;
  }
}

TEST(Planted, AnExhaustiveSearchFindsEachAndItsDecisionsReplay) {
  for (const Planted& p : kPlanted) {
    const auto broken = [&] { return p.good(true); };
    const testing::Search search = testing::every_schedule(3, broken);
    ASSERT_EQ(search.bad, 1u) << p.name;
    EXPECT_FALSE(search.unsteady) << p.name;
    std::printf("%-16s shows in schedule %llu, decisions %s\n", p.name,
                static_cast<unsigned long long>(search.schedules), search.first_bad.c_str());
    const std::uint64_t hash = Explorer::get().trace_hash();
    EXPECT_FALSE(testing::replay(search.first_bad, broken)) << p.name;
    EXPECT_EQ(Explorer::get().trace_hash(), hash) << p.name;
    const testing::Search good = testing::every_schedule(3, [&] { return p.good(false); });
    EXPECT_EQ(good.bad, 0u) << p.name << ", decisions " << good.first_bad;
    EXPECT_FALSE(good.unsteady) << p.name;
  }
}

TEST(Planted, AHangIsToldFromAnEnd) {
  Explorer::get().reset(1);
  Atomic<bool> never{false};
  EXPECT_FALSE(Explorer::get().run({[&] {
                                     while (!never.load()) ExplorePolicy::pause();
                                   }},
                                   1000));
}

}  // namespace
}  // namespace sluice
