// Core<P>: the engine for one policy. Declared here; the parts of its state are in core_parts.h, and what works on them
// is in core_records.h (slots, records), core_caps.h, core_push.h, core_lanes.h (queues, who starts drainers),
// core_drain.h (drainers, serial mode), core_run.h (bodies, finishing), core_async.h (Completions), core_stream.h and
// core_watch.h (ops on devices with streams: their issue, and how their end is learned), core_order.h (what the host
// comes after there), core_wait.h (waits, tickets), core_circles.h (waits that can never end), core_stop.h (wait_all,
// stop), core_capture.h and core_replay.h, core_errors.h (poison and roots) and core_explain.h (what is in flight, for
// those who ask).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sluice/engine/detail/captured.h"
#include "sluice/engine/detail/chain.h"
#include "sluice/engine/detail/core_parts.h"
#include "sluice/engine/detail/counters.h"
#include "sluice/engine/detail/device_queue.h"
#include "sluice/engine/detail/look.h"
#include "sluice/engine/detail/nodes.h"
#include "sluice/engine/detail/prefetch.h"
#include "sluice/engine/detail/slot.h"
#include "sluice/engine/engine.h"

namespace sluice::detail {

/// EngineOptions after the environment and the defaults were applied.
struct CoreOptions {
  bool serial = false;
  int threads = 1;
  int logical_cpus = 1;
  std::vector<std::shared_ptr<Provider>> providers;  ///< the first is the CPU devices'
  std::chrono::nanoseconds device_limit{0};
  std::uint64_t max_ahead = 0;  ///< 0: as many as the device takes
  std::int64_t max_ops = 16384;
  std::size_t max_bytes = std::size_t{4} << 30;
  bool log_order = false;
  CounterStart counters;
};

template <class P>
class Core final : public CoreBase {
 public:
  using Run = Runnable<P>;
  using Op = OpRecord<P>;
  using Captured = CapturedOp<P>;
  using Info = CapturedInfo<P>;
  using Recorded = ProgramState<P>;
  using Node = VariableNode<P>;
  using Wait = WaitState<P>;
  template <class T>
  using Atomic = typename P::template Atomic<T>;

  /// Made by make(), so that it lives until its last variable is gone: a handle may outlive the Engine.
  static std::shared_ptr<Core> make(const CoreOptions& options) {
    return std::shared_ptr<Core>(new Core(options), [](Core* core) { core->orphan(); });
  }
  ~Core() override;

  VariableBase* new_variable(const char* name, bool has_value) override;
  void delete_variable(VariableBase* variable) noexcept override;
  OpenPush begin_push(std::span<const Access> accesses, std::size_t closure_size, std::size_t closure_align,
                      const PushOptions& options, const std::source_location& where) override;
  void name_accesses(Operation* operation, std::span<const Access> accesses, const PushOptions& options,
                     const std::source_location& where) override;
  void abandon_push(Operation* operation) noexcept override;
  Ticket commit_push(Operation* operation, const ClosureTable& table) noexcept override;
  bool wait_variable(VariableBase* variable, std::chrono::nanoseconds limit, bool help,
                     const std::source_location& where) override;
  bool ticket_done(std::uint32_t index, std::uint64_t generation) override;
  bool ticket_wait(std::uint32_t index, std::uint64_t generation, std::chrono::nanoseconds limit) override;
  bool ticket_cancel(std::uint32_t index, std::uint64_t generation) override;
  void wait_all(bool help) override;
  void clear_errors() override;
  ErrorRef error_of(const VariableBase* variable) override;
  void heal(Operation* operation, const VariableBase* variable) override;
  bool cancelled(const Operation* operation) const override;
  ErrorRef skip_reason(const Operation* operation) const override;
  Ticket push_recover(VariableBase* variable, const std::source_location& where) override;
  Borrow borrow(Access access, const std::source_location& where) override;
  void complete(Operation* operation, std::exception_ptr error, ErrorKind kind, bool wrote_nothing) noexcept override;
  std::shared_ptr<ProgramBase> begin_capture(const char* name, const std::source_location& where) override;
  void end_capture(ProgramBase& program) override;
  Ticket replay(const std::shared_ptr<ProgramBase>& program, const PushOptions& options,
                const std::source_location& where) override;
  bool stop(StopMode mode, std::chrono::nanoseconds deadline) override;
  bool settle(std::chrono::nanoseconds limit) override;
  void forked() noexcept override;
  void on_unobserved(std::function<void(const ErrorRoot&)> hook) override;
  std::size_t in_flight() const override;
  int threads(Device device) const override;
  int device_count(DeviceKind kind) const override;
  std::shared_ptr<Provider> provider(Device device) const override;
  LaneStats lane_stats(const Place& place) const override;
  DeviceOp device_op(const Operation* operation) const override;
  const char* layer_path(const Operation* operation) const noexcept override { return path_of(layer_of(operation)); }
  void await_issued(DeviceKind kind) override;
  StreamEvent issued_point(const Operation* operation, const Stream* stream) const override;
  bool wait_on_device(const Stream* stream, const StreamEvent& point) override;
  std::uint64_t settled_errors(Device device) override;
  void start_trace() override;
  std::vector<TraceEvent> stop_trace() override;
  std::vector<LoggedPush> take_order() override;
  void stand_elsewhere(Elsewhere& wait) override;
  void go_on(Elsewhere& wait) override;
  Look look() override;
  std::vector<std::uint64_t> op_words() override;
  std::string value_state(const VariableBase* variable) override;
  std::string outcome(std::uint32_t index, std::uint64_t generation) override;

