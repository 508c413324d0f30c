// Core<P>, seen from outside: a picture of what is in flight, taken while ops run and records are recycled.
//
// No op does anything to help with it. A thread that looks goes through all records, which are never freed while the
// engine lives, and *pins* each live one: it adds a reference to its word, which it does only while the word says that
// the op is live. The record is then not given out again before the reference is gone, and its plain fields, written
// before the op became live, stay as they are. What other threads change meanwhile is read from atomics or not at all.
// A pin delays no op: the op runs, passes its rights on and is over as always. (A read that is pushed, as a wait does,
// would stand behind what it is to explain; a lock, or fields that bodies keep up to date, would cost every op.)
//
// A pinned op does not keep its variables. A variable that is deleted while a thread looks is kept back. The looking
// thread says that it looks, and then sees that a token is not done, so that its chain holds the variable. The thread
// that deletes a variable has let its last token say that it is done (Chain::advance), and then sees whether a thread
// looks. Both have a fence between, so one of the two sees the other.
#pragma once

#include "sluice/engine/detail/core.h"

namespace sluice::detail {

/// Holds a live record.
template <class P>
class Core<P>::Pinned {
 public:
  Pinned(Core& core, Op& op) : core_(core), op_(op), word_(op.word.load(std::memory_order_relaxed)) {
    // An op that ends may be over before its word says so.
    while ((word_ & kLive) && !held_ && op.phase.load(std::memory_order_relaxed) != Phase::ending)
      held_ = op.word.compare_exchange_weak(word_, word_ + kOneReference, std::memory_order_acquire,
                                            std::memory_order_relaxed);
  }
  ~Pinned() {
    if (held_) core_.drop(&op_, 1, false);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  explicit operator bool() const { return held_; }
  /// The word as it was when the record was pinned.
  std::uint64_t word() const { return word_; }
  bool begun() const { return op_.phase.load(std::memory_order_relaxed) != Phase::queued; }
  /// True if its variables may have been deleted before this look.
  bool passing() const { return op_.phase.load(std::memory_order_relaxed) >= Phase::passing; }

 private:
  Core& core_;
  Op& op_;
  std::uint64_t word_;
  bool held_ = false;
};

/// While one lives, deleted variables are kept back. Deletes them at the end.
template <class P>
class Core<P>::Looking {
 public:
  explicit Looking(Core& core) : core_(core), outsider_(core) {
    std::lock_guard lock(core.look_mutex_);
    core.lookers_.fetch_add(1, std::memory_order_relaxed);
    P::heavy_fence();
  }
  ~Looking() {
    Node* gone = nullptr;
    {
      std::lock_guard lock(core_.look_mutex_);
      if (core_.lookers_.fetch_sub(1, std::memory_order_release) == 1) gone = std::exchange(core_.kept_, nullptr);
    }
    while (gone) {
      Node* const next = reinterpret_cast<Node*>(gone->tail.load(std::memory_order_relaxed));
      core_.end_node(gone);
      gone = next;
    }
  }
  Looking(const Looking&) = delete;
  Looking& operator=(const Looking&) = delete;

