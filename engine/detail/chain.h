// The token protocol: linking an op's tokens into their variables' chains, and passing rights down the chains.
#pragma once

#include <algorithm>
#include <utility>

#include "sluice/engine/detail/record.h"

namespace sluice::detail {

/// The tail of a variable while a push of several variables has it and takes the others.
template <class P>
inline Token<P> lock_mark;
template <class P>
Token<P>* locked_tail() {
  return &lock_mark<P>;
}
/// The tail of an idle variable that is marked. The tail of an idle variable without a mark is null. So a pusher that
/// finds a variable idle and takes it by compare-exchange knows whether it is marked, even if ops came and went
/// between.
template <class P>
inline Token<P> marked_mark;
template <class P>
Token<P>* marked_tail() {
  return &marked_mark<P>;
}
/// The tail of a variable that no handle names any more: the variable is deleted when this token is done.
template <class P>
Token<P>* unnamed_tail(Token<P>* tail) {
  return reinterpret_cast<Token<P>*>(reinterpret_cast<std::uintptr_t>(tail) | 1);
}
template <class P>
bool is_idle(const Token<P>* tail) {
  return !tail || tail == marked_tail<P>();
}

template <class P>
class Chain {
 public:
  using Tok = Token<P>;
  using Op = OpRecord<P>;

  /// Sets `bits` on a token and does all that follows: it takes the rights off the op's own counts, gives the successor
  /// what it gains, and so on down the chain. It calls `retire(op, variable)` once for each token that nobody will
  /// touch again. Such a token is done and has *all* its rights: so a thread that has yet to give it rights finds it.
  /// If no handle and no other token names the variable, retire gets it and must delete it; else `variable` is null.
  template <class Pending, class Retire>
  [[gnu::always_inline]] static void advance(Tok* token, std::uint32_t bits, ReadyList<P>& ready, Pending&& pending,
                                             Retire&& retire) {
    while (token) {
      // Once the state has changed another thread may finish and retire the token, so everything is read before. The op
      // lives as long as this thread has yet to change one of its counts.
      Op* const op = token->op;
      VariableNode<P>* const variable = token->variable;
      const bool exclusive = token->exclusive(), on_stream = op->is(kOnStream);
      Tok* next = nullptr;
      std::uint32_t old = token->state.load(std::memory_order_acquire), now;
      bool detached = false, unnamed = false;
      for (;;) {
        now = old | bits;
        if (now & kNext) {
          next = token->next;
        } else if ((now & kRetired) == kFinished) {
          // The token is the last in its chain and finished: leave the variable idle. This comes before the state says
          // so; else a pusher that links itself meanwhile could close this record under the compare-exchange.
          Tok* expected = token;
          Tok* const idle = now & (exclusive ? kLeavesMark : kMarked) ? marked_tail<P>() : nullptr;
          detached = variable->tail.compare_exchange_strong(expected, idle, std::memory_order_acq_rel);
          unnamed = expected == unnamed_tail<P>(token);
          if (detached || unnamed) {
            token->state.store(now, std::memory_order_relaxed);  // for threads that look: the variable may be deleted
            break;
          }
        }
        // A successor is linked already, all rights are here or come now, and the op is over or not running on a right
        // that it had: so no other thread changes the state, and a store is enough.
        if ((now & kSettled) == kSettled &&
            ((bits & kDone) || (!on_stream && !(old & (exclusive ? kWriteComplete : kReadComplete))))) {
          token->state.store(now, std::memory_order_release);
          break;
        }
        if (token->state.compare_exchange_weak(old, now, std::memory_order_acq_rel, std::memory_order_acquire)) break;
      }
      const std::uint32_t passed = next ? rights_passed(now, exclusive) & ~rights_passed(old, exclusive) : 0;
      const bool last = detached || unnamed || ((now & kRetired) == kRetired && (old & kRetired) != kRetired);
      if (now & ~old & kAllRights) count_down(op, exclusive, on_stream, now & ~old, ready, pending);
      if (last) retire(op, unnamed ? variable : nullptr);
      token = passed ? next : nullptr;
      bits = passed;
    }
  }

  /// Called when the last handle of the variable is gone: no token will be linked any more. Returns true if there is no
  /// token either; then the caller deletes the variable. Else the last token does (advance).
  static bool leave(VariableNode<P>& variable) {
    variable.handles.gone();
    Tok* tail = variable.tail.load(std::memory_order_acquire);
    while (!is_idle<P>(tail))
      if (variable.tail.compare_exchange_weak(tail, unnamed_tail<P>(tail), std::memory_order_release,
                                              std::memory_order_acquire))
        return false;
    return true;
  }

  /// Links all tokens of an op at one instant. The tokens are sorted by variable, and each variable is there once.
  /// Calls `counts(missing)` when it is known how many tokens still miss rights, before any of these is linked. Returns
  /// true if none does; then the caller starts the op. Else the op may run, and be gone, before this returns.
  template <class Counts, class Pending, class Retire>
  [[gnu::always_inline]] static bool link(Tok* tokens, int n, ReadyList<P>& ready, Counts&& counts, Pending&& pending,
                                          Retire&& retire) {
    if (n != 1) return link_several(tokens, n, ready, counts, pending, retire);
    Tok* const before = take_one(tokens[0], counts);
    if (is_idle<P>(before)) return true;
    connect(before, &tokens[0], ready, pending, retire);
    return false;
  }

