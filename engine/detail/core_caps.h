// Core<P>, caps: credits for ops, bytes, and the threads that wait for them.
#pragma once

#include "sluice/engine/detail/core.h"

namespace sluice::detail {

/// Takes a batch of credits from the engine's store, as long as that leaves it above `floor`. The batch is small where
/// few are left, so that idle threads do not keep many.
template <class P>
bool Core<P>::grab_credits(Slot<P>& slot, std::int64_t floor) {
  std::int64_t have = caps_.credits.load(std::memory_order_relaxed);
  for (;;) {
    if (have <= floor) return false;
    const std::int64_t take = std::clamp<std::int64_t>((have - floor) / 8, 1, caps_.batch);
    if (caps_.credits.compare_exchange_weak(have, have - take, std::memory_order_acq_rel, std::memory_order_relaxed)) {
      slot.credits += take;
      return true;
    }
  }
}

/// Threads that wait at the cap are woken when there is room for a good stretch, or when the worker has nothing more to
/// do.
template <class P>
void Core<P>::return_credits(Slot<P>& slot, std::int64_t count, bool idle) {
  if (count == 0) return;
  const std::int64_t now = caps_.credits.fetch_add(count, std::memory_order_seq_cst) + count;
  if (caps_.waiters.load(std::memory_order_seq_cst) && (idle || now >= good_stretch())) wake_cap_waiters();
  slot.far_behind = options_.max_ops - now > kFarBehind;
}

template <class P>
void Core<P>::wake_cap_waiters() {
  std::lock_guard lock(caps_.mutex);
  for (auto& w : caps_.parked) w->parker.signal();
}

/// Waits a moment for room, as long as `full` and something is ready or running; returns false if nothing is. As long
/// as there is `little` room the thread sleeps until there is room for a good stretch, because the workers have a whole
/// cap of ops to go on with (unless the cap is small), and may need its core. A look goes from one place to the next
/// and may miss an op that moves the other way; such an op counts as progress.
template <class P>
template <class Full, class Little>
bool Core<P>::park_at_cap(Full&& full, Little&& little) {
  for (int i = good_stretch() < 128 ? P::kWaitSpins : P::kCapSpins; i > 0; --i) {
    if (!little()) return true;
    P::pause();
  }
  auto& parked = my_slot().cap_wait;
  if (!parked) parked = std::make_shared<Wait>();
  {
    std::lock_guard lock(caps_.mutex);
    caps_.parked.push_back(parked);
  }
  caps_.waiters.fetch_add(1, std::memory_order_seq_cst);
  tend_watches();
  if (starts_fail()) rescue(!in_op(), [&] { return !full(); });
  const std::uint64_t before = progress();
  const bool room = !full(), moves = anything_moves();
  if (moves && little()) parked->parker.wait(std::chrono::milliseconds(5));
  caps_.waiters.fetch_sub(1, std::memory_order_relaxed);
  {
    std::lock_guard lock(caps_.mutex);
    std::erase(caps_.parked, parked);
  }
  return room || moves || !full() || anything_moves() || progress() != before;
}

/// Takes one credit. A push from outside blocks while something is ready or running. If nothing is (every op waits for
/// a Completion or a Borrow), and for a push from an op, it goes on to the hard cap.
template <class P>
[[gnu::always_inline]] inline void Core<P>::take_credit(Slot<P>& slot, const PushOptions& options,
                                                        const std::source_location& where) {
  if (slot.credits <= 0) [[unlikely]]
    wait_for_credit(slot, options, where);
  --slot.credits;
}

template <class P>
void Core<P>::wait_for_credit(Slot<P>& slot, const PushOptions& options, const std::source_location& where) {
  const bool blocks = !in_op() && !options.never_blocks;
  // Such a push has no lock here and may throw; and every engine that has many errors comes here sometimes.
  if (!options.never_blocks && errors_.too_many.load(std::memory_order_relaxed)) shed_roots();
  const std::int64_t hard_floor = -3 * options_.max_ops;
  // The push is announced before it takes a credit: a thread that sees that no credit is left must see that this push
  // moves.
  const auto grab = [&](std::int64_t floor) {
    if (caps_.credits.load(std::memory_order_relaxed) <= floor) return false;
    begin_link(slot);
    const bool got = grab_credits(slot, floor);
    if (!got) end_link(slot);
    return got;
  };
  while (slot.credits <= 0) {
    if (grab(blocks ? 0 : hard_floor)) break;
    if (slot.returned_credits) {
      flush(slot);
      continue;
    }
    const auto refuse = [&] {
      const char* name = options.name ? options.name : options.op ? options.op->name : "push";
      throw CapError("[" + std::string(name) + "] " + call_site(where) + ": " + std::to_string(4 * options_.max_ops) +
                     " ops in flight, the hard cap (max_ops " + std::to_string(options_.max_ops) + ")");
    };
    if (!blocks) refuse();
    if (options_.serial) drain_serial();
    const auto credits_below = [&](std::int64_t count) {
      return caps_.credits.load(std::memory_order_seq_cst) < count;
    };
    if (park_at_cap([&] { return credits_below(1); }, [&] { return credits_below(good_stretch()); })) continue;
    if (grab(hard_floor)) break;
    refuse();
  }
}

/// Returns how many bytes it took. For an op above the hard cap that is the hard cap, so that no sum overflows.
template <class P>
std::size_t Core<P>::take_bytes(Slot<P>& slot, const PushOptions& options, const std::source_location& where) {
  const std::size_t bytes = std::min(options.bytes, 4 * options_.max_bytes);
  std::size_t have = caps_.bytes.load(std::memory_order_relaxed);
  for (;;) {
    // An op above the cap runs alone.
    const bool fits = have == 0 || have + bytes <= options_.max_bytes;
    if (!fits && !in_op()) {
      end_link(slot);  // it does not move while it waits
      if (options_.serial) drain_serial();
      const auto full = [&] {
        have = caps_.bytes.load(std::memory_order_seq_cst);
        return have != 0 && have + bytes > options_.max_bytes;
      };
      if (park_at_cap(full, full)) continue;
      have = caps_.bytes.load(std::memory_order_relaxed);
    }
    if (!fits && have / 4 >= options_.max_bytes) {
      const char* name = options.name ? options.name : options.op ? options.op->name : "push";
      throw CapError("[" + std::string(name) + "] " + call_site(where) + ": " + std::to_string(have) +
                     " bytes in flight, the hard cap (max_bytes " + std::to_string(options_.max_bytes) + ")");
    }
    begin_link(slot);  // as for a credit
    if (caps_.bytes.compare_exchange_weak(have, have + bytes, std::memory_order_release, std::memory_order_relaxed))
      return bytes;
  }
}

}  // namespace sluice::detail
