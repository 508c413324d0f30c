// The engine: operations tagged with the variables they read and write, run when those clear.
//
//   Engine engine;
//   Var<Image> frame(engine.variable()), thumb(engine.variable());
//   engine.push(read(frame), write(thumb), [](const Image& from, Image& to) { resize(from, to); }, {.name = "resize"});
//   engine.wait(thumb);
//
// The result of a program is that of running its pushes one by one. docs/semantics.md has the rules, docs/engine.md
// says how the engine keeps them, docs/glossary.md explains the words. Everything here may be called from any thread,
// ops included, unless it says otherwise.
#pragma once

#include <atomic>
#include <chrono>
#include <concepts>
#include <functional>
#include <initializer_list>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "sluice/engine/detail/core_base.h"
#include "sluice/engine/device.h"
#include "sluice/engine/errors.h"
#include "sluice/engine/layer.h"
#include "sluice/engine/operation.h"
#include "sluice/engine/options.h"
#include "sluice/engine/program.h"
#include "sluice/engine/provider.h"
#include "sluice/engine/scope.h"
#include "sluice/engine/ticket.h"
#include "sluice/engine/trace.h"
#include "sluice/engine/var.h"
#include "sluice/engine/variable.h"

namespace sluice {

namespace detail {
class Watchdog;
}

/// A process may fork while ops are in flight; nothing changes for the parent. In the child every call of an engine
/// that was made before the fork throws ForkedError, and the destructors of that engine and of its Completions and
/// Borrows do nothing. An engine that the child makes works, but the loops inside its ops (parallel_for) run on one
/// thread each, because the threads of oneTBB belong to the parent. It does so whatever other threads of the parent
/// did when it was forked, with arrays, too: fork() waits until no thread makes what the process has one of, and holds
/// the locks of the process (detail/forks.h). A child that is forked inside a body must end there, with exec or _exit.
///
/// Where a body calls exit(), the destructors of static objects that are older than the first engine do not run. The
/// engine installs no signal handler. Do not call stop() from a signal handler, unless the interrupted thread cannot be
/// inside the engine.
///
/// Where there is no memory a call throws std::bad_alloc, has done nothing, and may be tried again; what was pushed
/// goes on, if need be on the thread that waits for it. Where oneTBB is refused memory or a thread in the midst of its
/// work it cannot be asked again: from then on ops run on plain threads, and loops (parallel_for) alone, one of which
/// may throw what oneTBB threw. Outside of what the engine can catch are a thread of oneTBB's own that finds no memory
/// as it begins, and the third or a later thread of a lane that cannot be started: those end the process
/// (docs/decisions/0010-no-memory.md has all such cases).
class Engine {
 public:
  /// Throws UsageError for options out of range. Starts no thread before the first push.
  explicit Engine(const EngineOptions& options = {});
  /// Calls stop(drain) and, when a thirtieth of the time is left, stop(cancel): SLUICE_EXIT_SECONDS [30] in all. After
  /// a second it tells the hook of watch(), or stderr, what it waits for. After a stop(cancel) no op begins any more;
  /// then it waits for bodies that still run, and only briefly for open Completions and Borrows.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// The process's engine. It is made from the environment at first use, drained at exit and never destroyed. The end
  /// of a process waits for all engines together at most SLUICE_EXIT_SECONDS; after a second it says what for.
  static Engine& instance();
  /// The providers that instance() will have. Libraries add theirs before the first use of instance().
  static std::vector<ProviderFactory>& instance_providers();

  /// A new variable. With `has_value = false` its value comes with the first write; a failure before that leaves torn
  /// poison. `name` must live as long as the variable (a literal).
  Variable variable(const char* name = nullptr, bool has_value = true);

  /// Pushes `body` (f(), f(Context&), f(Completion) or f(Context&, Completion)) to run once the ops pushed before it
  /// that touch the same variables allow. A variable named twice gets one joined access. Atomic over its variables.
  /// From outside: blocks at the caps (max_ops, max_bytes) while some op is ready or running. From an op: never blocks.
  /// Throws UsageError (null closure, unknown device or lane, a variable of another engine or none, priority out of
  /// range, more than 32,000 accesses), StoppedError after stop, CapError at the hard cap (four times max_ops or
  /// max_bytes); then nothing was pushed. The cost is in proportion to the number of accesses; many accesses that are
  /// not in the order in which their variables were made are sorted too.
  template <detail::Body F>
  Ticket push(F&& body, std::initializer_list<Access> accesses, const PushOptions& options = {},
              std::source_location where = std::source_location::current()) {
    return push(std::forward<F>(body), std::span(accesses.begin(), accesses.size()), options, where);
  }
  template <detail::Body F>
  Ticket push(F&& body, std::span<const Access> accesses, const PushOptions& options = {},
              std::source_location where = std::source_location::current());

