// The face of the engine, and the product's core.
#include "sluice/engine/engine.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "sluice/engine/cpu_limits.h"
#include "sluice/engine/detail/at_exit.h"
#include "sluice/engine/detail/core.h"
#include "sluice/engine/detail/core_setup.h"
#include "sluice/engine/detail/forks.h"
#include "sluice/engine/detail/policy.h"
#include "sluice/engine/detail/report.h"
#include "sluice/engine/detail/thread_object.h"
#include "sluice/engine/detail/watchdog.h"
#include "sluice/engine/environment.h"
#include "sluice/engine/number_text.h"

namespace sluice {

ScopeState& current_scope() {
  detail::thread_state().scope_touched = true;
  return detail::ThreadObject<ScopeState>::get();
}

namespace detail {

bool capturing() noexcept { return thread_state().recorder != nullptr; }
OutsideCapture::OutsideCapture() noexcept : recorder_(std::exchange(thread_state().recorder, nullptr)) {}
OutsideCapture::~OutsideCapture() { thread_state().recorder = recorder_; }
SlotCache& slot_cache() { return ThreadObject<SlotCache>::get(); }
void destroy_variable(VariableBase* variable) noexcept { variable->core->delete_variable(variable); }

static_assert(sizeof(OpRecord<SystemPolicy>) == 256, "four cache lines");
static_assert(sizeof(VariableNode<SystemPolicy>) == 64, "one cache line");
template class Core<SystemPolicy>;

// Of the library sluice::explore; null in a program that does not link it.
[[gnu::weak]] std::shared_ptr<CoreBase> make_exploring_core(const CoreOptions& options, std::uint64_t seed);

namespace {

/// A number from the environment; `fallback` where it is unset or empty. Throws UsageError for anything else.
std::uint64_t environment(const char* name, std::uint64_t fallback, std::uint64_t low, std::uint64_t high) {
  const char* text = std::getenv(name);
  if (!text || !*text) return fallback;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc() || *end || value < low || value > high)
    throw UsageError(std::string(name) + "=" + text + ": a number from " + std::to_string(low) + " to " +
                     std::to_string(high) + " is wanted");
  return value;
}

/// Seconds from the environment, 0 or at least `low`; `fallback` where it is unset or empty. Throws UsageError for
/// anything else.
std::chrono::nanoseconds environment_seconds(const char* name, double fallback, double low) {
  const char* text = std::getenv(name);
  if (text && *text) {
    const std::optional<double> seconds = number_from(text);
    if (!seconds || (*seconds != 0 && !(*seconds >= low && *seconds <= 1e8)))
      throw UsageError(std::string(name) + "=" + text + ": seconds are wanted, " + (low > 0 ? "0 or from " : "from ") +
                       general_text(low, 3) + " to 100000000");
    fallback = *seconds;
  }
  return std::chrono::nanoseconds(static_cast<std::int64_t>(fallback * 1e9));
}
std::chrono::nanoseconds watchdog_limit() { return environment_seconds("SLUICE_WATCHDOG", 0, 0.001); }

/// Of one engine. oneTBB gives so many threads, whatever is asked for (the limit of policy.cc, less one).
constexpr int kMostThreads = 255;

std::shared_ptr<CoreBase> make_core(const EngineOptions& given, const CounterStart& counters = {}) {
  EngineMode mode = given.mode;
  std::uint64_t seed = given.explore_seed;
  if (const char* text = std::getenv("SLUICE_ENGINE");
      text && *text && !given.mode_given && mode == EngineMode::threaded) {
    const std::string_view value = text;
    if (value == "serial") {
      mode = EngineMode::serial;
    } else if (value.substr(0, 8) == "explore:") {
      const auto [end, error] = std::from_chars(text + 8, text + value.size(), seed);
      if (error != std::errc() || *end)
        throw UsageError("SLUICE_ENGINE=" + std::string(value) + ": explore:SEED wants a number");
      mode = EngineMode::explore;
    } else if (value != "threaded") {
      throw UsageError("SLUICE_ENGINE=" + std::string(value) + ": threaded, serial or explore:SEED is wanted");
    }
  }
  const auto number = [](const char* what, auto from_options, const char* name, std::uint64_t fallback,
                         std::uint64_t high) {
    if (from_options < 0 || static_cast<std::uint64_t>(from_options) > high)
      throw UsageError("EngineOptions: " + std::string(what) + " = " + std::to_string(from_options) +
                       ": a number from 1 to " + std::to_string(high) + " is wanted");
    return from_options > 0 ? static_cast<std::uint64_t>(from_options) : environment(name, fallback, 1, high);
  };
  CoreOptions options;
  options.serial = mode == EngineMode::serial;
  std::string why_threads = given.threads > 0 ? "EngineOptions" : "SLUICE_THREADS";
  options.threads = static_cast<int>(number("threads", given.threads, "SLUICE_THREADS", 0, kMostThreads));
  if (options.threads == 0) {
    CpuLimit limit = cpu_limit();
    options.threads = std::min(limit.cpus, kMostThreads);
    why_threads = std::move(limit.why);
  }
  options.logical_cpus = static_cast<int>(number("logical_cpus", given.logical_cpus, "SLUICE_LOGICAL_CPUS", 1, 200));
  options.providers.push_back(make_cpu_provider(options.logical_cpus));
  for (const ProviderFactory& make : given.providers) {
    std::shared_ptr<Provider> provider = make ? make() : nullptr;
    if (!provider) throw UsageError("EngineOptions: an empty provider");
    if (const int kind = static_cast<int>(provider->kind()); kind >= kDeviceKinds)
      throw UsageError("EngineOptions: a provider of device kind " + std::to_string(kind) + "; kinds are 0 to " +
                       std::to_string(kDeviceKinds - 1));
    for (const auto& other : options.providers)
      if (other->kind() == provider->kind())
        throw UsageError("EngineOptions: two providers of " + to_string(Device{provider->kind(), 0}));
    if (provider->devices() < 0 || provider->devices() > 64)
      throw UsageError("EngineOptions: " + std::to_string(provider->devices()) + " devices are not in 0..64");
    options.providers.push_back(std::move(provider));
  }
  options.device_limit = given.device_limit;
  options.max_ahead = number("max_ahead", static_cast<std::int64_t>(given.max_ahead), "SLUICE_MAX_AHEAD", 0, 1'000'000);
  options.max_ops = static_cast<std::int64_t>(
      number("max_ops", static_cast<std::int64_t>(given.max_ops), "SLUICE_MAX_OPS", 16384, 1'000'000));
  options.max_bytes = number("max_bytes", static_cast<std::int64_t>(given.max_bytes), "SLUICE_MAX_BYTES",
                             std::uint64_t{4} << 30, std::uint64_t{1} << 60);
  options.log_order = given.log_order;
  set_exit_limit(environment_seconds("SLUICE_EXIT_SECONDS", 30, 0));
  options.counters = counters;
  if (switch_from_environment("SLUICE_REPORT", false))
    std::fprintf(stderr, "%s\n", report_text(options, why_threads).c_str());
  if (mode == EngineMode::explore) {
    if (!make_exploring_core) {
      throw UsageError(std::string(given.mode == mode ? "EngineMode::explore" : "SLUICE_ENGINE=explore:SEED") +
                       ": the explorer is not in this program, which must link the CMake target sluice::explore");
    }
    return make_exploring_core(options, seed);
  }
  auto core = Core<SystemPolicy>::make(options);
  settle_at_exit(core);
  arm_exit_wait();
  return core;
}

}  // namespace

Engine engine_with_counters(const EngineOptions& options, const CounterStart& counters) {
  return Engine(make_core(options, counters));
}

}  // namespace detail

