// Core<P>, circles: waits that can never end, because what they wait for stands behind the op that they are in.
//
// All threads that are blocked in such waits are in one list, and a thread needs the list's mutex to leave it. While a
// thread that looks has the mutex, no op is over in whose body a listed thread is blocked, whether that thread was told
// or not, and no Borrow that such a thread has is released. So these ops, and all that stand behind them in the chains
// of their variables, stay where they are. The looking thread follows the chains and the list from them on, and what it
// finds is certain, whatever else moves in the engine. An op with a Completion is no exception: it is not over before
// its body has returned, whoever answers the Completion.
//
// A circle is complete when the last of its waits has begun, because each push fixes what its op stands behind. So
// looks are wanted after a wait has begun, and seldom later. One look serves all waits.
#pragma once

#include <cstring>
#include <new>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "sluice/engine/detail/circles.h"
#include "sluice/engine/detail/core.h"

namespace sluice::detail {

/// A picture of what stands behind some ops which cannot be over while the picture lives. The caller holds
/// waits_.blocked_mutex.
template <class P>
class Core<P>::Standing {
 public:
  explicit Standing(Core& core) : core_(core) {}
  Standing(const Standing&) = delete;
  Standing& operator=(const Standing&) = delete;

  /// Adds the op and all that stands behind it, or as much of that as is needed to come to the op with the id `until`.
  /// The chains come first: what is wanted most often stands close by.
  void follow(Op* op, std::uint64_t until = 0) {
    node(op);
    while (until == 0 || find(until) < 0) {
      if (chained_ < ops_.size()) {
        add_chained(static_cast<int>(chained_++));
      } else if (waited_ < ops_.size()) {
        add_waiting(static_cast<int>(waited_++));
      } else {
        return;
      }
    }
  }
  /// The number of an op that is one of those or stands behind one; else -1.
  int find(std::uint64_t id) const {
    const auto it = by_id_.find(id);
    return it == by_id_.end() ? -1 : it->second;
  }

  /// Makes the latest wait of each circle give up, and tells its thread. Returns false if there is no circle.
  bool give_up() {
    for (Wait* w = core_.waits_.blocked; w; w = w->next_blocked) for_held_up(*w, [this](Op* op) { follow(op); });
    const std::vector<int> component = graph_.components();
    const auto of = [&](int i) -> int { return component[static_cast<std::size_t>(i)]; };
    std::unordered_set<int> broken;
    for (Wait* w = core_.waits_.blocked; w; w = w->next_blocked) {
      const int target = find(w->target);
      if (target < 0 || w->ends || w->slot->blocked_wait != w) continue;  // another wait on its stack comes first
      int from = -1;
      for_held_up(*w, [&](Op* op) {
        if (const int i = node(op); of(i) == of(target)) from = i;
      });
      if (from < 0 || broken.contains(of(from))) continue;
      w->circle = tell(graph_.way(from, target));
      std::uint32_t expected = Wait::waiting;
      if (!w->state.compare_exchange_strong(expected, Wait::left, std::memory_order_acq_rel)) continue;
      broken.insert(of(from));
      w->parker.signal();
    }
    return !broken.empty();
  }

 private:
  /// Calls f for everything that cannot be over before this wait is: the op that it is in, the ops further down its
  /// stack (serial mode), and the Borrows that its thread took there and still has.
  template <class F>
  static void for_held_up(Wait& wait, F&& f) {
    for (Wait* w = &wait; w; w = w->below)
      if (w->inside) f(w->inside);
    for_borrows(wait, f);
  }
  template <class F>
  static void for_borrows(Wait& wait, F&& f) {
    if (wait.slot->blocked_wait != &wait) return;
    for (RareParts<P>* held = wait.slot->held; held; held = held->next_held) {
      bool here = !held->taken_in;
      for (Wait* w = &wait; w && !here; w = w->below) here = w->inside == held->taken_in;
      if (here) f(held->held_op);  // else the op that took it has returned and passed it on
    }
  }

  int node(Op* op) {
    const auto [it, added] = nodes_.try_emplace(op, static_cast<int>(ops_.size()));
    if (added) {
      ops_.push_back(op);
      by_id_.emplace(id_of(static_cast<const Op*>(op)), graph_.add());
    }
    return it->second;
  }

  void add_chained(int i) {
    Op* const op = ops_[static_cast<std::size_t>(i)];
    for (Token<P>& t : core_.tokens(op)) {
      if (t.exclusive()) {
        behind_alone(t, i);
      } else if (Op* const next = next_alone(t)) {
        graph_.connect(i, node(next));
      }
    }
  }

