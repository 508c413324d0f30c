// Core<P>, what threads keep: slots and op records, and how they are given back.
#pragma once

#include "sluice/engine/detail/at_exit.h"
#include "sluice/engine/detail/core.h"

namespace sluice::detail {

/// The slots that the calling thread has, one for each engine. Gives them back when the thread ends.
class SlotCache {
 public:
  struct Entry {
    std::uint64_t uid;
    void* slot;
    std::weak_ptr<CoreBase> core;
    void (*release)(CoreBase& core, void* slot);
  };
  ~SlotCache() {
    slot_hint = {};
    while (!entries_.empty()) {
      const Entry e = std::move(entries_.back());
      entries_.pop_back();
      if (auto core = e.core.lock()) e.release(*core, e.slot);
    }
  }
  void* find(std::uint64_t uid) {
    for (Entry& e : entries_)
      if (e.uid == uid) {
        slot_hint = {uid, e.slot};
        return e.slot;
      }
    return nullptr;
  }
  /// Makes room for one more: after this add() cannot fail.
  void reserve() {
    std::erase_if(entries_, [](const Entry& e) { return e.core.expired(); });
    entries_.reserve(entries_.size() + 1);
  }
  void add(Entry entry) noexcept {
    slot_hint = {entry.uid, entry.slot};
    entries_.push_back(std::move(entry));
  }

 private:
  std::vector<Entry> entries_;
};
SlotCache& slot_cache();

template <class P>
Slot<P>& Core<P>::find_slot() {
  if (void* found = slot_cache().find(uid_)) return *static_cast<Slot<P>*>(found);
  arm_exit_wait();
  slot_cache().reserve();
  Slot<P>* slot = nullptr;
  {
    std::lock_guard lock(slots_mutex_);
    for (std::size_t i = 0; idle_slots_ > 0 && !slot; ++i)
      if (!slots_[i]->taken.load(std::memory_order_relaxed)) {
        slot = slots_[i].get();
        --idle_slots_;
      }
    if (!slot) {
      slots_.push_back(new_slot());
      slot = slots_.back().get();
      slot->number = static_cast<std::uint32_t>(slots_.size() - 2);  // the first is the spare
    }
    slot->taken.store(true, std::memory_order_relaxed);
  }
  slot_cache().add({uid_, slot, weak_from_this(),
                    [](CoreBase& core, void* s) { static_cast<Core&>(core).release_slot(*static_cast<Slot<P>*>(s)); }});
  return *slot;
}

template <class P>
std::unique_ptr<Slot<P>> Core<P>::new_slot() const {
  auto slot = std::make_unique<Slot<P>>();
  const CounterStart& from = options_.counters;
  slot->pushes.store(from.pushes & ~std::uint64_t{1}, std::memory_order_relaxed);
  slot->completed.store(from.pushes & ~std::uint64_t{1}, std::memory_order_relaxed);
  slot->batch.begin_at(from.batch);
  return slot;
}

template <class P>
void Core<P>::release_slot(Slot<P>& slot) {
  if (forked_.load(std::memory_order_relaxed)) return;
  flush(slot);
  return_credits(slot, slot.credits, true);
  slot.credits = 0;
  disown_borrows(slot);
  std::lock_guard lock(slots_mutex_);
  slot.taken.store(false, std::memory_order_relaxed);
  ++idle_slots_;
}

/// A slot for the calling thread where it cannot do without one. While there is no memory for a slot of its own, the
/// thread has the engine's spare slot to itself.
template <class P>
class Core<P>::AnySlot {
 public:
  explicit AnySlot(Core& core) : core_(core) {
    try {
      slot_ = &core.my_slot();
    } catch (const std::bad_alloc&) {
      core.spare_mutex_.lock();
      slot_ = core.spare_;
      saved_ = std::exchange(slot_hint, SlotHint{core.uid_, slot_});
      spare_ = true;
    }
  }
  ~AnySlot() {
    if (!spare_) return;
    core_.flush(*slot_);
    core_.return_credits(*slot_, std::exchange(slot_->credits, 0), true);
    slot_hint = saved_;
    core_.spare_mutex_.unlock();
  }
  AnySlot(const AnySlot&) = delete;
  AnySlot& operator=(const AnySlot&) = delete;
  Slot<P>& slot() const { return *slot_; }
  bool spare() const { return spare_; }