bool Ticket::done() const { return !core_ || core_->ticket_done(index_, generation_); }
void Ticket::wait() const {
  if (core_) core_->ticket_wait(index_, generation_, std::chrono::nanoseconds::max());
}
bool Ticket::wait_for(std::chrono::nanoseconds limit) const {
  return !core_ || core_->ticket_wait(index_, generation_, limit);
}
bool Ticket::cancel() const { return core_ && core_->ticket_cancel(index_, generation_); }

void* detail::CoreBase::keep(Device device, const std::function<std::shared_ptr<void>()>& make) {
  if (static_cast<std::size_t>(device.kind) >= kept_.size() || device.index >= kept_.front().size())
    throw UsageError("[keep] no engine has a device " + to_string(device));
  std::atomic<void*>& there = kept_[static_cast<std::size_t>(device.kind)][device.index];
  if (void* kept = there.load(std::memory_order_acquire)) return kept;
  std::lock_guard lock(keep_mutex_);
  if (void* kept = there.load(std::memory_order_relaxed)) return kept;
  kept_alive_.push_back(make());
  there.store(kept_alive_.back().get(), std::memory_order_release);
  return kept_alive_.back().get();
}
bool Context::cancelled() const { return core_->cancelled(operation_); }
void Context::await_issued() { core_->await_issued(device_.kind); }
StreamEvent Context::issued_point() const { return core_->issued_point(operation_, stream_); }
bool Context::wait_on_device(const StreamEvent& point) { return core_->wait_on_device(stream_, point); }
std::uint64_t Context::settled_errors(Device device) const { return core_->settled_errors(device); }
ErrorRef Context::error_of(const detail::VariableBase* variable) const { return core_->error_of(variable); }
void Context::heal_variable(const detail::VariableBase* variable) { core_->heal(operation_, variable); }

