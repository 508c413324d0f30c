// Core<P>: the engine for one policy. Declared here; the parts are in core_records.h (slots, records), core_caps.h,
// core_push.h, core_lanes.h (queues, who starts drainers), core_drain.h (drainers, serial mode), core_run.h (bodies,
// finishing), core_async.h (ops that complete later), core_wait.h (waits, tickets), core_stop.h (wait_all, stop),
// core_capture.h and core_replay.h, core_errors.h (poison and roots) and core_explain.h (what is in flight, for those
// who ask).
#pragma once

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
#include "sluice/engine/detail/counters.h"
#include "sluice/engine/detail/look.h"
#include "sluice/engine/detail/nodes.h"
#include "sluice/engine/detail/prefetch.h"
#include "sluice/engine/detail/slot.h"
#include "sluice/engine/engine.h"

namespace sluice::detail {

/// EngineOptions with everything decided.
struct CoreOptions {
  bool serial = false;
  int threads = 1;
  int logical_cpus = 1;
  int simulated_gpus = 0;
  std::chrono::microseconds simulated_delay{0};
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

  explicit Core(const CoreOptions& options);
  ~Core() override;

  VariableBase* new_variable(const char* name, bool has_value) override;
  void delete_variable(VariableBase* variable) noexcept override;
  OpenPush begin_push(std::span<const Access> accesses, std::size_t closure_size, std::size_t closure_align,
                      const PushOptions& options, const std::source_location& where) override;
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
  Ticket push_recover(VariableBase* variable, const std::source_location& where) override;
  Borrow borrow(Access access, const std::source_location& where) override;
  void complete(Operation* operation, std::exception_ptr error, ErrorKind kind) noexcept override;
  std::shared_ptr<ProgramBase> begin_capture(const char* name, const std::source_location& where) override;
  void end_capture(ProgramBase& program) override;
  Ticket replay(const std::shared_ptr<ProgramBase>& program, const PushOptions& options,
                const std::source_location& where) override;
  bool stop(StopMode mode, std::chrono::nanoseconds deadline) override;
  void settle(std::chrono::nanoseconds limit) override;
  void forked() noexcept override;
  void on_unobserved(std::function<void(const ErrorRoot&)> hook) override;
  std::size_t in_flight() const override;
  int threads(Device device) const override;
  int device_count(DeviceKind kind) const override;
  void start_trace() override { tracing_.store(true); }
  std::vector<TraceEvent> stop_trace() override;
  std::vector<LoggedPush> take_order() override;
  Look look() override;
  std::vector<std::uint64_t> op_words() override;
  std::string value_state(const VariableBase* variable) override;
  std::string outcome(std::uint32_t index, std::uint64_t generation) override;

 private:
  static constexpr std::uint32_t kSlabOps = P::kSlabOps, kBlockOps = kSlabOps / 4;
  static constexpr std::int64_t kFarBehind = 512;   ///< ops in flight, of which a worker may look some ahead
  static constexpr std::size_t kAhead = 16;         ///< as many
  static constexpr std::size_t kClosureLine = 160;  ///< of a record: where the closure begins
  static constexpr std::uint32_t kMaxSlabs = P::kMaxSlabs;
  static constexpr std::int32_t kFailedStarts = 3;  ///< of a lane in a row, after which who waits runs its ops
  static constexpr int kStarvedTicks = 10;          ///< of a wait, without a thread for what it waits for
  struct Slab {
    Op ops[kSlabOps];
    RareParts<P> rare[kSlabOps];
  };