  /// Behind an op stand the ops in whose bodies a thread waits for it. Of several on one stack each can only be over
  /// when the one above it has returned, so each stands behind that one; so deep stacks are walked once.
  void add_waiting(int i) {
    if (!std::exchange(mapped_, true))
      for (Wait* w = core_.waits_.blocked; w; w = w->next_blocked)
        if (!w->ends && w->state.load(std::memory_order_acquire) == Wait::waiting) waits_.emplace(w->target, w);
    const auto [first, last] = waits_.equal_range(id_of(static_cast<const Op*>(ops_[static_cast<std::size_t>(i)])));
    for (auto at = first; at != last; ++at) {
      for_borrows(*at->second, [&](Op* held_up) { graph_.connect(i, node(held_up)); });
      int above = i;
      for (Wait* w = at->second; w; w = w->below) {
        if (w->inside) {
          graph_.connect(above, node(w->inside));
          above = node(w->inside);
        }
        if (!walked_.insert(w).second) break;
      }
    }
  }

  /// The next token in the chain. A token that stands behind an op which is not over is not retired.
  static Token<P>* behind(const Token<P>& token) {
    return token.state.load(std::memory_order_acquire) & kNext ? static_cast<Token<P>*>(token.next) : nullptr;
  }
  /// Behind an exclusive access stand the reads up to the next exclusive one, or that one, which waits for the reads.
  void behind_alone(const Token<P>& token, int from) {
    Token<P>* next = behind(token);
    if (next && next->exclusive()) graph_.connect(from, node(next->op));
    for (; next && !next->exclusive(); next = behind(*next)) graph_.connect(from, node(next->op));
  }
  /// Behind a read stands the next exclusive access. The reads between may be over.
  Op* next_alone(const Token<P>& token) {
    std::vector<const Token<P>*> passed;
    Op* found = nullptr;
    for (const Token<P>* at = &token; at; at = behind(*at)) {
      if (at->exclusive()) {
        found = at->op;
        break;
      }
      if (const auto known = next_alone_.find(at); known != next_alone_.end()) {
        found = known->second;
        break;
      }
      passed.push_back(at);
    }
    for (const Token<P>* at : passed) next_alone_[at] = found;
    return found;
  }

  /// Tells the way from what the wait holds up to what it waits for, beginning at its end.
  std::string tell(const std::vector<int>& way) const {
    static constexpr std::size_t kNamed = 6;
    const auto at = [&](int i) -> const Op& { return *ops_[static_cast<std::size_t>(i)]; };
    const Op& own = at(way.front());
    std::string text =
        own.kind == OpKind::borrow ? "a Borrow of its own thread" : "the op '" + std::string(own.name) + "' itself";
    std::vector<int> between(way.rbegin(), way.rend() - 1);
    if (!between.empty() && at(between.front()).kind != OpKind::body) between.erase(between.begin());  // its own record
    for (std::size_t i = 0; i < between.size(); ++i) {
      const Op& op = at(between[i]);
      const char* const slash = std::strrchr(op.where.file_name(), '/');
      text += i == 0 ? ", through " : i + 1 == between.size() ? " and " : ", ";
      if (i == kNamed) return text + std::to_string(between.size() - i) + " more";
      text += "'" + std::string(op.name) + "' (" + (slash ? slash + 1 : op.where.file_name()) + ":" +
              std::to_string(op.where.line()) + ")";
    }
    return text;
  }

  Core& core_;
  Graph graph_;  ///< from each op to those that cannot be over before it is
  std::vector<Op*> ops_;
  std::size_t chained_ = 0, waited_ = 0;  ///< how many of the ops what stands behind was added for: in chains; by waits
  std::unordered_set<const Wait*> walked_;  ///< waits below which everything was added
  std::unordered_map<const Op*, int> nodes_;
  std::unordered_map<std::uint64_t, int> by_id_;
  std::unordered_multimap<std::uint64_t, Wait*> waits_;  ///< by what they wait for; made when it is wanted
  bool mapped_ = false;
  std::unordered_map<const Token<P>*, Op*> next_alone_;  ///< for reads: the next exclusive access
};

/// While one lives, its thread's wait, which may never end, is in the list. In serial mode this includes waits with a
/// time limit, because others may be above them on the stack.
template <class P>
class Core<P>::Blockade {
 public:
  Blockade(Core& core, Wait& wait, std::uint64_t target, Slot<P>& slot, bool ends) : core_(core), wait_(wait) {
    wait.target = target;
    wait.ends = ends;
    wait.slot = &slot;
    if (core.in_op()) {
      Operation* const operation = thread_state().operation;
      wait.inside = seen_op(operation);
      wait.answers = core.answers_later(operation);
    }
    std::lock_guard lock(core.waits_.blocked_mutex);
    wait.next_blocked = core.waits_.blocked;
    if (wait.next_blocked) wait.next_blocked->before_blocked = &wait;
    core.waits_.blocked = &wait;
    wait.below = std::exchange(slot.blocked_wait, &wait);
    core.waits_.look_interval = core.tick();
    const std::int64_t soon = std::max(P::now() + core.tick(), core.waits_.look_not_before);
    if (soon < core.waits_.next_look.load(std::memory_order_relaxed))
      core.waits_.next_look.store(soon, std::memory_order_relaxed);
  }
  ~Blockade() {
    std::lock_guard lock(core_.waits_.blocked_mutex);
    (wait_.before_blocked ? wait_.before_blocked->next_blocked : core_.waits_.blocked) = wait_.next_blocked;
    if (wait_.next_blocked) wait_.next_blocked->before_blocked = wait_.before_blocked;
    wait_.slot->blocked_wait = wait_.below;
  }
  Blockade(const Blockade&) = delete;
  Blockade& operator=(const Blockade&) = delete;