 private:
  explicit Core(const CoreOptions& options);
  void orphan() noexcept;

  static constexpr std::uint32_t kSlabOps = P::kSlabOps, kBlockOps = kSlabOps / 4;
  static constexpr std::int64_t kFarBehind = 512;   ///< with more ops in flight a worker prefetches records
  static constexpr std::uint64_t kLookAhead = 8;    ///< how many ops of a stream lane ahead a watcher prefetches
  static constexpr std::size_t kAhead = 16;         ///< how many records ahead a worker prefetches
  static constexpr std::size_t kClosureLine = 160;  ///< the closure's offset in a record
  static constexpr std::uint32_t kMaxSlabs = P::kMaxSlabs;
  static constexpr std::uint32_t kCrowd = 64;       ///< only so many threads get whole slabs of records
  static constexpr std::int32_t kFailedStarts = 3;  ///< after so many in a row, waiting threads run the lane's ops
  static constexpr int kStarvedTicks = 10;          ///< so long a wait goes on if no thread can be started for its ops
  static constexpr std::int64_t kLongestInterval = 10'000'000'000;  ///< ns, between two looks for circles
  struct Slab {
    Op ops[kSlabOps];
    RareParts<P> rare[kSlabOps];
  };

  // core_records.h, core_caps.h, core_push.h
  /// Prefetches lines, for writing, of the record that lies `ahead` records behind this one.
  template <class... Offsets>
  static void prefetch(const Run* op, std::size_t ahead, Offsets... offsets) {
    (prefetch_to_write(reinterpret_cast<const char*>(op) + ahead * sizeof(Op) + offsets), ...);
  }
  /// Prefetches the successors in the chains of an op that the caller runs: they will be written when the op is over.
  /// Returns the union of the states of its tokens.
  static std::uint32_t prefetch_successors(const Run* runnable) {
    if (runnable->is(kCaptured)) return kNext;
    const Op* op = static_cast<const Op*>(runnable);
    std::uint32_t states = 0;
    for (std::uint32_t i = 0, n = op->inline_count(); i < n; ++i) {
      const std::uint32_t state = op->inline_tokens[i].state.load(std::memory_order_acquire);
      states |= state;
      if (!(state & kNext)) continue;
      const Token<P>* const next = op->inline_tokens[i].next;
      prefetch_to_write(next);
      // The record that the token lies in, unless the token is on the heap.
      const auto record = reinterpret_cast<std::uintptr_t>(next) & ~(sizeof(Op) - 1);
      prefetch_to_write(reinterpret_cast<const void*>(record));
      prefetch_to_read(reinterpret_cast<const void*>(record + kClosureLine));
    }
    return states;
  }
  Slot<P>& my_slot() { return slot_hint.uid == uid_ ? *static_cast<Slot<P>*>(slot_hint.slot) : find_slot(); }
  Slot<P>& find_slot();
  std::unique_ptr<Slot<P>> new_slot() const;
  void release_slot(Slot<P>& slot);
  class AnySlot;
  /// A thread that neither pushes nor runs an op, but wants to change the op's word: to cancel the op, to be told of
  /// its end, or to hold its record. While an Outsider lives, ops begin and end by atomic exchanges of their word, else
  /// by plain stores. So an outsider may change the word of an op whose phase is not `ending`. Making one may take some
  /// microseconds.
  class Outsider {
   public:
    explicit Outsider(Core& core) : core_(core) {
      core_.outsiders_.fetch_add(1, std::memory_order_relaxed);
      P::heavy_fence();
    }
    ~Outsider() { core_.outsiders_.fetch_sub(1, std::memory_order_release); }
    Outsider(const Outsider&) = delete;
    Outsider& operator=(const Outsider&) = delete;