  // core_records.h, core_caps.h, core_push.h
  /// Asks for lines of the record that lies so many behind this one: to be written.
  template <class... Offsets>
  static void prefetch(const Run* op, std::size_t ahead, Offsets... offsets) {
    (prefetch_to_write(reinterpret_cast<const char*>(op) + ahead * sizeof(Op) + offsets), ...);
  }
  /// Asks for what follows in the chains of an op that is the caller's: it will be written when the op is over. Returns
  /// the bits that any of its tokens has.
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
      // Its record, unless it is on the heap.
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
  /// While one lives, ops begin and end by exchanges of their word, so that a thread that neither pushes nor runs an op
  /// may change the word of one whose phase is not `ending`: to cancel it, to be told of its end, to hold its record.
  /// Else they do so by plain stores. Who makes one may wait for some microseconds.
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
  void take_bytes(Slot<P>& slot, const PushOptions& options, const std::source_location& where);
  void return_credits(Slot<P>& slot, std::int64_t count, bool idle);
  void wake_cap_waiters();
  template <class Full, class Little>
  bool park_at_cap(Full&& full, Little&& little);
  std::int64_t good_stretch() const { return std::max<std::int64_t>(options_.max_ops / 8, 1); }
  void prepare_stream_uses(Op* op);
  void set_accesses(Op* op, std::span<const Access> accesses, VariableBase* sequence = nullptr);
  static bool locked_before(const Node* a, const Node* b);
  Op* internal_op(OpKind kind, const Access& access, const std::source_location& where);
  std::uint64_t open_word(Op* op, std::uint64_t state);
  std::uint64_t begin(Op* op);
  bool link(Op* op, ReadyList<P>& ready);
  void push_internal(Op* op);
  void begin_link(Slot<P>& slot);
  void end_link(Slot<P>& slot);
  Lane<P>* lane_for(const Place& place) const;
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
  bool anything_queued() const;

  // core_run.h
  ErrorRef reason_to_skip(Op* op, std::uint64_t word);
  Run* execute(Run* runnable, Slot<P>& slot, Lane<P>* here);
  bool run_here(Op* op, Lane<P>& here);
  std::exception_ptr run_anywhere(Op* op, Lane<P>& lane);
  void execute_any(Op* op, std::uint64_t word, Slot<P>& slot, ReadyList<P>& ready);
  std::exception_ptr call(const ClosureTable& table, void* closure, Operation& operation, ScopeState scope,
                          Lane<P>& lane, bool async);
  void destroy_closure(Op* op) noexcept;
  void process(ReadyList<P>& ready, Lane<P>* here, Run** hand_off);
  void finish(Op* op, ReadyList<P>& ready, bool clean = false);
  void finish_clean(Op* op, Slot<P>& slot, ReadyList<P>& ready);
  void close(Op* op, Slot<P>& slot, std::uint64_t retired, bool counted, bool body);
  void tell_ticket_waiters(std::uint64_t id);
  void finish_internal(Op* op, ReadyList<P>& ready);
  void advance(Token<P>& token, std::uint32_t bits, ReadyList<P>& ready, Op* self, std::uint64_t& retired);
  void retire(Op* op, Node* unnamed);
  void delete_node(Node* node) noexcept;
  void record_trace(Op* op, bool failed);

  // core_async.h
  void issue(Op* op, ReadyList<P>& ready);
  void device_done(Op* op, std::exception_ptr error);

  // core_capture.h, core_replay.h
  OpenPush record(std::span<const Access> accesses, std::size_t closure_size, std::size_t closure_align,
                  const PushOptions& options, const std::source_location& where, Lane<P>& lane);
  void refuse_capture(const char* what) const;
  bool is_sequence(const Recorded& program) const;
  void start_replay(Op* op, ReadyList<P>& ready);
  Run* execute_captured(Captured* op, Slot<P>& slot, Lane<P>* here);
  bool run_captured(Captured* op, Lane<P>& lane, Slot<P>& slot);
  ErrorRef reason_to_skip(Captured* op);
  void settle_captured(Captured* op, const ErrorRef& error);
  void captured_device_done(Captured* op, std::exception_ptr error);
  void finish_captured(Captured* op, ReadyList<P>& ready);
  bool has_alone(Operation* operation, const Node* node) const;

  // core_wait.h, core_stop.h
  enum class Blocked : std::uint8_t { done, timed_out };
  class Announced;
  /// The op as those who look know it: a captured one has no record, but its replay.
  static std::uint64_t id_seen(const Operation* operation) {
    if (operation->kind != OpKind::captured) return id_of(operation);
    return id_of(static_cast<const Op*>(static_cast<const Info*>(operation)->program->running));
  }
  template <class Over>
  static bool soon(Over&& over);
  Blocked block(Wait& wait, std::uint64_t target, std::chrono::nanoseconds limit, const char* what, bool holds = false);
  bool in_op() const { return thread_state().core == this; }
  bool anything_moves(bool for_deadlock, bool queues = true);
  std::uint64_t progress();
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