  /// The same for one to six values (Var<T>), each listed with its access, before a body that gets them as parameters
  /// in this order: `const T&` of read(x), `T&` of update(x) and write(x). So a body cannot reach what its push does
  /// not name, nor change what it only reads. A Context& or a Completion, or both, may come before them. The place in
  /// the source is that of the first access. Does not compile where a parameter is of another type, or would change
  /// what is read.
  template <detail::OfVar A, class F>
  Ticket push(A a, F&& body, const PushOptions& options = {}) {
    return push_on_values(std::forward<F>(body), options, a);
  }
  template <detail::OfVar A, detail::OfVar B, class F>
  Ticket push(A a, B b, F&& body, const PushOptions& options = {}) {
    return push_on_values(std::forward<F>(body), options, a, b);
  }
  template <detail::OfVar A, detail::OfVar B, detail::OfVar C, class F>
  Ticket push(A a, B b, C c, F&& body, const PushOptions& options = {}) {
    return push_on_values(std::forward<F>(body), options, a, b, c);
  }
  template <detail::OfVar A, detail::OfVar B, detail::OfVar C, detail::OfVar D, class F>
  Ticket push(A a, B b, C c, D d, F&& body, const PushOptions& options = {}) {
    return push_on_values(std::forward<F>(body), options, a, b, c, d);
  }
  template <detail::OfVar A, detail::OfVar B, detail::OfVar C, detail::OfVar D, detail::OfVar E, class F>
  Ticket push(A a, B b, C c, D d, E e, F&& body, const PushOptions& options = {}) {
    return push_on_values(std::forward<F>(body), options, a, b, c, d, e);
  }
  template <detail::OfVar A, detail::OfVar B, detail::OfVar C, detail::OfVar D, detail::OfVar E, detail::OfVar G,
            class F>
  Ticket push(A a, B b, C c, D d, E e, G g, F&& body, const PushOptions& options = {}) {
    return push_on_values(std::forward<F>(body), options, a, b, c, d, e, g);
  }

  /// Calls `pushes` on this thread and records what it pushes here instead of running it. A captured push returns an
  /// empty ticket (done); waits, borrows and recoveries inside throw UsageError, and so does a capture inside another.
  /// An exception of `pushes` passes through; more than 31,999 variables in all are a UsageError. Variables, closures
  /// and PushOptions stay those of the capture: only the values of variables can vary from replay to replay.
  template <std::invocable F>
  Program capture(F&& pushes, const char* name = "program",
                  std::source_location where = std::source_location::current());
  /// Pushes the whole program as one op over all its variables: atomic, in its place in the order, never beside itself.
  /// Its operations run as if pushed one by one at that place, with their lanes, priorities and errors; they may not
  /// push. If all of them are for one lane with one thread, have one priority, and none completes later, they run one
  /// after the other in the order of their pushes. A replay counts as one op against the caps, with all declared bytes.
  /// The ticket is for the whole: it throws the error of the first op, in the order of the capture, that failed or was
  /// skipped; to cancel it skips all ops. Blocks and throws like push.
  Ticket replay(const Program& program, std::source_location where = std::source_location::current());

  /// Blocks until the value is readable: every op pushed before that writes `x` has completed. Takes its place like a
  /// read. Throws Error, each time, while the variable is poisoned. Inside an op: the lane goes on with a substitute
  /// thread (in serial mode the wait runs the ops that it needs, and no others). A wait can never end if what it waits
  /// for stands, directly or through other ops, behind the op itself or behind a Borrow of its thread. Of each such
  /// circle one wait throws Error (deadlock) within some 20 ms; the other waits of the circle then end in the ordinary
  /// way. Circles through several engines are not found; explain and watch name them.
  ///
  /// If a body starts a thread of its own (not through parallel_for) and that thread waits, the wait counts as one from
  /// outside, even where the body waits for the thread; circles through it are not found. While a thread of oneTBB (a
  /// tbb::task_group in the body) waits, each lane may have one more thread, so that what it waits for can run. A body
  /// that joins another kind of thread, which waits for ops of the same lane, may never end. So may a body whose task
  /// oneTBB runs inside another body's wait for tasks (tbb::this_task_arena::isolate keeps the two apart).
  void wait(const HasVariable auto& x, std::source_location where = std::source_location::current()) {
    wait(x, WaitOptions{}, where);
  }
  void wait(const HasVariable auto& x, const WaitOptions& how,
            std::source_location where = std::source_location::current());
  /// As wait(), but returns false when the time is over first.
  bool wait_for(const HasVariable auto& x, std::chrono::nanoseconds limit,
                std::source_location where = std::source_location::current());

  /// Blocks until everything that any thread pushed before the call has completed. Throws AggregateError with the roots
  /// that still poison a live variable, and the roots of failed ops that wrote nothing (at least the latest 4,096),
  /// until clear_errors(). Throws Error (deadlock) inside an op. Runs ops meanwhile, unless told not to
  /// (WaitOptions::help).
  void wait_all(const WaitOptions& how = {.help = true});
  /// Forgets failed ops that wrote nothing, and reports roots that nobody observed.
  void clear_errors();

