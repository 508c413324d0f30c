// Core<P>, what threads keep: slots, op records and their way home.
#pragma once

#include "sluice/engine/detail/at_exit.h"
#include "sluice/engine/detail/core.h"

namespace sluice::detail {

/// Which slot the calling thread has in which engine; gives them back when the thread ends.
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
    for (Entry& e : entries_)
      if (auto core = e.core.lock()) e.release(*core, e.slot);
  }
  void* find(std::uint64_t uid) {
    for (Entry& e : entries_)
      if (e.uid == uid) {
        slot_hint = {uid, e.slot};
        return e.slot;
      }
    return nullptr;
  }
  void add(Entry entry) {
    std::erase_if(entries_, [](const Entry& e) { return e.core.expired(); });
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
  Slot<P>* slot = nullptr;
  {
    std::lock_guard lock(slots_mutex_);
    for (auto& s : slots_)
      if (!s->taken.load(std::memory_order_relaxed)) {
        slot = s.get();
        break;
      }
    if (!slot) {
      slots_.push_back(std::make_unique<Slot<P>>());
      slot = slots_.back().get();
      slot->number = static_cast<std::uint32_t>(slots_.size() - 1);
    }
    slot->taken.store(true, std::memory_order_relaxed);
  }
  slot_cache().add({uid_, slot, weak_from_this(),
                    [](CoreBase& core, void* s) { static_cast<Core&>(core).release_slot(*static_cast<Slot<P>*>(s)); }});
  return *slot;
}

template <class P>
void Core<P>::release_slot(Slot<P>& slot) {
  flush(slot);
  return_credits(slot, slot.credits);
  slot.credits = 0;
  // A Borrow that outlives its thread must not count as another thread's.
  if (slot.borrows.load(std::memory_order_seq_cst) != 0) return;
  std::lock_guard lock(slots_mutex_);
  slot.taken.store(false, std::memory_order_relaxed);
}

// ---- records

template <class P>
auto Core<P>::new_record(Slot<P>& slot) -> Op* {
  if (!slot.free) slot.free = slot.returned.exchange(nullptr, std::memory_order_acquire);
  if (!slot.free) {
    auto slab = std::make_unique<Slab>();
    std::lock_guard lock(slots_mutex_);
    const std::uint32_t number = slab_count_.load(std::memory_order_relaxed);
    if (number == kMaxSlabs)
      throw CapError("engine: more than " + std::to_string(kMaxSlabs * kSlabOps) + " op records");
    for (std::uint32_t i = kSlabOps; i-- > 0;) {
      Op& op = slab->ops[i];
      op.index = number * kSlabOps + i;
      op.rare = &slab->rare[i];
      op.owner = &slot;
      op.next = slot.free;
      slot.free = &op;
    }
    slabs_[number].store(slab.release(), std::memory_order_release);
    slab_count_.store(number + 1, std::memory_order_release);
  }
  Op* op = slot.free;
  slot.free = op->next;
  return op;
}

template <class P>
void Core<P>::reset(Op* op) noexcept {
  if (op->tokens != op->inline_tokens) delete[] op->tokens;
  op->tokens = op->inline_tokens;
  op->token_count = 0;
  if (op->closure && op->closure != op->storage) ::operator delete (op->closure, std::align_val_t{64});
  op->closure = nullptr;
  op->table = nullptr;
  if (op->scope.cancel) op->scope.cancel.reset();
  if (op->has_rare || op->failed || op->answered || op->device_failed) {
    *op->rare = {};
    op->has_rare = op->failed = op->answered = op->device_failed = op->traced = false;
  }
  op->wrote_nothing = op->skipped = op->finishing = op->on_stream = op->async = false;
}

/// Back to the slot that it came from: at once to one's own, in batches to another's.
template <class P>
void Core<P>::recycle(Op* op) {
  reset(op);
  Slot<P>& slot = my_slot();
  if (op->owner == &slot) {
    op->next = slot.free;
    slot.free = op;
    return;
  }
  if (slot.return_owner != op->owner) return_batch(slot);
  slot.return_owner = op->owner;
  op->next = slot.return_head;
  slot.return_head = op;
  if (!slot.return_tail) slot.return_tail = op;
  if (++slot.return_count >= 32) return_batch(slot);
}

template <class P>
void Core<P>::return_batch(Slot<P>& slot) {
  if (!slot.return_head) return;
  auto& list = slot.return_owner->returned;
  Op* first = list.load(std::memory_order_relaxed);
  do slot.return_tail->next = first;
  while (!list.compare_exchange_weak(first, slot.return_head, std::memory_order_release, std::memory_order_relaxed));
  slot.return_head = slot.return_tail = nullptr;
  slot.return_owner = nullptr;
  slot.return_count = 0;
}

/// What a thread holds back in batches goes home: before it leaves, waits or blocks.
template <class P>
void Core<P>::flush(Slot<P>& slot) {
  return_batch(slot);
  if (slot.returned_credits) return_credits(slot, std::exchange(slot.returned_credits, 0));
}

}  // namespace sluice::detail
