// What must hold of an engine that ends, for the rewritten destructor of Core (by_hand.txt: harness).
#pragma once

namespace sluice::mutants {

/// The newest value, where a load under the explorer may see an old one.
template <class A>
auto newest(A& atomic) {
  return atomic.fetch_add(0);
}

}  // namespace sluice::mutants

// In the class's own scope, because it looks at all of it.
#define SLUICE_CHECK_END()                                                                                     \
  do {                                                                                                         \
    using ::sluice::mutants::expect;                                                                           \
    using ::sluice::mutants::newest;                                                                           \
    --::sluice::mutants::cores;                                                                                \
    std::int64_t credits = newest(caps_.credits);                                                              \
    std::uint64_t pushed = 0;                                                                                  \
    int taken = 0;                                                                                             \
    for (auto& s : slots_) {                                                                                   \
      credits += s->credits + s->returned_credits;                                                             \
      const std::uint64_t pushes = newest(s->pushes);                                                          \
      expect(pushes % 2 == 0, "a push that never ended");                                                      \
      pushed += pushes - newest(s->completed);                                                                 \
      expect(newest(s->borrows) == 0, "a borrow that never ended");                                            \
      taken += s->taken.exchange(false);                                                                       \
      expect(s->batch.take() == nullptr, "an op left in a batch");                                             \
    }                                                                                                          \
    expect(taken <= 2 + ::sluice::mutants::slots_of_others, "a slot whose thread is gone is still taken");     \
    expect(credits == options_.max_ops, "credits were lost or made");                                          \
    expect(pushed == 0, "pushed and completed ops differ");                                                    \
    expect(newest(outsiders_) == 0, "outsiders at the end");                                                   \
    expect(newest(caps_.bytes) == 0, "bytes in flight at the end");                                            \
    expect(newest(open_) == 0, "open Completions at the end");                                                 \
    expect(newest(caps_.waiters) == 0 && caps_.parked.empty(), "who waits at the cap at the end");             \
    expect(waits_.tickets.empty() && !waits_.blocked, "waits at the end");                                     \
    for (auto& lane : lanes_.all) {                                                                            \
      expect(newest(lane->active) == 0, "drainers at the end");                                                \
      expect(newest(lane->blocked) == 0 && newest(lane->spinning) == 0, "blocked or spinning at the end");     \
      for (auto& place : lane->drainers)                                                                       \
        expect(place.exchange(nullptr) == nullptr, "the place of a drainer that left");                        \
      expect(!lane->overflow.head, "ops left over");                                                           \
      expect(!lane->queue || newest(lane->queue->issued) == newest(lane->queue->finished), "ops on a device"); \
      expect(!lane->queue || !newest(lane->queue->locked), "a stream lane that is locked");                    \
    }                                                                                                          \
    for (const auto& [sequence, entry] : errors_.roots)                                                        \
      expect(entry.live_variables == 0, "poison without a variable");                                          \
    for (std::uint32_t i = 0, n = newest(slab_count_); i < n; ++i)                                             \
      for (Op & op : slabs_[i].load(std::memory_order_acquire)->ops)                                           \
        expect(!(newest(op.word) & kInUse), "an op record that was never freed");                              \
  } while (false)