  /// The variable's root error as of now, without waiting; null if none. Throws UsageError.
  ErrorRef error(const HasVariable auto& x, std::source_location where = std::source_location::current()) const;
  /// Pushes a recovery: it clears intact poison (the old value is whole) and leaves torn poison. It does not count
  /// against the caps and never blocks. What has several variables gets a recovery for each; the ticket is that of the
  /// last one. Throws UsageError, StoppedError.
  Ticket recover(const HasVariable auto& x, std::source_location where = std::source_location::current());

  /// Waits for its turn and then holds the variable, until the Borrow is released. Throws Error if the variable is
  /// poisoned. Pass read(x) or update(x).
  Borrow borrow(Access access, std::source_location where = std::source_location::current());

  /// Refuses further pushes. `drain` lets the ops in flight run, `cancel` skips those that have not begun. Returns true
  /// when all have completed, false when the deadline came first; then the remaining ops are named to the hook of
  /// watch() or on stderr, and stop may be called again.
  bool stop(StopMode mode = StopMode::drain, std::chrono::nanoseconds deadline = std::chrono::seconds(30));

  /// Sets the hook that is called once with each root that nobody observed (no wait threw it), on the thread and at the
  /// time of a clear_errors() or stop(). Some are reported earlier, so that memory stays bounded: of the roots that
  /// poison no live variable the engine keeps the latest 4,096 or more, and a push, also from an op, reports the oldest
  /// ones that it drops. The hook may call the engine. An exception of the hook comes out of the call that called it;
  /// if that was a push, nothing was pushed. Default: one line on stderr.
  void on_unobserved_error(std::function<void(const ErrorRoot&)> hook);

  /// Ops in flight: pushed and not completed. While ops begin and end the number may be a little too high.
  std::size_t in_flight() const;
  /// Worker threads of a CPU device's compute lane.
  int threads(Device device = cpu(0)) const;
  int device_count(DeviceKind kind = DeviceKind::cpu) const;
  /// The provider of this kind of device. Throws UsageError where the engine has no such device.
  std::shared_ptr<Provider> provider(Device device) const;
  /// The counts of a stream lane; all zero for another lane.
  LaneStats lane_stats(const Place& place) const;

  /// What `x`, or an op, waits for, down to the root cause, in a few sentences: "frame: 2 ops in flight. 'resize'
  /// (main.cc:41, writes frame) is running on cpu(1). Behind it waits 'save' (main.cc:44, reads frame)." May be called
  /// at any time; it looks at every op in flight and disturbs none. Throws UsageError for a variable or a ticket of
  /// another engine.
  std::string explain(const HasVariable auto& x, std::source_location where = std::source_location::current()) const {
    return explain_variable(detail::variable_at(x, where));
  }
  std::string explain(const Ticket& op) const;

  /// Starts the watchdog: a thread that reports, once, each op in flight that has not moved for `limit`, if what the op
  /// waits for has not moved either. The report has name, variables, push site and reason; `hook` gets it, on that
  /// thread (default: stderr). The watchdog looks four times in each limit. A later call replaces this one, and a limit
  /// of 0 ends it. SLUICE_WATCHDOG=seconds starts one for the default engine, 0 none.
  void watch(std::chrono::nanoseconds limit, std::function<void(const std::string& report)> hook = {});
  /// One look of the watchdog, on this thread and as of `now`. Returns its report, which is empty if there is nothing
  /// new. The time of an op counts from the first look that saw it in its present state.
  std::string overdue(std::chrono::nanoseconds limit,
                      std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now());

  /// Starts a recording of the ops that are pushed from now on; each is recorded when it completes. A recording that is
  /// on already goes on.
  void start_trace();
  /// Ends the recording and returns it, in the order of start times. Ops that complete later are in no recording.
  /// SLUICE_TRACE=file.json does both for the default engine and writes the file for Perfetto when the process ends
  /// (write_trace, trace.h).
  std::vector<TraceEvent> stop_trace();

  /// With EngineOptions::log_order: the pushes, waits and borrows so far, in the order in which they took effect;
  /// empties the log.
  std::vector<LoggedPush> take_order();

 public:  // for floors above: objects of theirs that belong to a device of this engine
  /// The object that `make` returned at the first call for this device. It is destroyed with the engine, after the last
  /// variable.
  void* keep(Device device, const std::function<std::shared_ptr<void>()>& make);

 public:  // for the engine
  explicit Engine(std::shared_ptr<detail::CoreBase> core);

 private:
  template <class F, class... As>
  Ticket push_on_values(F&& body, const PushOptions& options, const As&... accesses);
  bool wait_until(const Variable& variable, std::chrono::nanoseconds limit, const WaitOptions& how,
                  const std::source_location& where);
  std::string explain_variable(const Variable& variable) const;
  ErrorRef error_of(const Variable& variable) const;
  Ticket push_recover(const Variable& variable, std::source_location where);

  bool end(std::chrono::nanoseconds limit, bool drain);

  std::shared_ptr<detail::CoreBase> core_;
  std::shared_ptr<detail::Watchdog> watchdog_;
  std::atomic<bool> cancelled_{false};  ///< by a stop(cancel)
};

}  // namespace sluice

#include "sluice/engine/detail/engine_calls.h"
