// The token protocol: linking an op's tokens into their variables' chains, and passing rights down the chains.
#pragma once

#include <algorithm>
#include <utility>

#include "sluice/engine/detail/record.h"

namespace sluice::detail {

/// A tail that a pusher of several variables holds while it takes the others.
template <class P>
inline Token<P> lock_mark;
template <class P>
Token<P>* locked_tail() {
  return &lock_mark<P>;
}

template <class P>
class Chain {
 public:
  using Tok = Token<P>;
  using Op = OpRecord<P>;

  /// Sets `bits` on a token and does all that follows: the op's own counts, what its successor gains, and so on down
  /// the chain. `retire(token, idle)` is called once for each token that nobody will touch again: one that is done and
  /// has *all* its rights, so that a thread that still has rights to bring may rely on finding it. `idle`: it left its
  /// variable without a token; the reference that a chain has to its variable is the callee's.
  template <class Retire>
  static void advance(Tok* token, std::uint32_t bits, ReadyList<P>& ready, Retire&& retire) {
    while (token) {
      // Once the state has changed another thread may finish and retire the token, so all is read before. The op lives
      // as long as a count of it is due here.
      Op* const op = token->op;
      const bool exclusive = token->exclusive(), on_stream = op->on_stream;
      Tok* next = nullptr;
      std::uint32_t old = token->state.load(std::memory_order_acquire), now;
      bool detached = false;
      for (;;) {
        now = old | bits;
        if (now & kNext) {
          next = token->next;
        } else if ((now & kRetired) == kFinished) {
          // Last in its chain and finished: leave the variable idle. Before the state says so, or a pusher that linked
          // itself meanwhile could close this record under the compare-exchange.
          Tok* expected = token;
          if (token->variable->tail.compare_exchange_strong(expected, nullptr, std::memory_order_acq_rel)) {
            detached = true;
            break;
          }
        }
        if (token->state.compare_exchange_weak(old, now, std::memory_order_acq_rel, std::memory_order_acquire)) break;
      }
      const std::uint32_t passed = next ? rights_passed(now, exclusive) & ~rights_passed(old, exclusive) : 0;
      const bool last = detached || ((now & kRetired) == kRetired && (old & kRetired) != kRetired);
      count_down(op, exclusive, on_stream, now & ~old, ready);
      if (last) retire(token, detached);
      token = passed ? next : nullptr;
      bits = passed;
    }
  }

  /// Links all tokens of `op` at one instant, and counts down the rights that it has at once. Tokens are sorted by
  /// variable, each variable once; start_pending holds one count for the caller.
  template <class Retire>
  static void link(Op* op, ReadyList<P>& ready, Retire&& retire) {
    Tok* tokens = op->tokens;
    const int n = op->token_count;
    if (n == 1) {
      Tok* before = take(tokens[0], &tokens[0]);
      if (before) connect(before, &tokens[0], ready, retire);
      return;
    }
    // Two-phase locking in one order: pushes are serialisable, and no two pushers can wait in a circle.
    for (int i = 0; i < n; ++i) tokens[i].next = take(tokens[i], locked_tail<P>());
    for (int i = 0; i < n; ++i) {
      Tok* before = tokens[i].next;
      tokens[i].next = nullptr;
      if (!before) {
        hold(tokens[i]);
        grant(tokens[i]);
        tokens[i].variable->tail.store(&tokens[i], std::memory_order_release);
      } else {
        tokens[i].variable->tail.store(&tokens[i], std::memory_order_release);
        connect(before, &tokens[i], ready, retire);
      }
    }
  }

 private:
  /// Puts `mark` (the token itself, or the lock) at the tail of its variable; returns what was there.
  static Tok* take(Tok& token, Tok* mark) {
    auto& tail = token.variable->tail;
    Tok* before = tail.load(std::memory_order_acquire);
    bool held = false;
    for (int spins = 0;;) {
      if (before == locked_tail<P>()) {
        if (++spins > 100) P::yield();
        P::pause();
        before = tail.load(std::memory_order_acquire);
        continue;
      }
      if (mark == &token) {
        if (!before) {
          // Not yet visible to anybody: plain stores. Undone below if another pusher comes first.
          grant_state(token);
          if (!std::exchange(held, true)) hold(token);
        } else {
          token.state.store(0, std::memory_order_relaxed);
        }
      }
      if (tail.compare_exchange_weak(before, mark, std::memory_order_acq_rel, std::memory_order_acquire)) break;
    }
    if (mark == &token && !before) count_granted(token);
    if (held && before) token.variable->refs.fetch_sub(1, std::memory_order_relaxed);  // not the last: the pusher's is
    return before;
  }
  /// A chain that has tokens has a reference to its variable.
  static void hold(Tok& token) { token.variable->refs.fetch_add(1, std::memory_order_relaxed); }
  static void grant_state(Tok& token) { token.state.store(kAllRights, std::memory_order_relaxed); }
  static void grant(Tok& token) {
    grant_state(token);
    count_granted(token);
  }
  static void count_granted(Tok& token) {
    // The caller's own count is still held, so neither reaches zero here.
    token.op->start_pending.fetch_sub(1, std::memory_order_acq_rel);
    if (token.op->on_stream) token.op->finish_pending.fetch_sub(1, std::memory_order_acq_rel);
  }

  template <class Retire>
  static void connect(Tok* before, Tok* token, ReadyList<P>& ready, Retire&& retire) {
    const bool exclusive = before->exclusive();
    before->next = token;
    const std::uint32_t old = before->state.fetch_or(kNext, std::memory_order_acq_rel);
    const std::uint32_t passed = rights_passed(old | kNext, exclusive);
    const bool last = (old & kFinished) == kFinished;
    if (passed) advance(token, passed, ready, retire);
    if (last) retire(before, false);
  }

  /// Takes the rights gained off the op's counts. Touches the op only where a count is due.
  static void count_down(Op* op, bool exclusive, bool on_stream, std::uint32_t gained, ReadyList<P>& ready) {
    const std::uint32_t complete = exclusive ? kWriteComplete : kReadComplete;
    if (!on_stream) {
      if ((gained & complete) && op->start_pending.fetch_sub(1, std::memory_order_acq_rel) == 1) ready.push(op);
      return;
    }
    const std::uint32_t issued = exclusive ? kWriteIssued : kReadIssued;
    // `complete` first: it may be what finishes the op, and only once the op was started can it be.
    const bool finish = (gained & complete) && op->finish_pending.fetch_sub(1, std::memory_order_acq_rel) == 1;
    if ((gained & issued) && op->start_pending.fetch_sub(1, std::memory_order_acq_rel) == 1) ready.push(op);
    if (finish) {
      op->finishing = true;
      ready.push(op);
    }
  }
};

}  // namespace sluice::detail
