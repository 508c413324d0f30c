// Core<P>, pushing: checks, accesses, linking.
#pragma once

#include <algorithm>
#include <functional>

#include "sluice/engine/detail/core.h"
#include "sluice/engine/detail/thread_object.h"

namespace sluice::detail {

// ---- checks

template <class P>
void Core<P>::bad_use(const PushOptions& options, const std::source_location& where, const std::string& what) const {
  const char* name = options.name ? options.name : options.op ? options.op->name : "push";
  throw UsageError("[" + std::string(name) + "] " + call_site(where) + ": " + what);
}

template <class P>
void Core<P>::refuse_forked(const char* what) const {
  if (forked_.load(std::memory_order_relaxed))
    throw ForkedError("[" + std::string(what) + "] the engine was made before this process was forked");
}

template <class P>
void Core<P>::refuse_stopped(const PushOptions& options, const std::source_location& where) const {
  const char* name = options.name ? options.name : options.op ? options.op->name : "push";
  refuse_forked(name);
  throw StoppedError("[" + std::string(name) + "] " + call_site(where) + ": the engine was stopped");
}

/// Lanes stand in one order: I/O, then those of each device (the constructor).
template <class P>
[[gnu::always_inline]] inline Lane<P>* Core<P>::lane_for(const Place& place) const {
  if (place.lane >= LaneKind::io) return place.lane == LaneKind::io ? lanes_.all.front().get() : nullptr;
  const auto kind = static_cast<std::size_t>(place.device.kind);
  if (kind >= kDeviceKinds || place.device.index >= lanes_.devices[kind].count) return nullptr;
  return lanes_
      .all[lanes_.devices[kind].first_lane + std::size(kDeviceLanes) * place.device.index +
           static_cast<std::size_t>(place.lane)]
      .get();
}

template <class P>
[[gnu::always_inline]] inline void Core<P>::check(std::span<const Access> accesses, const PushOptions& options,
                                                  const std::source_location& where) const {
  if (options.priority < 0 || options.priority >= kPriorities || accesses.size() > kMaxAccesses) [[unlikely]]
    refuse(accesses, options, where);
  for (const Access& a : accesses) prefetch_to_write(a.variable);  // its tail is to change
  for (const Access& a : accesses)
    if (!a.variable || a.variable->core != this) [[unlikely]]
      refuse(accesses, options, where);
}

/// Says what is wrong with a push.
template <class P>
void Core<P>::refuse(std::span<const Access> accesses, const PushOptions& options,
                     const std::source_location& where) const {
  for (const Access& a : accesses) {
    if (!a.variable) bad_use(options, where, "an access names no variable");
    if (a.variable->core != this)
      bad_use(options, where,
              "variable '" + std::string(a.variable->name ? a.variable->name : "") + "' belongs to another engine");
  }
  if (options.priority < 0 || options.priority >= kPriorities)
    bad_use(options, where, "priority " + std::to_string(options.priority) + " is not in 0..7");
  if (accesses.size() > kMaxAccesses)
    bad_use(options, where,
            std::to_string(accesses.size()) + " accesses; " + std::to_string(kMaxAccesses) + " are the most");
}

// ---- push

/// All accesses of a push, in the order in which they are locked, each variable once.
template <class P>
auto Core<P>::join(std::span<const Access> accesses, VariableBase* sequence) -> std::vector<Joined> {
  std::vector<Joined> all;
  all.reserve(accesses.size() + 1);
  const auto add = [&](VariableBase* variable, AccessMode mode) {
    all.push_back({static_cast<Node*>(variable), variable->number, static_cast<std::uint16_t>(all.size()), mode});
  };
  for (const Access& a : accesses) add(a.variable, a.mode);
  if (sequence) add(sequence, AccessMode::order);
  const auto before = [](const Joined& a, const Joined& b) {
    if (a.number != b.number) return a.number < b.number;
    return a.variable != b.variable ? std::less<>()(a.variable, b.variable) : a.position < b.position;
  };
  if (!std::is_sorted(all.begin(), all.end(), before)) std::sort(all.begin(), all.end(), before);
  std::size_t n = 0;
  for (const Joined& a : all) {
    if (n > 0 && all[n - 1].variable == a.variable) {
      if (all[n - 1].mode != a.mode) all[n - 1].mode = AccessMode::update;
    } else {
      all[n++] = a;
    }
  }
  all.resize(n);
  return all;
}

template <class P>
[[gnu::always_inline]] inline void Core<P>::fill(Token<P>& t, Op* op, Node* variable, AccessMode mode,
                                                 std::size_t position) {
  t.variable = variable;
  t.mode = mode;
  t.position = static_cast<std::uint16_t>(position);
  t.op = op;
  t.next = nullptr;
  t.heal = false;
}

/// For more accesses than a record has room for, in any order.
template <class P>
[[gnu::noinline]] void Core<P>::set_many_accesses(Op* op, std::span<const Access> accesses, VariableBase* sequence) {
  RareParts<P>& parts = rare(op);
  parts.tokens = std::make_unique<Token<P>[]>(accesses.size() + (sequence ? 1 : 0));
  op->path |= kManyTokens;
  // Accesses that are named in the order of locking need no other list.
  int n = 0;
  const Node* last = nullptr;
  for (const Access& a : accesses) {
    auto* const node = static_cast<Node*>(a.variable);
    if (last && !locked_before(last, node)) break;
    fill(parts.tokens[static_cast<std::size_t>(n)], op, node, a.mode, static_cast<std::size_t>(n));
    last = node;
    ++n;
  }
  if (sequence || static_cast<std::size_t>(n) < accesses.size()) {
    n = 0;
    for (const Joined& a : join(accesses, sequence))
      fill(parts.tokens[static_cast<std::size_t>(n++)], op, a.variable, a.mode, a.position);
  }
  parts.token_count = n;
}

template <class P>
[[gnu::always_inline]] inline void Core<P>::set_accesses(Op* op, std::span<const Access> accesses,
                                                         VariableBase* sequence) {
  if (accesses.size() == 1 && !sequence) {  // what most ops have
    fill(op->inline_tokens[0], op, static_cast<Node*>(accesses[0].variable), accesses[0].mode, 0);
    op->path |= std::uint16_t{1} << kCountShift;
    return;
  }
  const std::size_t count = accesses.size() + (sequence ? 1 : 0);
  if (count > static_cast<std::size_t>(Op::kInlineTokens)) return set_many_accesses(op, accesses, sequence);
  Token<P>* const list = op->inline_tokens;
  int n = 0;
  for (std::size_t k = 0; k < count; ++k) {
    const Access a = k < accesses.size() ? accesses[k] : Access{sequence, AccessMode::order};
    auto* node = static_cast<Node*>(a.variable);
    int i = n;  // insertion keeps them sorted, equal variables joined
    while (i > 0 && locked_before(node, list[i - 1].variable)) --i;
    if (i > 0 && list[i - 1].variable == node) {
      Token<P>& t = list[i - 1];
      if (t.mode != a.mode) t.mode = AccessMode::update;
      continue;
    }
    for (int j = n; j > i; --j) fill(list[j], op, list[j - 1].variable, list[j - 1].mode, list[j - 1].position);
    fill(list[i], op, node, a.mode, k);
    ++n;
  }
  op->path |= static_cast<std::uint16_t>(n << kCountShift);
}

/// One order for all pushers: that in which the variables were made, which is the same in every run; addresses where
/// the numbers came round.
template <class P>
bool Core<P>::locked_before(const Node* a, const Node* b) {
  return a->number != b->number ? a->number < b->number : std::less<>()(a, b);
}

template <class P>
OpenPush Core<P>::begin_push(std::span<const Access> accesses, std::size_t closure_size, std::size_t closure_align,
                             const PushOptions& options, const std::source_location& where) {
  check(accesses, options, where);
  const ScopeState& scope = ThreadObject<ScopeState>::get();  // current_scope(), without a call
  if (scope.sequence && scope.sequence.get()->core != this)
    bad_use(options, where, "the scope's sequence variable belongs to another engine");
  const Place place = options.on.given ? options.on : Place(scope.device);
  Lane<P>* lane = lane_for(place);
  if (!lane)
    bad_use(options, where,
            place.lane > LaneKind::io ? "no lane of kind " + std::to_string(static_cast<int>(place.lane))
                                      : no_device(place.device));
  if (thread_state().recorder) return record(accesses, closure_size, closure_align, options, where, *lane);
  if (stopped_.load(std::memory_order_acquire) && !in_op()) refuse_stopped(options, where);
  if (in_op() && thread_state().operation->kind == OpKind::captured)
    bad_use(options, where, "a captured op may not push");
  Slot<P>& slot = my_slot();
  // The caps before all else: while this thread blocks it must hold no reference.
  take_credit(slot, options, where);
  Op* op = nullptr;
  void* closure = nullptr;
  std::size_t counted = 0;
  try {
    if (options.bytes > caps_.small_bytes) counted = take_bytes(slot, options, where);
    op = new_record(slot);
    op->path = static_cast<std::uint16_t>(options.priority << kPriorityShift | lane->path);
    closure = op->storage;
    if (closure_size > Operation::kInlineClosure || closure_align > alignof(std::max_align_t)) {
      closure = ::operator new (closure_size, std::align_val_t{64});
      new (op->storage) void*(closure);
      op->path |= kHeapClosure;
    }
    set_accesses(op, accesses, scope.sequence.get());
    if (lane->queue) {
      prepare_stream_uses(op);
      op->troubled = false;
    }
  } catch (...) {
    if (counted) caps_.bytes.fetch_sub(counted);
    if (op) give_back(op);
    ++slot.credits;
    end_link(slot);
    throw;
  }
  const Device scope_device = place.lane == LaneKind::io ? scope.device : place.device;
  op->kind = OpKind::body;
  op->name = options.name ? options.name : options.op ? options.op->name : "op";
  op->info = options.op;
  op->where = where;
  op->tag = scope.tag;
  op->flags = scope.flags;
  op->scope_device = scope_device;
  op->lane = lane->index;
  op->wrote_nothing = op->skipped = false;
  if ((scope.tag || scope.flags || scope.cancel || scope.layer || scope_device != lane->device) && !options.scopeless)
    op->path |= kOwnScope;
  if (scope.layer) {
    op->path |= kHasLayer;
    rare(op).layer = scope.layer;
  }
  if (options.on_poison != OnPoison::skip) {
    op->path |= kSeesPoison;
    if (options.on_poison == OnPoison::always) {
      op->path |= kHasRare;
      rare(op).always = true;
    }
  }
  if (counted || scope.cancel) {
    op->path |= kHasRare;
    rare(op).bytes = counted;
    rare(op).cancel = scope.cancel;
  }
  // Counts one more push, and says that it is being linked (begin_link). Either a stop() sees this push in flight, or
  // the push sees the stop.
  slot.pushes.store((slot.pushes.load(std::memory_order_relaxed) + 2) | 1, std::memory_order_release);
  P::light_fence();
  if (stopped_.load(std::memory_order_acquire) && !in_op()) {
    abandon_push(op);
    refuse_stopped(options, where);
  }
  return {op, closure};
}

template <class P>
void Core<P>::name_accesses(Operation* operation, std::span<const Access> accesses, const PushOptions& options,
                            const std::source_location& where) {
  check(accesses, options, where);
  Op* op = static_cast<Op*>(operation);
  op->path = static_cast<std::uint16_t>(op->path & ~(7u << kCountShift));  // a sequence alone
  set_accesses(op, accesses, ThreadObject<ScopeState>::get().sequence.get());
  if (op->is(kOnStream)) prepare_stream_uses(op);
}

/// From here to end_link a thread that looks for a deadlock sees that the calling thread moves. The order of memory
/// does not matter: the looking thread waits behind what is linked after this, or sees what is done after this.
template <class P>
void Core<P>::begin_link(Slot<P>& slot) {
  slot.pushes.store(slot.pushes.load(std::memory_order_relaxed) | 1, std::memory_order_relaxed);
}

template <class P>
void Core<P>::end_link(Slot<P>& slot) {
  slot.pushes.store(slot.pushes.load(std::memory_order_relaxed) & ~std::uint64_t{1}, std::memory_order_release);
}

template <class P>
void Core<P>::abandon_push(Operation* operation) noexcept {
  if (operation->kind == OpKind::captured) return;  // without a closure it is left out
  Op* op = static_cast<Op*>(operation);
  Slot<P>& slot = my_slot();
  slot.pushes.store(slot.pushes.load(std::memory_order_relaxed) - 2, std::memory_order_seq_cst);
  end_link(slot);
  if (op->is(kHasRare) && rare(op).bytes) caps_.bytes.fetch_sub(rare(op).bytes);
  ++slot.credits;
  give_back(op);
}

template <class P>
Ticket Core<P>::commit_push(Operation* operation, const ClosureTable& table) noexcept {
  if (operation->kind == OpKind::captured) {
    static_cast<Info*>(operation)->table = &table;
    return Ticket();
  }
  Op* op = static_cast<Op*>(operation);
  op->table = &table;
  Slot<P>& slot = my_slot();
  // Set by begin_push already, unless making the closure pushed something itself.
  if (!(slot.pushes.load(std::memory_order_relaxed) & 1)) begin_link(slot);
  if (table.async) op->path |= kAsync;
  if (const std::uint32_t trace = tracing_.load(std::memory_order_relaxed)) {
    op->path |= kHasRare;
    rare(op).traced = trace;
    rare(op).pushed_at = P::now();
  }
  const std::uint32_t index = op->index;
  // A thread that waits for earlier pushes knows of them by other means; a stop() counts them.
  const std::uint64_t generation = open_word(op, kLive);
  ReadyList<P> ready;
  if (link(op, ready)) {
    if (op->is(kHasRare) || op->is(kNoBody)) [[unlikely]] {
      ready.start.push(op);
    } else {
      tell<P>(Step::ready, op);
      enqueue(op, slot);
    }
  }
  if (!ready.empty()) process(ready, nullptr, nullptr);
  if (ready.host_waits) [[unlikely]]
    point_all();
  end_link(slot);
  if (options_.serial && !in_op()) drain_serial();
  return Ticket(this, index, generation);
}

/// A new generation, with a reference for each token, one for the op, and one for tokens on the heap.
template <class P>
[[gnu::always_inline]] inline std::uint64_t Core<P>::open_word(Op* op, std::uint64_t state) {
  const std::uint64_t generation = (generation_of(op->word.load(std::memory_order_relaxed)) + 1) & 0xffffffffu;
  const std::uint64_t references = tokens(op).size() + 1 + (op->is(kManyTokens) ? 1 : 0);
  op->phase.store(Phase::queued, std::memory_order_relaxed);
  op->word.store(generation << kGenerationShift | references * kOneReference | state, std::memory_order_release);
  return generation;
}

/// Links the op at one instant, and logs it if that is wanted. Returns true if the op misses no right; then the caller
/// starts it. Else another thread may run and recycle the op from here on.
template <class P>
[[gnu::always_inline]] inline bool Core<P>::link(Op* op, ReadyList<P>& ready) {
  const std::span<Token<P>> list = tokens(op);
  const int n = static_cast<int>(list.size());
  const bool later = op->is(kOnStream) || op->is(kAsync);
  if (options_.log_order) {
    log_mutex_.lock();
    try {
      const bool blocks = op->kind == OpKind::wait || op->kind == OpKind::borrow;
      log_.push_back({blocks ? 0 : id_of(op), op->name, in_op() ? id_seen(thread_state().operation) : 0,
                      op->is(kNoBody) && op->kind != OpKind::replay ? list[0].variable : nullptr});
    } catch (const std::bad_alloc&) {
      log_lost_ = true;  // take_order says so; the push goes on
    }
  }
  // A stream op counts its rights and the device's work, an async op its body and its Completion.
  const auto counts = [&](int missing) {
    if (!op->single() || later) op->start_pending.store(static_cast<std::int16_t>(missing), std::memory_order_relaxed);
    if (later)
      op->finish_pending.store(
          static_cast<std::int16_t>((op->is(kOnStream) ? missing + 1 : 1) + (op->is(kAsync) ? 1 : 0)),
          std::memory_order_relaxed);
  };
  bool startable = n == 0;
  if (n) {
    startable = Chain<P>::link(
        list.data(), n, ready, counts, [](Op* o) -> Atomic<std::int16_t>& { return o->finish_pending; },
        [this](Op* o, Node* unnamed) { retire(o, unnamed); });
  } else {
    counts(0);
  }
  if (options_.log_order) log_mutex_.unlock();
  return startable;
}

/// A record for a wait, a borrow or a recovery. It is outside of the caps, because a thread that blocks at the cap may
/// need it.
template <class P>
auto Core<P>::internal_op(OpKind kind, const Access& access, const std::source_location& where) -> Op* {
  static constexpr const char* names[] = {"op", "wait", "borrow", "recover"};
  Op* op = new_record(my_slot());
  op->path = kNoBody | kSeesPoison | (kind == OpKind::recover ? 0 : kHasRare);
  set_accesses(op, {&access, 1});
  op->table = nullptr;
  op->kind = kind;
  op->name = names[static_cast<int>(kind)];
  op->info = nullptr;
  op->where = where;
  op->wrote_nothing = op->skipped = false;
  // A recovery is a push like others, except that it is outside of the caps and cannot be cancelled.
  open_word(op, kLive | (kind == OpKind::recover ? kRunning : kInternal));
  return op;
}

}  // namespace sluice::detail
