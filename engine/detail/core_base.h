// CoreBase: what Engine calls.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "sluice/engine/operation.h"
#include "sluice/engine/options.h"
#include "sluice/engine/program.h"
#include "sluice/engine/provider.h"
#include "sluice/engine/ticket.h"
#include "sluice/engine/trace.h"
#include "sluice/engine/variable.h"

namespace sluice::detail {

struct Look;

/// A thread that runs a body of one engine and is blocked in a wait of another.
struct Elsewhere {
  Operation* operation = nullptr;
  void* lane = nullptr;
  std::shared_ptr<CoreBase> core;  ///< the other engine's
  std::uint64_t target = 0;        ///< id there of what it waits for
  std::uint64_t inside = 0;        ///< the first engine's, as the next: id of the op
  Elsewhere *next = nullptr, *before = nullptr;
};

/// What Engine calls; there is one implementation for each policy (engine/detail/core.h).
class CoreBase : public std::enable_shared_from_this<CoreBase> {
 public:
  virtual ~CoreBase() = default;
  virtual VariableBase* new_variable(const char* name, bool has_value) = 0;
  virtual void delete_variable(VariableBase* variable) noexcept = 0;
  /// Does everything of a push that can throw: it checks, waits at the caps and reserves. The caller then moves the
  /// closure in, and commit_push cannot fail.
  virtual OpenPush begin_push(std::span<const Access> accesses, std::size_t closure_size, std::size_t closure_align,
                              const PushOptions& options, const std::source_location& where) = 0;
  /// For a caller that knows its accesses only after begin_push, which got none. Called once, before commit_push.
  /// Throws as begin_push does where an access is wrong, and bad_alloc; the push must then be abandoned.
  virtual void name_accesses(Operation* operation, std::span<const Access> accesses, const PushOptions& options,
                             const std::source_location& where) = 0;
  virtual void abandon_push(Operation* operation) noexcept = 0;
  virtual Ticket commit_push(Operation* operation, const ClosureTable& table) noexcept = 0;
  virtual bool wait_variable(VariableBase* variable, std::chrono::nanoseconds limit, bool help,
                             const std::source_location& where) = 0;
  virtual bool ticket_done(std::uint32_t index, std::uint64_t generation) = 0;
  virtual bool ticket_wait(std::uint32_t index, std::uint64_t generation, std::chrono::nanoseconds limit) = 0;
  virtual bool ticket_cancel(std::uint32_t index, std::uint64_t generation) = 0;
  virtual void wait_all(bool help) = 0;
  virtual void clear_errors() = 0;
  virtual ErrorRef error_of(const VariableBase* variable) = 0;
  virtual void heal(Operation* operation, const VariableBase* variable) = 0;
  virtual bool cancelled(const Operation* operation) const = 0;
  virtual ErrorRef skip_reason(const Operation* operation) const = 0;
  virtual Ticket push_recover(VariableBase* variable, const std::source_location& where) = 0;
  virtual Borrow borrow(Access access, const std::source_location& where) = 0;
  virtual void complete(Operation* operation, std::exception_ptr error, ErrorKind kind,
                        bool wrote_nothing) noexcept = 0;
  virtual std::shared_ptr<ProgramBase> begin_capture(const char* name, const std::source_location& where) = 0;
  virtual void end_capture(ProgramBase& program) = 0;
  virtual Ticket replay(const std::shared_ptr<ProgramBase>& program, const PushOptions& options,
                        const std::source_location& where) = 0;
  virtual bool stop(StopMode mode, std::chrono::nanoseconds deadline) = 0;
  /// Waits until no op is ready or running. Ops that await a Completion or a borrow are not waited for. Returns false
  /// when the time was over first.
  virtual bool settle(std::chrono::nanoseconds limit) = 0;
  /// Called in a forked child: from here on the engine refuses every call, and touches no lock.
  virtual void forked() noexcept = 0;
  virtual void on_unobserved(std::function<void(const ErrorRoot&)> hook) = 0;
  virtual std::size_t in_flight() const = 0;
  virtual int threads(Device device) const = 0;
  virtual int device_count(DeviceKind kind) const = 0;
  virtual std::shared_ptr<Provider> provider(Device device) const = 0;
  virtual LaneStats lane_stats(const Place& place) const = 0;
  virtual DeviceOp device_op(const Operation* operation) const = 0;
  virtual const char* layer_path(const Operation* operation) const noexcept = 0;
  virtual void await_issued(DeviceKind kind) = 0;
  virtual StreamEvent issued_point(const Operation* operation, const Stream* stream) const = 0;
  virtual bool wait_on_device(const Stream* stream, const StreamEvent& point) = 0;
  virtual std::uint64_t settled_errors(Device device) = 0;
  void* keep(Device device, const std::function<std::shared_ptr<void>()>& make);
  virtual void start_trace() = 0;
  virtual std::vector<TraceEvent> stop_trace() = 0;
  virtual std::vector<LoggedPush> take_order() = 0;
  virtual void stand_elsewhere(Elsewhere& wait) = 0;
  virtual void go_on(Elsewhere& wait) = 0;
  /// What is in flight (look.h). op_words() gives only the state words of the op records, for callers that look often.
  virtual Look look() = 0;
  virtual std::vector<std::uint64_t> op_words() = 0;
  /// "no error", "no value yet" or "poisoned (torn) by ...".
  virtual std::string value_state(const VariableBase* variable) = 0;
  virtual std::string outcome(std::uint32_t index, std::uint64_t generation) = 0;

 private:
  static constexpr std::size_t kMostDevices = 256;
  std::array<std::array<std::atomic<void*>, kMostDevices>, kDeviceKinds> kept_{};
  std::mutex keep_mutex_;
  std::vector<std::shared_ptr<void>> kept_alive_;
};

}  // namespace sluice::detail