 private:
  template <class Counts, class Pending, class Retire>
  static bool link_several(Tok* tokens, int n, ReadyList<P>& ready, Counts&& counts, Pending&& pending,
                           Retire&& retire) {
    // Two-phase locking in one order: pushes are serialisable, and no two pushers can wait in a circle.
    int missing = 0;
    for (int i = 0; i < n; ++i) {
      tokens[i].next = take(tokens[i]);
      missing += !is_idle<P>(tokens[i].next);
      tokens[i].state.store(0, std::memory_order_relaxed);
    }
    counts(missing);
    tell<P>(Step::link, tokens[0].op);
    for (int i = 0; i < n; ++i)
      if (is_idle<P>(tokens[i].next)) {
        grant(tokens[i], std::exchange(tokens[i].next, nullptr));
        become_tail(tokens[i]);
      }
    if (missing == 0) return true;
    // After the last connection this thread must not touch the op. A token that has rights is linked already.
    for (int i = 0; missing > 0; ++i) {
      if (tokens[i].state.load(std::memory_order_relaxed) != 0) continue;
      Tok* before = std::exchange(tokens[i].next, nullptr);
      --missing;
      become_tail(tokens[i]);
      connect(before, &tokens[i], ready, pending, retire);
    }
    return false;
  }

  /// Takes the variable's tail for this push, by a lock mark. Returns the tail that was there.
  static Tok* take(Tok& token) {
    auto& tail = token.variable->tail;
    Tok* before = tail.load(std::memory_order_acquire);
    for (int spins = 0;;) {
      if (before == locked_tail<P>()) {
        wait_turn(spins);
        before = tail.load(std::memory_order_acquire);
      } else if (tail.compare_exchange_weak(before, locked_tail<P>(), std::memory_order_acq_rel,
                                            std::memory_order_acquire)) {
        return before;
      }
    }
  }

  static void become_tail(Tok& token) {
    token.variable->tail.store(&token, std::memory_order_release);
    token.variable->handles.used();
  }

  /// The same for the only token of an op, which becomes the tail at once.
  template <class Counts>
  [[gnu::always_inline]] static Tok* take_one(Tok& token, Counts&& counts) {
    VariableNode<P>& variable = *token.variable;
    auto& tail = variable.tail;
    Tok* before = tail.load(std::memory_order_acquire);
    for (int spins = 0;;) {
      if (before == locked_tail<P>()) {
        wait_turn(spins);
        before = tail.load(std::memory_order_acquire);
        continue;
      }
      // No other thread sees the token yet, so these are plain stores. If another push comes first they are made again.
      counts(is_idle<P>(before) ? 0 : 1);
      if (is_idle<P>(before)) {
        grant(token, before);
      } else {
        token.state.store(0, std::memory_order_relaxed);
      }
      if (tail.compare_exchange_weak(before, &token, std::memory_order_acq_rel, std::memory_order_acquire)) break;
    }
    variable.handles.used();
    tell<P>(Step::link, token.op);
    return before;
  }

  static void wait_turn(int& spins) {
    if (++spins > 100) P::yield();
    P::pause();
  }
  /// Gives all rights at once to the first token in a chain, and tells it whether the variable is marked.
  static void grant(Tok& token, const Tok* before) {
    token.state.store(before ? kAllRights | kMarked : kAllRights, std::memory_order_relaxed);
  }

  template <class Pending, class Retire>
  [[gnu::always_inline]] static void connect(Tok* before, Tok* token, ReadyList<P>& ready, Pending&& pending,
                                             Retire&& retire) {
    const bool exclusive = before->exclusive();
    Op* const op = before->op;
    before->next = token;
    const std::uint32_t linked = token->exclusive() ? kNext | kNextAlone : kNext;
    const std::uint32_t old = before->state.fetch_or(linked, std::memory_order_acq_rel);
    if (old & kAllRights) follow(op, exclusive, old, linked, token, ready, pending, retire);
  }
  /// Does what follows when a token is linked behind one that had rights.
  template <class Pending, class Retire>
  static void follow(Op* op, bool exclusive, std::uint32_t old, std::uint32_t linked, Tok* token, ReadyList<P>& ready,
                     Pending&& pending, Retire&& retire) {
    const std::uint32_t passed = rights_passed(old | linked, exclusive);
    const bool last = (old & kFinished) == kFinished;
    if (passed) advance(token, passed, ready, pending, retire);
    if (last) retire(op, nullptr);
  }

  /// Takes the rights gained off the op's counts. Touches the op only if a count changes.
  template <class Pending>
  static void count_down(Op* op, bool exclusive, bool on_stream, std::uint32_t gained, ReadyList<P>& ready,
                         Pending&& pending) {
    const std::uint32_t complete = exclusive ? kWriteComplete : kReadComplete;
    const std::uint32_t issued = exclusive ? kWriteIssued : kReadIssued;
    if (!on_stream) {
      if (!(gained & complete)) {
        ready.host_waits = true;
        return;
      }
      if (op->single() || op->start_pending.fetch_sub(1, std::memory_order_acq_rel) == 1) ready.start.push(op);
      return;
    }
    // `complete` comes first, because it may be what finishes the op, which must not be over before it was started.
    const bool finish = (gained & complete) && pending(op).fetch_sub(1, std::memory_order_acq_rel) == 1;
    if ((gained & issued) && (op->single() || op->start_pending.fetch_sub(1, std::memory_order_acq_rel) == 1))
      ready.start.push(op);
    if (finish) ready.finish.push(op);
  }
};

}  // namespace sluice::detail