ErrorRef Context::skip_reason() const { return core_->skip_reason(operation_); }

void Completion::fail(std::exception_ptr error, bool wrote_nothing) noexcept {
  if (!error) error = std::make_exception_ptr(std::runtime_error("its Completion failed without an exception"));
  answer(std::move(error), ErrorKind::failed, wrote_nothing);
}
void Completion::pass_on(const ErrorRef& root, bool wrote_nothing) noexcept {
  std::exception_ptr error;
  try {
    if (root) error = std::make_exception_ptr(Error(root));
  } catch (...) {
    error = std::current_exception();  // no memory
  }
  fail(std::move(error), wrote_nothing);
}
void Completion::abandon() noexcept { answer(nullptr, ErrorKind::abandoned); }
void Completion::answer(std::exception_ptr error, ErrorKind kind, bool wrote_nothing) noexcept {
  if (detail::Operation* operation = std::exchange(operation_, nullptr)) {
    const std::shared_ptr<detail::CoreBase> core = std::move(core_);
    core->complete(operation, std::move(error), kind, wrote_nothing);
  }
}

Engine::Engine(const EngineOptions& options) : Engine(detail::make_core(options)) {}
Engine::Engine(std::shared_ptr<detail::CoreBase> core)
    : core_(std::move(core)), watchdog_(std::make_shared<detail::Watchdog>(core_)) {
  detail::tell_at_exit(core_, watchdog_);
}

/// Waits for what is in flight; says what that is when it takes more than a second. `drain`: for all of it, else only
/// for what is ready or running.
bool Engine::end(std::chrono::nanoseconds limit, bool drain) {
  return detail::wait_and_tell(limit, *watchdog_, [&](std::chrono::nanoseconds time) {
    return drain ? core_->stop(StopMode::drain, time) : core_->settle(time);
  });
}

Engine::~Engine() {
  if (!core_) return;
  try {
    const detail::ExitTime time;
    const std::chrono::nanoseconds all = time.left(), last = all / 30;
    const bool cancelled = cancelled_.load();
    if (end(all - last, !cancelled) && !cancelled) return;
    stop(StopMode::cancel, last);
  } catch (...) {
  }
}

std::vector<ProviderFactory>& Engine::instance_providers() {
  return detail::first_use([] { return new std::vector<ProviderFactory>(); });
}