   private:
    Core& core_;
  };
  Op* new_record(Slot<P>& slot);
  Op* find_record(Slot<P>& slot);
  const Op* last_record(const Slot<P>& slot) const;
  bool all_over() const;
  std::int64_t twice_in_flight(std::uint64_t ending) const;
  void add_slabs(Slot<P>& slot);
  void give_back(Op* op) noexcept;
  std::uint64_t drop(Op* op, std::uint64_t references, bool all) noexcept;
  void flush(Slot<P>& slot);
  RareParts<P>& rare(const Op* op) const {
    return slabs_[op->index / kSlabOps].load(std::memory_order_relaxed)->rare[op->index % kSlabOps];
  }
  /// Where the op runs. What has no body runs nowhere: cpu(0).
  Device device_of(const Operation* operation) const {
    if (operation->kind == OpKind::captured) return lanes_.all[static_cast<const Info*>(operation)->lane]->device;
    return operation->kind == OpKind::body ? lanes_.all[static_cast<const Op*>(operation)->lane]->device : Device{};
  }
  const Layer* layer_of(const Operation* operation) const {
    if (operation->kind == OpKind::captured) return static_cast<const Info*>(operation)->layer;
    const Op* op = static_cast<const Op*>(operation);
    return op->is(kHasLayer) ? rare(op).layer : nullptr;
  }
  std::span<Token<P>> tokens(Op* op) const {
    if (!op->is(kManyTokens)) return {op->inline_tokens, op->inline_count()};
    return {rare(op).tokens.get(), static_cast<std::size_t>(rare(op).token_count)};
  }
  void check(std::span<const Access> accesses, const PushOptions& options, const std::source_location& where) const;
  void refuse(std::span<const Access> accesses, const PushOptions& options, const std::source_location& where) const;
  [[noreturn]] void bad_use(const PushOptions& options, const std::source_location& where,
                            const std::string& what) const;
  void refuse_forked(const char* what) const;
  [[noreturn]] void refuse_stopped(const PushOptions& options, const std::source_location& where) const;
  void take_credit(Slot<P>& slot, const PushOptions& options, const std::source_location& where);
  void wait_for_credit(Slot<P>& slot, const PushOptions& options, const std::source_location& where);
  bool grab_credits(Slot<P>& slot, std::int64_t floor);
  std::size_t take_bytes(Slot<P>& slot, const PushOptions& options, const std::source_location& where);
  void return_credits(Slot<P>& slot, std::int64_t count, bool idle);
  void wake_cap_waiters();
  template <class Full, class Little>
  bool park_at_cap(Full&& full, Little&& little);
  std::int64_t good_stretch() const { return std::max<std::int64_t>(options_.max_ops / 8, 1); }
  void prepare_stream_uses(Op* op);
  void set_accesses(Op* op, std::span<const Access> accesses, VariableBase* sequence = nullptr);
  struct Joined {
    Node* variable;
    std::uint32_t number;    ///< the variable's number
    std::uint16_t position;  ///< where the push first names it
    AccessMode mode;
  };
  static void fill(Token<P>& t, Op* op, Node* variable, AccessMode mode, std::size_t position);
  void set_many_accesses(Op* op, std::span<const Access> accesses, VariableBase* sequence);
  static std::vector<Joined> join(std::span<const Access> accesses, VariableBase* sequence);
  static bool locked_before(const Node* a, const Node* b);
  Op* internal_op(OpKind kind, const Access& access, const std::source_location& where);
  std::uint64_t open_word(Op* op, std::uint64_t state);
  std::uint64_t begin(Op* op);
  bool link(Op* op, ReadyList<P>& ready);
  void push_internal(Op* op);
  void begin_link(Slot<P>& slot);
  void end_link(Slot<P>& slot);
  Lane<P>* lane_for(const Place& place) const;
  std::string no_device(Device device) const;
  Op* record_at(std::uint32_t index) const {
    return &slabs_[index / kSlabOps].load(std::memory_order_relaxed)->ops[index % kSlabOps];
  }

