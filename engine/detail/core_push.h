// Core<P>, pushing: checks, accesses, linking.
#pragma once

#include "sluice/engine/detail/core.h"

namespace sluice::detail {

// ---- checks

template <class P>
void Core<P>::bad_use(const PushOptions& options, const std::source_location& where, const std::string& what) const {
  const char* name = options.name ? options.name : options.op ? options.op->name : "push";
  throw UsageError("[" + std::string(name) + "] " + to_string(where) + ": " + what);
}

template <class P>
void Core<P>::refuse_stopped(const PushOptions& options, const std::source_location& where) const {
  const char* name = options.name ? options.name : options.op ? options.op->name : "push";
  throw StoppedError("[" + std::string(name) + "] " + to_string(where) + ": the engine was stopped");
}

template <class P>
Lane<P>* Core<P>::lane_for(const Place& place) const {
  if (place.lane == LaneKind::io) return lanes_.front().get();
  for (auto& lane : lanes_)
    if (lane->device == place.device && lane->kind == place.lane) return lane.get();
  return nullptr;
}

template <class P>
void Core<P>::check(std::span<const Access> accesses, const PushOptions& options,
                    const std::source_location& where) const {
  for (const Access& a : accesses) {
    if (!a.variable) bad_use(options, where, "an access names no variable");
    if (a.variable->core != this)
      bad_use(options, where,
              "variable '" + std::string(a.variable->name ? a.variable->name : "") + "' belongs to another engine");
  }
  if (options.priority < 0 || options.priority >= kPriorities)
    bad_use(options, where, "priority " + std::to_string(options.priority) + " is not in 0..7");
}

// ---- push

template <class P>
void Core<P>::set_accesses(Op* op, std::span<const Access> accesses, VariableBase* sequence) {
  op->tokens = op->inline_tokens;
  const std::size_t count = accesses.size() + (sequence ? 1 : 0);
  if (count > static_cast<std::size_t>(Op::kInlineTokens)) op->tokens = new Token<P>[count];
  int n = 0;
  for (std::size_t k = 0; k < count; ++k) {
    const Access a = k < accesses.size() ? accesses[k] : Access{sequence, AccessMode::order};
    auto* node = static_cast<Node*>(a.variable);
    int i = n;  // insertion keeps them sorted, equal variables joined
    while (i > 0 && locked_before(node, op->tokens[i - 1].variable)) --i;
    if (i > 0 && op->tokens[i - 1].variable == node) {
      Token<P>& t = op->tokens[i - 1];
      if (t.mode != a.mode) t.mode = AccessMode::update;
      continue;
    }
    for (int j = n; j > i; --j) {
      op->tokens[j].variable = op->tokens[j - 1].variable;
      op->tokens[j].mode = op->tokens[j - 1].mode;
      op->tokens[j].position = op->tokens[j - 1].position;
    }
    Token<P>& t = op->tokens[i];
    t.variable = node;
    t.mode = a.mode;
    t.position = static_cast<std::uint16_t>(std::min<std::size_t>(k, 0xffff));
    ++n;
  }
  op->token_count = n;
  for (int i = 0; i < n; ++i) {
    Token<P>& t = op->tokens[i];
    t.state.store(0, std::memory_order_relaxed);
    t.op = op;
    t.next = nullptr;
    t.heal = false;
  }
}

/// One order for all pushers: that of making, which is the same in every run; addresses where the count came round.
template <class P>
bool Core<P>::locked_before(const Node* a, const Node* b) {
  return a->number != b->number ? a->number < b->number : std::less<>()(a, b);
}

/// Stream ops keep their events with the variable; most variables never have any.
template <class P>
void Core<P>::prepare_stream_uses(Op* op) {
  std::lock_guard lock(error_mutex_);
  for (int i = 0; i < op->token_count; ++i)
    if (auto& uses = op->tokens[i].variable->uses; !uses) uses = std::make_unique<StreamUses>();
}

template <class P>
Operation* Core<P>::begin_push(std::span<const Access> accesses, std::size_t closure_size, std::size_t closure_align,
                               const PushOptions& options, const std::source_location& where) {
  check(accesses, options, where);
  const ScopeState& scope = current_scope();
  const Place place = options.on.given ? options.on : Place(scope.device);
  if (scope.sequence && scope.sequence.get()->core != this)
    bad_use(options, where, "the scope's sequence variable belongs to another engine");
  Lane<P>* lane = lane_for(place);
  if (!lane) bad_use(options, where, "no device " + sluice::to_string(place.device) + " in this engine");
  if (stopped_.load(std::memory_order_acquire) && !in_op()) refuse_stopped(options, where);
  Slot<P>& slot = my_slot();
  Op* op = new_record(slot);
  try {
    if (closure_size <= Operation::kInlineClosure && closure_align <= alignof(std::max_align_t)) {
      op->closure = op->storage;
    } else {
      op->closure = ::operator new (closure_size, std::align_val_t{64});
    }
    // The caps before the accesses: while this thread blocks it must hold no reference.
    take_credit(slot, options, where);
    try {
      take_bytes(slot, options, where);
      if (options.bytes) op->has_rare = true, op->rare->bytes = options.bytes;
      set_accesses(op, accesses, scope.sequence.get());
      if (lane->stream) prepare_stream_uses(op);
    } catch (...) {
      if (op->has_rare) bytes_.fetch_sub(op->rare->bytes);
      ++slot.credits;
      throw;
    }
  } catch (...) {
    reset(op);
    op->next = slot.free;
    slot.free = op;
    throw;
  }
  op->kind = OpKind::body;
  op->name = options.name ? options.name : options.op ? options.op->name : "op";
  op->info = options.op;
  if (options.attributes) op->has_rare = true, op->rare->attributes = options.attributes;
  op->where = where;
  op->scope = scope;
  op->scope.sequence = {};
  op->place = place;
  op->scope.device = place.lane == LaneKind::io ? scope.device : place.device;
  op->priority = static_cast<std::uint8_t>(options.priority);
  op->on_poison = options.on_poison;
  op->lane = lane;
  op->on_stream = lane->stream != nullptr;
  // One push more, and being linked (begin_link). Either a stop() sees this push in flight, or the push sees the stop.
  slot.pushes.store((slot.pushes.load(std::memory_order_relaxed) + 2) | 1, std::memory_order_seq_cst);
  if (stopped_.load(std::memory_order_seq_cst) && !in_op()) {
    abandon_push(op);
    refuse_stopped(options, where);
  }
  return op;
}

/// A thread that looks for a deadlock sees the calling thread move from here to end_link.
template <class P>
void Core<P>::begin_link(Slot<P>& slot) {
  slot.pushes.store(slot.pushes.load(std::memory_order_relaxed) | 1, std::memory_order_seq_cst);
}

template <class P>
void Core<P>::end_link(Slot<P>& slot) {
  slot.pushes.store(slot.pushes.load(std::memory_order_relaxed) & ~std::uint64_t{1}, std::memory_order_release);
}

template <class P>
void Core<P>::abandon_push(Operation* operation) noexcept {
  Op* op = static_cast<Op*>(operation);
  Slot<P>& slot = my_slot();
  slot.pushes.store(slot.pushes.load(std::memory_order_relaxed) - 2, std::memory_order_seq_cst);
  end_link(slot);
  if (op->has_rare && op->rare->bytes) bytes_.fetch_sub(op->rare->bytes);
  ++slot.credits;
  op->table = nullptr;
  reset(op);
  op->next = slot.free;
  slot.free = op;
}

template <class P>
Ticket Core<P>::commit_push(Operation* operation) noexcept {
  Op* op = static_cast<Op*>(operation);
  op->async = op->table->async;
  Slot<P>& slot = my_slot();
  const std::uint64_t generation = generation_of(op->word.load(std::memory_order_relaxed)) + 1;
  // Set by begin_push already, unless making the closure pushed something itself.
  if (!(slot.pushes.load(std::memory_order_relaxed) & 1)) begin_link(slot);
  // Who waits for pushes of before knows of them by other means; a stop() counts them.
  op->word.store(generation << kGenerationShift | kLive, std::memory_order_release);
  if (tracing_.load(std::memory_order_relaxed)) {
    op->has_rare = op->traced = true;
    op->rare->pushed_at = P::now();
  }
  const std::uint32_t index = op->index;
  ReadyList<P> ready;
  link(op, ready);
  process(ready, nullptr, nullptr);
  end_link(slot);
  if (options_.serial && !in_op()) drain_serial();
  return Ticket(this, index, generation & 0xffffffffu);
}

/// Links the op at one instant (logged, if wanted) and lets it go: from here on another thread may run and recycle it.
template <class P>
void Core<P>::link(Op* op, ReadyList<P>& ready) {
  const int n = op->token_count;
  op->start_pending.store(n + 1, std::memory_order_relaxed);
  // Of a stream op: its rights, its body, its device work. Of an async op: its body, its Completion.
  op->finish_pending.store(op->on_stream ? n + 2 + op->async : 2, std::memory_order_relaxed);
  op->refs.store(n + 1, std::memory_order_relaxed);
  const auto retire_token = [this](Token<P>* t, bool idle) { retire(t, idle); };
  if (options_.log_order) {
    std::lock_guard lock(log_mutex_);
    if (op->kind != OpKind::borrow)
      log_.push_back({op->kind == OpKind::wait ? 0 : id_of(op), op->name,
                      in_op() ? id_of(static_cast<const Op*>(thread_state().operation)) : 0,
                      op->kind == OpKind::body ? nullptr : op->tokens[0].variable});
    if (n) Chain<P>::link(op, ready, retire_token);
  } else if (n) {
    Chain<P>::link(op, ready, retire_token);
  }
  if (op->start_pending.fetch_sub(1, std::memory_order_acq_rel) == 1) ready.push(op);
}

/// A record for a wait, a borrow or a recovery: outside the caps, because what blocks at the cap may need it.
template <class P>
auto Core<P>::internal_op(OpKind kind, std::span<const Access> accesses, const std::source_location& where) -> Op* {
  Slot<P>& slot = my_slot();
  Op* op = new_record(slot);
  try {
    set_accesses(op, accesses);
  } catch (...) {
    reset(op);
    op->next = slot.free;
    slot.free = op;
    throw;
  }
  static constexpr const char* names[] = {"op", "wait", "borrow", "recover"};
  op->kind = kind;
  op->name = names[static_cast<int>(kind)];
  op->info = nullptr;
  op->where = where;
  op->place = Place(cpu(0));
  op->on_poison = OnPoison::run;
  op->lane = nullptr;
  op->on_stream = false;
  const std::uint64_t generation = generation_of(op->word.load(std::memory_order_relaxed)) + 1;
  // A recovery is a push like others, but for the caps, and nothing can cancel it.
  op->word.store(generation << kGenerationShift | kLive | (kind == OpKind::recover ? kRunning : kInternal),
                 std::memory_order_seq_cst);
  return op;
}

}  // namespace sluice::detail