Engine& Engine::instance() {
  // Never destroyed: ops of static objects may still name it at exit. Stopped by an exit handler, which runs before
  // the destructors of whatever was loaded before the first use (oneTBB among them); see also at_exit.cc.
  return detail::first_use([] {
    EngineOptions options;
    options.providers = instance_providers();
    auto* made = new Engine(options);
    const char* path = std::getenv("SLUICE_TRACE");
    if (path && *path) made->start_trace();
    made->watch(detail::watchdog_limit());
    std::atexit([] {
      Engine& e = Engine::instance();
      if (detail::thread_state().operation) return;  // a body called exit(): it cannot wait for itself
      try {
        {
          const detail::ExitTime time(true);
          if (!e.end(time.left(), true)) e.stop(StopMode::drain, std::chrono::nanoseconds(0));
        }
        e.watch(std::chrono::nanoseconds(0));  // what its hook names may go from here on
        if (const char* file = std::getenv("SLUICE_TRACE"); file && *file) write_trace(file, e.stop_trace());
      } catch (const ForkedError&) {
      } catch (const std::exception& error) {
        std::fprintf(stderr, "sluice: at exit: %s\n", error.what());
      }
    });
    return made;
  });
}

namespace detail {
Capture::Capture(CoreBase& core, std::shared_ptr<ProgramBase> program) : core_(core), program_(std::move(program)) {
  thread_state().recorder = program_.get();
}
Capture::~Capture() { thread_state().recorder = nullptr; }
Program Capture::finish() {
  core_.end_capture(*program_);
  return Program(std::move(program_));
}
}  // namespace detail

Ticket Engine::replay(const Program& program, std::source_location where) {
  return core_->replay(program.get(), PushOptions{.name = "replay"}, where);
}
Variable Engine::variable(const char* name, bool has_value) { return Variable(core_->new_variable(name, has_value)); }
bool Engine::wait_until(const Variable& variable, std::chrono::nanoseconds limit, const WaitOptions& how,
                        const std::source_location& where) {
  return core_->wait_variable(variable.get(), limit, how.help, where);
}
void Engine::wait_all(const WaitOptions& how) { core_->wait_all(how.help); }
void Engine::clear_errors() { core_->clear_errors(); }
ErrorRef Engine::error_of(const Variable& variable) const { return core_->error_of(variable.get()); }
Ticket Engine::push_recover(const Variable& variable, std::source_location where) {
  return core_->push_recover(variable.get(), where);
}
Borrow Engine::borrow(Access access, std::source_location where) { return core_->borrow(access, where); }
bool Engine::stop(StopMode mode, std::chrono::nanoseconds deadline) {
  if (mode == StopMode::cancel) cancelled_.store(true);
  const bool done = core_->stop(mode, deadline);
  if (!done) watchdog_->report_open("stop: the deadline came with ", " in flight.");
  return done;
}
std::string Engine::explain_variable(const Variable& variable) const { return watchdog_->explain(variable.get()); }
std::string Engine::explain(const Ticket& op) const {
  if (op.core_ && op.core_ != core_.get()) throw UsageError("[explain] the ticket belongs to another engine");
  return watchdog_->explain(op.id());
}
void Engine::watch(std::chrono::nanoseconds limit, std::function<void(const std::string&)> hook) {
  watchdog_->watch(limit, std::move(hook));
}
std::string Engine::overdue(std::chrono::nanoseconds limit, std::chrono::steady_clock::time_point now) {
  return watchdog_->overdue(limit, now);
}
void Engine::on_unobserved_error(std::function<void(const ErrorRoot&)> hook) { core_->on_unobserved(std::move(hook)); }
std::size_t Engine::in_flight() const { return core_->in_flight(); }
int Engine::threads(Device device) const { return core_->threads(device); }
int Engine::device_count(DeviceKind kind) const { return core_->device_count(kind); }
std::shared_ptr<Provider> Engine::provider(Device device) const { return core_->provider(device); }
void* Engine::keep(Device device, const std::function<std::shared_ptr<void>()>& make) {
  return core_->keep(device, make);
}
LaneStats Engine::lane_stats(const Place& place) const { return core_->lane_stats(place); }
void Engine::start_trace() { core_->start_trace(); }
std::vector<TraceEvent> Engine::stop_trace() { return core_->stop_trace(); }
std::vector<LoggedPush> Engine::take_order() { return core_->take_order(); }

}  // namespace sluice