  // core_lanes.h
  struct Drainer;
  void enqueue(Run* op, Slot<P>& slot);
  void keep_or_enqueue(Run* op, Slot<P>& slot, Lane<P>* here);
  void enqueue_all(Lane<P>& lane, int priority, Run* const* ops, std::size_t count);
  typename Slot<P>::Queue::Producer* producer_for(Slot<P>& slot, Lane<P>& lane, int priority);
  typename Slot<P>::Queue::Producer* new_producer(Slot<P>& slot, Lane<P>& lane, int priority, std::size_t at);
  bool is_looked_at(const Lane<P>& lane) const;
  void wake(Lane<P>& lane);
  void start_drainer(Lane<P>& lane);
  bool starts_fail() const;
  template <class Enough>
  void rescue(bool may_help, Enough&& enough);
  template <class Enough>
  void help(Lane<P>& lane, bool in_place, bool batches, Enough&& enough);
  Lane<P>* lane_to_help(bool wanted);
  bool has_work(const Lane<P>& lane) const;

  // core_drain.h
  Run* take_op(Drainer& d);
  void gather(Drainer& d);
  Run* take_queued(Drainer& d, int priority);
  Run* pass(Drainer& d, Run* op);
  Run* take_overflow(Lane<P>& lane);
  void drain(Lane<P>& lane, int width);
  void work(Drainer& d);
  template <class Enough>
  void drain_serial(Enough&& enough);
  void drain_serial() {
    drain_serial([] { return false; });
  }
  bool run_one_serial();
  void execute_serial(Run* op, Slot<P>& slot);
  void collect_queued();
  Run* take_needed(std::uint64_t target);
  template <class Told>
  void run_needed(std::uint64_t target, Told&& told, bool others);
  bool anything_queued() const;
  bool awaits_completions();

  // core_run.h
  bool ended_before(Op* op, std::uint64_t word);
  ErrorRef root_of_end(Op* op, std::uint64_t word);
  ErrorRef reason_to_skip(Op* op, std::uint64_t word);
  Run* execute(Run* runnable, Slot<P>& slot, Lane<P>* here);
  bool call_body(Op* op, Lane<P>& here);
  static void leave_body(Lane<P>& here);
  std::exception_ptr run_anywhere(Op* op, Lane<P>& lane);
  void execute_any(Op* op, std::uint64_t word, Slot<P>& slot, ReadyList<P>& ready);
  std::exception_ptr call(const ClosureTable& table, void* closure, Operation& operation, ScopeState scope,
                          Lane<P>& lane, bool async);
  static void restore_scope(ThreadState& state, const Lane<P>& here);
  static void reset_scope(ThreadState& state, const Lane<P>& here);
  void destroy_closure(Op* op) noexcept;
  void end_closure(Op* op, const void* confirms = nullptr) noexcept;
  void process(ReadyList<P>& ready, Lane<P>* here, Run** hand_off);
  void finish(Op* op, ReadyList<P>& ready, bool clean = false);
  void finish_clean(Op* op, Slot<P>& slot, ReadyList<P>& ready);
  void close(Op* op, Slot<P>& slot, std::uint64_t retired, bool counted, bool body);
  void tell_ticket_waiters(std::uint64_t id);
  void finish_internal(Op* op, ReadyList<P>& ready);
  void advance(Token<P>& token, std::uint32_t bits, ReadyList<P>& ready, Op* self, std::uint64_t& retired);
  void retire(Op* op, Node* unnamed);
  void delete_node(Node* node) noexcept;
  void end_node(Node* node) noexcept;
  Slot<P>* known_slot() const { return slot_hint.uid == uid_ ? static_cast<Slot<P>*>(slot_hint.slot) : nullptr; }
  void count_variable(Slot<P>* slot, int change) noexcept;
  void count_slowly(std::int64_t change) noexcept;
  void record_trace(Op* op, bool failed);
  void record_trace(const Captured* op, std::uint32_t thread, std::int64_t start, std::int64_t end, DeviceTimes device,
                    bool failed);
  void keep_event(Slot<P>& slot, std::uint32_t trace, TraceEvent&& event);