 private:
  Core& core_;
  const Outsider outsider_;
};

/// Returns true if a thread looks; the variable is then deleted afterwards.
template <class P>
bool Core<P>::keep_for_lookers(Node* node) noexcept {
  P::light_fence();
  if (lookers_.load(std::memory_order_acquire) == 0) return false;  // behind all that looks before read of it
  std::lock_guard lock(look_mutex_);
  if (lookers_.load(std::memory_order_relaxed) == 0) return false;
  // It has no tokens any more, so its tail serves as a link: this must not fail.
  node->tail.store(reinterpret_cast<Token<P>*>(std::exchange(kept_, node)), std::memory_order_relaxed);
  return true;
}

template <class P>
Look Core<P>::look() {
  const auto alive = shared_from_this();  // a variable kept back may be what keeps the engine
  Look seen;
  for (const auto& lane : lanes_.all) {
    static constexpr const char* names[] = {"", ", copies in", ", copies out", ", copies from peers", ""};
    const bool io = lane->kind == LaneKind::io;
    seen.lanes.push_back({(io ? "the I/O lane" : to_string(lane->device)) + names[static_cast<int>(lane->kind)],
                          static_cast<int>(lane->width)});
  }
  seen.in_flight = in_flight();
  seen.max_ops = static_cast<std::size_t>(options_.max_ops);
  {
    const Looking looking(*this);
    const std::uint32_t slabs = slab_count_.load(std::memory_order_acquire);
    for (std::uint32_t s = 0; s < slabs; ++s)
      for (Op& op : slabs_[s].load(std::memory_order_relaxed)->ops) {
        const Pinned pinned(*this, op);
        if (!pinned || pinned.passing()) continue;
        RareParts<P>& parts = rare(&op);
        LookedOp o{};
        o.id = (generation_of(pinned.word()) & 0xffffffffu) << 32 | op.index;
        o.name = op.name;
        o.file = op.where.file_name();
        o.line = op.where.line();
        o.kind = op.kind;
        o.lane = op.kind == OpKind::body ? std::uint16_t{op.lane} : std::uint16_t{0};
        o.running = (op.kind == OpKind::body || op.kind == OpKind::replay) && pinned.begun();
        o.returned = op.is(kOnStream) ? op.phase.load(std::memory_order_relaxed) == Phase::issued
                                      : parts.returned.load(std::memory_order_relaxed);
        o.on_stream = op.is(kOnStream);
        if (op.kind == OpKind::borrow)
          if (const Slot<P>* slot = parts.borrower.load(std::memory_order_relaxed))
            o.borrower = static_cast<std::int32_t>(slot->number);
        o.first = static_cast<std::uint32_t>(seen.accesses.size());
        for (const Token<P>& t : tokens(&op)) {
          const std::uint32_t state = t.state.load(std::memory_order_acquire);
          if (state & kDone) continue;  // from the record's last use, or the variable may be gone
          seen.accesses.push_back({t.variable, &t, state & kNext ? t.next : nullptr,
                                   static_cast<std::uint32_t>(seen.ops.size()), t.mode,
                                   (state & (t.exclusive() ? kWriteIssued : kReadIssued)) != 0,
                                   (state & (t.exclusive() ? kWriteComplete : kReadComplete)) != 0});
          if (std::string& name = seen.variables[t.variable]; name.empty()) name = name_of(*t.variable);
        }
        o.count = static_cast<std::uint32_t>(seen.accesses.size()) - o.first;
        seen.ops.push_back(o);
      }
  }
  {
    std::lock_guard lock(waits_.elsewhere_mutex);
    for (const Elsewhere* w = waits_.elsewhere; w; w = w->next) seen.waits.push_back({w->target, w->inside, w->core});
  }
  std::lock_guard lock(slots_mutex_);
  for (const auto& slot : slots_) {
    const std::uint64_t target = slot->waits_for.load(std::memory_order_acquire);
    const std::uint64_t inside = slot->waits_in.load(std::memory_order_acquire);
    if (target && slot->waits_for.load(std::memory_order_acquire) == target) seen.waits.push_back({target, inside});
  }
  return seen;
}

/// The words of all records: enough to see which have not moved.
template <class P>
std::vector<std::uint64_t> Core<P>::op_words() {
  std::vector<std::uint64_t> words;
  const std::uint32_t slabs = slab_count_.load(std::memory_order_acquire);
  words.reserve(std::size_t{slabs} * kSlabOps);
  for (std::uint32_t s = 0; s < slabs; ++s)
    for (const Op& op : slabs_[s].load(std::memory_order_relaxed)->ops) {
      const bool begun = op.phase.load(std::memory_order_relaxed) != Phase::queued;
      words.push_back(op.word.load(std::memory_order_relaxed) | (begun ? std::uint64_t{kRunning} : 0));
    }
  return words;
}

template <class P>
std::string Core<P>::value_state(const VariableBase* variable) {
  const Mark mark = static_cast<const Node*>(variable)->mark.load(std::memory_order_relaxed);
  if (mark == Mark::none) return "no error";
  if (mark == Mark::empty) return "no value yet";
  const ErrorRef error = error_of(variable);
  return std::string(mark == Mark::torn ? "poisoned (torn)" : "poisoned (intact)") +
         (error ? " by " + error->to_string() : "");
}

/// Of an op that is over.
template <class P>
std::string Core<P>::outcome(std::uint32_t index, std::uint64_t generation) {
  const ErrorRef error = failure_of(index, generation);
  return error ? "done, with the error " + error->to_string() : "done";
}

}  // namespace sluice::detail