 private:
  Core& core_;
  Slot<P>* slot_ = nullptr;
  SlotHint saved_;
  bool spare_ = false;
};

// ---- records

/// A free record, marked as taken. The thread that finishes the op frees the record by one store, in a cache line that
/// it has anyway. There is no list, and ops that are pushed one after another lie one after another.
template <class P>
[[gnu::always_inline]] inline auto Core<P>::new_record(Slot<P>& slot) -> Op* {
  Op* op = slot.cursor;
  if (op == slot.block_end || (op->word.load(std::memory_order_acquire) & kInUse)) op = find_record(slot);
  slot.cursor = op + 1;
  prefetch(op, kAhead / 2, 0, 128, 192);
  op->word.store(op->word.load(std::memory_order_relaxed) | kReserved, std::memory_order_relaxed);
  return op;
}

/// The record that the thread took last; null where there is none before the cursor.
template <class P>
auto Core<P>::last_record(const Slot<P>& slot) const -> const Op* {
  return slot.cursor && slot.cursor != slot.blocks[slot.block] ? slot.cursor - 1 : nullptr;
}

/// Looks from the cursor on, block by block. It goes back to the first block as soon as that is free, so that few ops
/// in flight stay in few cache lines. If half of the blocks of a lap were full it adds a quarter more slabs.
template <class P>
auto Core<P>::find_record(Slot<P>& slot) -> Op* {
  const auto is_free = [](const Op& op) { return !(op.word.load(std::memory_order_acquire) & kInUse); };
  for (;;) {
    for (; slot.cursor != slot.block_end; ++slot.cursor)
      if (is_free(*slot.cursor)) return slot.cursor;
    if (slot.blocks.empty()) {
      add_slabs(slot);
      slot.block = slot.blocks.size() - 1;
    }
    const bool restart = slot.block > 0 && is_free(slot.blocks[0][0]) && is_free(slot.blocks[0][kBlockOps - 1]);
    slot.block = restart ? 0 : (slot.block + 1) % slot.blocks.size();
    if (slot.block == 0) slot.full_blocks = 0;
    Op* const block = slot.blocks[slot.block];
    slot.cursor = slot.block_end = block + kBlockOps;
    // Four records show whether it is worth looking at all.
    for (std::uint32_t i = 0; i < kBlockOps; i += kBlockOps / 4)
      if (is_free(block[i])) slot.cursor = block;
    if (slot.cursor != slot.block_end || 2 * ++slot.full_blocks < slot.blocks.size()) continue;
    try {
      add_slabs(slot);
    } catch (const std::bad_alloc&) {
      if (slot.full_blocks >= slot.blocks.size()) throw;  // not before every block was looked at
    }
  }
}

/// Puts new slabs where the cursor goes next. If there are many threads each of them begins with one block, because
/// most of them only run ops in whose bodies other threads are blocked.
template <class P>
void Core<P>::add_slabs(Slot<P>& slot) {
  const bool crowd = slot.blocks.empty() && slot.number >= kCrowd;
  if (crowd) {
    slot.blocks.reserve(1);
    std::lock_guard lock(slots_mutex_);
    if (!spare_blocks_.empty()) {
      slot.blocks.push_back(spare_blocks_.back());
      spare_blocks_.pop_back();
      return;
    }
  }
  const std::size_t count = 1 + slot.blocks.size() / (4 * kSlabOps / kBlockOps);
  for (std::size_t k = 0; k < count; ++k) {
    auto slab = std::make_unique<Slab>();
    slot.blocks.reserve(slot.blocks.size() + kSlabOps / kBlockOps);
    std::lock_guard lock(slots_mutex_);
    const std::uint32_t number = slab_count_.load(std::memory_order_relaxed);
    if (number == kMaxSlabs)
      throw CapError("engine: more than " + std::to_string(kMaxSlabs * kSlabOps) + " op records");
    const std::size_t at = slot.blocks.empty() ? 0 : slot.block + 1;
    for (std::uint32_t i = 0; i < kSlabOps; ++i) {
      slab->ops[i].index = number * kSlabOps + i;
      slab->ops[i].word.store(std::uint64_t{options_.counters.generation} << kGenerationShift,
                              std::memory_order_relaxed);
    }
    if (crowd) spare_blocks_.reserve(spare_blocks_.size() + kSlabOps / kBlockOps);
    for (std::uint32_t i = kSlabOps; crowd && i > kBlockOps; i -= kBlockOps)
      spare_blocks_.push_back(&slab->ops[i - kBlockOps]);
    for (std::uint32_t i = crowd ? kBlockOps : kSlabOps; i > 0; i -= kBlockOps)
      slot.blocks.insert(slot.blocks.begin() + static_cast<std::ptrdiff_t>(at), &slab->ops[i - kBlockOps]);
    slabs_[number].store(slab.release(), std::memory_order_relaxed);
    slab_count_.store(number + 1, std::memory_order_release);
  }
  slot.full_blocks = 0;
}

/// Gives back a record that was taken and not pushed.
template <class P>
void Core<P>::give_back(Op* op) noexcept {
  if (op->is(kHeapClosure)) ::operator delete (op->closure(), std::align_val_t{64});
  if (op->is(kManyTokens)) rare(op).tokens.reset();
  if (op->is(kHasRare)) rare(op).clear();
  op->word.store(op->word.load(std::memory_order_relaxed) & ~std::uint64_t{kInUse}, std::memory_order_relaxed);
}

/// Drops references; with `all` the op is over, and its state bits are dropped too. Returns what the word was. The last
/// reference frees the record.
template <class P>
[[gnu::always_inline]] inline std::uint64_t Core<P>::drop(Op* op, std::uint64_t references, bool all) noexcept {
  const bool many = op->is(kManyTokens);
  std::uint64_t old, now;
  if (all) {
    op->phase.store(Phase::ending, std::memory_order_relaxed);
    P::light_fence();
    const bool alone = outsiders_.load(std::memory_order_acquire) == 0;
    old = op->word.load(std::memory_order_relaxed);  // only outsiders change it, and that came with their count
    if (alone && (old & kInUse) == (references * kOneReference | kLive)) [[likely]] {
      op->word.store(old & ~std::uint64_t{kInUse}, std::memory_order_release);
      return old;
    }
    do now = (old & ~std::uint64_t{kStateBits}) - references * kOneReference;
    while (!op->word.compare_exchange_weak(old, now, std::memory_order_seq_cst, std::memory_order_relaxed));
  } else {
    old = op->word.fetch_sub(references * kOneReference, std::memory_order_acq_rel);
    now = old - references * kOneReference;
  }
  // The tokens on the heap have a reference of their own.
  if (many && (now & kInUse) == kOneReference) {
    rare(op).tokens.reset();
    op->word.store(now - kOneReference, std::memory_order_release);
  }
  return old;
}

/// Gives back what a thread holds back in batches: called before the thread leaves, waits or blocks.
template <class P>
void Core<P>::flush(Slot<P>& slot) {
  if (slot.returned_credits) return_credits(slot, std::exchange(slot.returned_credits, 0), true);
}

}  // namespace sluice::detail