  // core_stream.h
  static VariableRare<P>& rare_of(Node& node);
  bool point(DeviceQueue<P>& queue, bool own = false);
  void point_all();
  bool wait_on_device(Run* run, DeviceQueue<P>& queue, std::uint64_t use);
  Lane<P>* lane_with(const Stream* stream) const;
  bool stream_waits(DeviceQueue<P>& queue, DeviceQueue<P>& other, std::size_t lane, std::uint64_t at);
  template <class Accesses>
  bool wait_on_devices(Run* op, DeviceQueue<P>& queue, const Accesses& accesses);
  bool make_room(DeviceQueue<P>& queue);
  std::uint64_t lock_place(DeviceQueue<P>& queue);
  void place(Op* op, DeviceQueue<P>& queue, std::uint64_t doubts, ReadyList<P>& ready);
  void issue(Op* op, std::uint64_t doubts, ReadyList<P>& ready);
  bool issue_plain(Op* op, Lane<P>& lane, ReadyList<P>& ready);
  void place_captured(Captured* op, DeviceQueue<P>& queue, std::uint64_t doubts);

  // core_watch.h
  void wake_watch(const DeviceQueue<P>& queue);
  void start_watch(Watch<P>& watch);
  void tend_watches();
  static bool pending(const Watch<P>& watch);
  static void run_watch(std::shared_ptr<Core> core, std::shared_ptr<Watch<P>> watch);
  void watch(Watch<P>& watch);
  void confirm_all(Watch<P>& watch);
  void give_up_silent(Watch<P>& watch);
  bool confirm_own(DeviceQueue<P>& queue);
  void read_errors(Watch<P>& watch);
  void take_times(RareParts<P>& parts, const Lane<P>& lane);
  static void settle_errors(Watch<P>& watch);
  void suspect(Watch<P>& watch, int device);
  void lose(Watch<P>& watch, int device, const std::string& why);
  void confirm(Watch<P>& watch, DeviceQueue<P>& queue);
  std::exception_ptr late_error(Watch<P>& watch, DeviceQueue<P>& queue, Run* run, std::uint64_t at,
                                bool& wrote_nothing);
  void device_done(Op* op, std::exception_ptr error, bool wrote_nothing, Slot<P>& slot, ReadyList<P>& ready);
  void finish_issued(Op* op, Slot<P>& slot, ReadyList<P>& ready);
  void release_held(DeviceQueue<P>& queue);
  bool devices_move(const void* but = nullptr) const;

  // core_order.h
  struct HostOrder;
  class HostBody;
  void prepare_order();
  template <class At>
  void tell_places(bool afresh, At&& at) noexcept;
  void tell_host(bool afresh, const HostClock& clock) noexcept;
  void tell_passed(bool afresh) noexcept;
  void tell_ticket(std::uint64_t id) noexcept;
  static void raise_clock(HostClock& clock, const HostClock& other);
  template <class Accesses>
  HostClock known_to_host(const Accesses& accesses) noexcept;
  template <class Accesses>
  void leave_order(const Accesses& accesses) noexcept;
  void pass_order(Op* op) noexcept;
  void keep_order(std::uint64_t id, HostClock&& clock) noexcept;
  void keep_places(DeviceQueue<P>& queue, std::uint64_t first, std::uint64_t last) noexcept;
  template <class Accesses>
  void order_after_host(DeviceQueue<P>& queue, const Accesses& accesses) noexcept;

  // core_setup.h
  static int share_of_threads(const CoreOptions& options, int device);