  // core_explain.h
  class Pinned;
  class Looking;
  bool keep_for_lookers(Node* node) noexcept;

  // core_errors.h
  struct RootEntry {
    ErrorRef root;
    std::int64_t live_variables = 0;
    bool wrote_nothing = false;
    bool observed = false;
  };
  ErrorRef add_root(ErrorKind kind, const Operation* op, std::exception_ptr cause, std::string_view message);
  ErrorRef new_root(ErrorKind kind, const Operation* op, std::exception_ptr cause, std::string_view message) noexcept;
  void make_lost_root();
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
  std::vector<std::unique_ptr<Lane<P>>> lanes_;

  std::atomic<std::uint32_t> next_variable_{0};
  std::unique_ptr<Atomic<Slab*>[]> slabs_;
  Atomic<std::uint32_t> slab_count_{0};
  mutable typename P::Mutex slots_mutex_;
  std::vector<std::unique_ptr<Slot<P>>> slots_;  ///< the first is the spare
  std::recursive_mutex spare_mutex_;
  Slot<P>* spare_ = nullptr;  ///< AnySlot's

  std::int64_t credit_batch_;
  alignas(64) Atomic<std::int64_t> credits_;
  Atomic<std::size_t> bytes_{0};
  Atomic<std::int32_t> cap_waiters_{0};
  typename P::Mutex cap_mutex_;
  std::vector<std::shared_ptr<Wait>> cap_parked_;

  alignas(64) Atomic<bool> stopped_{false};
  Atomic<bool> cancel_all_{false};
  Atomic<std::int32_t> outsiders_{0};
  std::atomic<bool> forked_{false};  ///< this is a child's copy: its locks may be held by threads that are not here
  Atomic<bool> tracing_{false};
  Atomic<std::int64_t> open_{0};       ///< unanswered Completions and unfinished device work
  Atomic<std::int64_t> on_device_{0};  ///< of those, device work

  typename P::Mutex ticket_mutex_;
  std::multimap<std::uint64_t, std::shared_ptr<Wait>> ticket_waiters_;  ///< by id

  typename P::Mutex blocked_mutex_;
  Wait* blocked_waits_ = nullptr;     ///< a list: of threads whose slots say `blocked`
  typename P::Mutex deadlock_mutex_;  ///< one gives up at a time, and the others look again

  typename P::Mutex serial_mutex_;

  typename P::Mutex log_mutex_;
  std::vector<LoggedPush> log_;
  bool log_lost_ = false;  ///< there was no memory for an entry

  mutable typename P::Mutex error_mutex_;
  std::map<std::uint64_t, RootEntry> roots_;
  std::size_t many_roots_ = std::size_t{1} << 13;  ///< so many are looked over
  std::atomic<bool> too_many_roots_{false};        ///< since then nobody has called shed_roots
  std::atomic<bool> shedding_{false};
  std::unordered_map<std::uint64_t, ErrorRef> failures_;  ///< by ticket id
  std::deque<std::uint64_t> failure_order_;
  ErrorRef stop_root_;
  ErrorRef lost_root_;  ///< always in roots_: what an op fails with where there is no memory for a root of its own
  std::shared_ptr<const std::function<void(const ErrorRoot&)>> unobserved_;

  std::mutex look_mutex_;
  std::atomic<int> lookers_{0};  ///< changed under the mutex
  Nodes<P> nodes_;
  Node* kept_ = nullptr;  ///< variables that went while somebody looked, linked by their tails
};

}  // namespace sluice::detail

#include "sluice/engine/detail/core_async.h"
#include "sluice/engine/detail/core_caps.h"
#include "sluice/engine/detail/core_capture.h"
#include "sluice/engine/detail/core_drain.h"
#include "sluice/engine/detail/core_errors.h"
#include "sluice/engine/detail/core_explain.h"
#include "sluice/engine/detail/core_lanes.h"
#include "sluice/engine/detail/core_push.h"
#include "sluice/engine/detail/core_records.h"
#include "sluice/engine/detail/core_replay.h"
#include "sluice/engine/detail/core_run.h"
#include "sluice/engine/detail/core_stop.h"
#include "sluice/engine/detail/core_wait.h"