 private:
  Core& core_;
  Wait& wait_;
};

/// Looks for circles, if a look is due. That is soon after a wait has begun, and then less and less often, in case a
/// push was not linked yet. All looks together take at most a twentieth of the time.
template <class P>
void Core<P>::look_for_circles() {
  if (P::now() < waits_.next_look.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(waits_.blocked_mutex);
  const std::int64_t begin = P::now();
  if (begin < waits_.next_look.load(std::memory_order_relaxed)) return;
  bool found = false;
  try {
    found = Standing(*this).give_up();
  } catch (const std::bad_alloc&) {  // the next look may have more
  }
  const std::int64_t end = P::now();
  waits_.look_not_before = end + 20 * (end - begin);
  waits_.look_interval = found ? tick() : std::min<std::int64_t>(2 * waits_.look_interval, kLongestInterval);
  waits_.next_look.store(std::max(end + waits_.look_interval, waits_.look_not_before), std::memory_order_relaxed);
}

/// The rare parts of an op whose body was given a Completion, else null.
template <class P>
RareParts<P>* Core<P>::answers_later(Operation* operation) const {
  if (operation->kind == OpKind::captured) {
    const Info* const info = static_cast<const Info*>(operation);
    return info->op->is(kAsync) && !info->op->is(kOnStream) ? info->rare.get() : nullptr;
  }
  const Op* const op = static_cast<const Op*>(operation);
  return op->is(kAsync) && !op->is(kOnStream) ? &rare(op) : nullptr;
}

/// Grants a Borrow, if its thread still waits for it.
template <class P>
bool Core<P>::grant(Op* op, Wait& waiter) {
  RareParts<P>& parts = rare(op);
  std::lock_guard lock(waits_.blocked_mutex);
  Slot<P>& slot = *parts.borrower.load(std::memory_order_relaxed);
  std::uint32_t expected = Wait::waiting;
  if (!waiter.state.compare_exchange_strong(expected, Wait::done, std::memory_order_acq_rel)) return false;
  parts.held_op = op;
  parts.before_held = nullptr;
  parts.next_held = slot.held;
  if (slot.held) slot.held->before_held = &parts;
  slot.held = &parts;
  return true;
}

/// Called when a Borrow is released.
template <class P>
void Core<P>::let_go(RareParts<P>& parts) {
  std::lock_guard lock(waits_.blocked_mutex);
  Slot<P>* const owner = parts.borrower.load(std::memory_order_relaxed);
  if (!owner) {
    waits_.disowned.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  Slot<P>& slot = *owner;
  slot.borrows.fetch_sub(1, std::memory_order_relaxed);
  (parts.before_held ? parts.before_held->next_held : slot.held) = parts.next_held;
  if (parts.next_held) parts.next_held->before_held = parts.before_held;
}

/// Called when a thread ends: the Borrows that it has not released are nobody's from here on. They must not count as
/// those of the next thread that gets the slot.
template <class P>
void Core<P>::disown_borrows(Slot<P>& slot) {
  if (slot.borrows.load(std::memory_order_relaxed) == 0) return;
  std::lock_guard lock(waits_.blocked_mutex);
  for (RareParts<P>* held = std::exchange(slot.held, nullptr); held; held = held->next_held) {
    held->borrower.store(nullptr, std::memory_order_relaxed);
    waits_.disowned.fetch_add(1, std::memory_order_relaxed);
    slot.borrows.fetch_sub(1, std::memory_order_relaxed);
  }
}

}  // namespace sluice::detail