  // core_capture.h, core_replay.h
  OpenPush record(std::span<const Access> accesses, std::size_t closure_size, std::size_t closure_align,
                  const PushOptions& options, const std::source_location& where, Lane<P>& lane);
  void refuse_capture(const char* what) const;
  bool is_sequence(const Recorded& program) const;
  void start_replay(Op* op, ReadyList<P>& ready);
  Run* execute_captured(Captured* op, Slot<P>& slot, Lane<P>* here);
  bool run_captured(Captured* op, Lane<P>& lane, Slot<P>& slot);
  ErrorRef ended_before(Captured* op);
  ErrorRef reason_to_skip(Captured* op);
  void settle_captured(Captured* op, const ErrorRef& error);
  void captured_device_done(Captured* op, std::exception_ptr error, bool wrote_nothing, ReadyList<P>& ready);
  void finish_captured(Captured* op, ReadyList<P>& ready);
  bool has_alone(Operation* operation, const Node* node) const;

  // core_wait.h, core_stop.h
  enum class Blocked : std::uint8_t { done, timed_out };
  class Announced;
  class Room;
  /// The id under which a thread that looks knows the op. A captured op has no record; this is the id of its replay.
  static std::uint64_t id_seen(const Operation* operation) {
    if (operation->kind != OpKind::captured) return id_of(operation);
    return id_of(static_cast<const Op*>(static_cast<const Info*>(operation)->program->running));
  }
  /// The record with that id.
  static Op* seen_op(Operation* operation) {
    if (operation->kind != OpKind::captured) return static_cast<Op*>(operation);
    return static_cast<Info*>(operation)->program->running;
  }
  template <class Over>
  static bool soon(Over&& over);
  /// The place in a stream lane of an op for whose end a thread waits.
  struct OnDevice {
    DeviceQueue<P>* queue = nullptr;
    std::uint64_t at = 0;
  };
  OnDevice on_device(std::uint64_t target, const Node* node);
  Blocked block(Wait& wait, std::uint64_t target, std::chrono::nanoseconds limit, const char* what, bool holds = false,
                const Node* node = nullptr);
  bool in_op() const { return thread_state().core == this; }
  bool any_thread_moves(bool queues, std::int64_t& held);
  bool anything_moves();
  bool all_stand(const void* confirmed);
  std::uint64_t progress() const;
  bool is_over(std::uint32_t index, std::uint64_t generation);
  bool wait_live(std::chrono::nanoseconds limit, Lane<P>* helped = nullptr);
  void wait_a_little(std::int64_t end);
  bool await_ticket(std::uint32_t index, std::uint64_t generation, std::chrono::nanoseconds limit,
                    Lane<P>* helped = nullptr);
  static std::int64_t deadline_of(std::chrono::nanoseconds limit);
  [[noreturn]] void deadlock(const std::string& what);
  static std::uint64_t generation_of(std::uint64_t word) { return word >> kGenerationShift; }
  /// 0 for an op of a replay.
  static std::uint64_t id_of(const Operation* operation) {
    return operation->kind == OpKind::captured ? 0 : id_of(static_cast<const Op*>(operation));
  }
  static std::uint64_t id_of(const Op* op) {
    return (generation_of(op->word.load(std::memory_order_relaxed)) & 0xffffffffu) << 32 | op->index;
  }

  // core_circles.h
  class Standing;
  class Blockade;
  void look_for_circles();
  RareParts<P>* answers_later(Operation* operation) const;
  bool grant(Op* op, Wait& waiter);
  void let_go(RareParts<P>& parts);
  void disown_borrows(Slot<P>& slot);
  /// The time in ns between the first looks for circles of a wait that may never end.
  std::int64_t tick() const {
    return std::chrono::nanoseconds(options_.serial ? std::chrono::milliseconds(1) : P::kTick).count();
  }

  // core_explain.h
  class Pinned;
  class Looking;
  bool keep_for_lookers(Node* node) noexcept;

  // core_errors.h
  using RootEntry = detail::RootEntry;
  ErrorRef add_root(ErrorKind kind, const Operation* op, std::exception_ptr cause, std::string_view message);
  ErrorRef new_root(ErrorKind kind, const Operation* op, std::exception_ptr cause, std::string_view message) noexcept;
  void make_lost_root();
  void look_over_roots();
  RootEntry& entry_of(const ErrorRef& root) noexcept;
  void told(const ErrorRef& root) noexcept;
  void ended_with(const ErrorRef& root) noexcept;
  ErrorRef error_at(const Node& node) const;
  ErrorRef start_error(Op* op);
  ErrorRef decide_error(Op* op);
  std::uint32_t pass_mark(Op* op, Token<P>& t, const ErrorRef& error);
  bool stays_marked(Node& node, AccessMode mode, bool heal, OpKind kind, const ErrorRef& error, bool whole);
  ErrorRef root_of(const Operation* op, const std::exception_ptr& cause, ErrorKind kind);
  void note_failure(Op* op, const ErrorRef& error);
  void set_poison(Node& node, const ErrorRef& root, bool torn);
  void forget_poison(Node& node);
  void clear_poison(Node& node);
  ErrorRef failure_of(std::uint32_t index, std::uint64_t generation);
  void observe(const ErrorRef& root);
  [[noreturn]] void raise(const ErrorRef& root);
  void report_unobserved();
  void prune_roots();
  void shed_roots();
  static void tell_unobserved(const ErrorRoot& root, const std::function<void(const ErrorRoot&)>* hook);

  const CoreOptions options_;
  const std::uint64_t uid_;  ///< tells engines apart in a thread's cache of slots
  Lanes<P> lanes_;
  std::unique_ptr<HostOrder> order_;  ///< null where no provider keeps a record of accesses
  bool quick_waits_ = true;           ///< a wait for an idle variable needs no op: there is no log, nor such a record

  std::atomic<std::uint32_t> next_variable_{0};
  std::atomic<bool> orphaned_{false};  ///< nothing but variables is left of the engine
  std::mutex orphan_mutex_;
  std::int64_t variables_left_ = 0;  ///< of those that no slot counts; with the mutex, as is the next
  bool all_counted_ = false;         ///< there is no other count any more
  std::unique_ptr<Atomic<Slab*>[]> slabs_;
  Atomic<std::uint32_t> slab_count_{0};
  std::uint32_t traces_ = 0;  ///< how many were started; guarded by slots_mutex_
  mutable typename P::Mutex slots_mutex_;
  std::vector<std::unique_ptr<Slot<P>>> slots_;  ///< the first is the spare slot
  std::size_t idle_slots_ = 0;                   ///< how many of them no thread has taken
  std::vector<Op*> spare_blocks_;                ///< of records
  std::recursive_mutex spare_mutex_;
  Slot<P>* spare_ = nullptr;  ///< the slot that AnySlot uses where there is no memory for another

  Caps<P> caps_;

  alignas(64) Atomic<bool> stopped_{false};
  Atomic<bool> cancel_all_{false};
  Atomic<std::int32_t> outsiders_{0};
  std::atomic<bool> forked_{
      false};  ///< this is a forked child's copy; its locks may be held by threads it does not have
  Atomic<std::uint32_t> tracing_{0};  ///< number of the trace that is on; 0: none
  Atomic<std::int64_t> open_{0};      ///< unanswered Completions

  Waits<P> waits_;

  // Serial mode: the ready ops, taken out of the queues, by lane and priority. The mutex is held while any op runs.
  typename P::Mutex serial_mutex_;
  std::vector<std::array<typename ReadyList<P>::template List<Run>, kPriorities>> collected_;
  Atomic<std::int64_t> collected_count_{0};

  typename P::Mutex log_mutex_;
  std::vector<LoggedPush> log_;
  bool log_lost_ = false;  ///< there was no memory for an entry

  Errors<P> errors_;

  std::mutex look_mutex_;
  std::atomic<int> lookers_{0};  ///< changed under the mutex
  Nodes<P> nodes_;
  Node* kept_ = nullptr;  ///< variables that were deleted while a thread looked, linked by their tails
};

}  // namespace sluice::detail

#include "sluice/engine/detail/core_async.h"
#include "sluice/engine/detail/core_caps.h"
#include "sluice/engine/detail/core_capture.h"
#include "sluice/engine/detail/core_circles.h"
#include "sluice/engine/detail/core_drain.h"
#include "sluice/engine/detail/core_errors.h"
#include "sluice/engine/detail/core_explain.h"
#include "sluice/engine/detail/core_lanes.h"
#include "sluice/engine/detail/core_order.h"
#include "sluice/engine/detail/core_push.h"
#include "sluice/engine/detail/core_records.h"
#include "sluice/engine/detail/core_replay.h"
#include "sluice/engine/detail/core_run.h"
#include "sluice/engine/detail/core_stop.h"
#include "sluice/engine/detail/core_stream.h"
#include "sluice/engine/detail/core_wait.h"
#include "sluice/engine/detail/core_watch.h"
