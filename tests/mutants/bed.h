// What the programs of the mutants' judge stand on: an engine, values that only the protocol orders, and a verdict.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chosen.h"
#include "sluice/engine/detail/core.h"
#include "sluice/engine/explore/explore.h"
#include "streams.h"

namespace sluice::mutants {

using detail::ExplorePolicy;
using detail::Explorer;

inline constexpr auto relaxed = std::memory_order_relaxed;

/// A variable with a value. Bodies read and write it with relaxed atomics of the explorer, in steps: what the protocol
/// does not order they may see old, and an update that overlaps another is lost.
struct Value {
  Variable variable;
  ExplorePolicy::Atomic<int> number{0};
  int users = 0;    ///< right now: -1 alone
  int updates = 0;  ///< pushed, and not known to be skipped
};

/// Of CoreOptions, what the programs set.
struct Size {
  int threads = 1, cpus = 1, gpus = 0;
  std::vector<DeviceTraits> devices{};  ///< one provider for each; `gpus` is one more, of ordinary devices
  std::chrono::nanoseconds device_limit{0};
  std::int64_t max_ops = 16384;
  std::size_t max_bytes = std::size_t{4} << 30;
  bool serial = false;
  detail::CounterStart counters{};
};

struct Bed {
  explicit Bed(std::uint64_t seed) : draw(seed * 7919) {}
  virtual ~Bed() = default;
  Bed(const Bed&) = delete;
  Bed& operator=(const Bed&) = delete;

  void make(const Size& size, int values) {
    detail::CoreOptions options;
    options.serial = size.serial;
    options.threads = size.threads;
    options.logical_cpus = size.cpus;
    options.providers.push_back(detail::make_cpu_provider(size.cpus));
    if (size.gpus) options.providers.push_back(explored_devices({.count = size.gpus}));
    for (const DeviceTraits& traits : size.devices)
      options.providers.push_back(devices.emplace_back(explored_devices(traits)));
    options.device_limit = size.device_limit;
    options.max_ops = size.max_ops;
    options.max_bytes = size.max_bytes;
    options.counters = size.counters;
    const std::shared_ptr<detail::CoreBase> made = detail::make_exploring_core(options, draw());
    core = made.get();
    engine.emplace(made);
    engine->on_unobserved_error([](const ErrorRoot&) {});
    for (int i = 0; i < values; ++i) x.emplace_back().variable = engine->variable("x");
  }
  std::uint64_t below(std::uint64_t n) { return draw.below(n); }
  bool chance(std::uint64_t percent) { return draw.below(100) < percent; }

  void fail(const char* why) {
    if (!wrong) wrong = why;
  }
  /// In a body that has the value alone.
  void update_value(Value& v) {
    if (v.users != 0) fail("two bodies that conflict at once");
    v.users = -1;
    const int seen = v.number.load(relaxed);
    v.number.store(seen + 1, relaxed);
    v.users = 0;
  }
  /// A body that takes its time: others look meanwhile, and look again.
  void slow() {
    for (int i = 0; i < 60; ++i) x[0].number.load(relaxed);
  }
  void read_value(Value& v, int at_least = 0) {
    if (v.users < 0) fail("a reader beside a writer");
    ++v.users;
    if (v.number.load(relaxed) < at_least) fail("a reader saw too old a value");
    --v.users;
  }
  Ticket push_update(Value& v, const PushOptions& options = {}) {
    ++v.updates;
    return engine->push([this, &v] { update_value(v); }, {update(v.variable)}, options);
  }
  Ticket push_read(Value& v, const PushOptions& options = {}) {
    return engine->push([this, &v] { read_value(v); }, {read(v.variable)}, options);
  }
  Ticket push_two(Value& a, Value& b, const PushOptions& options = {}) {
    ++a.updates, ++b.updates;
    return engine->push([this, &a, &b] { update_value(a), update_value(b); }, {update(a.variable), update(b.variable)},
                        options);
  }
  /// An update by a kernel, or by what stands before it in the stream.
  Ticket push_kernel(Value& v, const Place& on) {
    ++v.updates;
    return engine->push([this, &v](Context& c) { c.stream()->launch([this, &v] { update_value(v); }); },
                        {update(v.variable)}, {.on = on});
  }
  /// The error that f throws; null: none.
  template <class F>
  ErrorRef thrown(F&& f) {
    try {
      f();
    } catch (const Error& e) {
      return e.root_ref();
    }
    return nullptr;
  }
  /// Calls f; what it throws is told only if it is not of this kind.
  template <class F>
  bool throws(ErrorKind kind, F&& f) {
    try {
      f();
    } catch (const Error& e) {
      if (e.root().kind != kind) fail("an error of another kind");
      return true;
    }
    return false;
  }
  template <class F>
  void quiet(F&& f) {
    try {
      f();
    } catch (const std::exception& e) {
      what = e.what();
      fail(what.c_str());
    }
  }

  detail::Draw draw;
  detail::CoreBase* core = nullptr;
  std::optional<Engine> engine;
  std::deque<Value> x;
  std::vector<std::shared_ptr<ExploredDevices>> devices;
  const char* wrong = nullptr;
  std::string what;
};

/// Runs the bodies as threads, then looks at what there is in the end. `stalls`: time limits may run out. After a hang
/// everything is left as it stands.
inline std::string run_bed(std::unique_ptr<Bed> bed, std::vector<std::function<void()>> bodies, bool stalls = false,
                           const std::function<void()>& finally = {}, std::uint64_t max_points = 30'000) {
  Explorer& explorer = Explorer::get();
  if (!explorer.run(std::move(bodies), max_points)) {
    static_cast<void>(bed.release());
    return "a hang";
  }
  if (explorer.race()) return std::string("a race on ") + explorer.race();
  if (explorer.stalls() && !stalls) return "a lost wake-up: all stood until a time limit passed";
  if (finally) finally();
  if (bed->wrong) return std::string(bed->wrong);
  for (Value& v : bed->x)
    if (v.number.load() != v.updates) return "an update was lost, or made twice";
  if (bed->engine && bed->engine->in_flight() != 0) return "ops in flight at the end";
  return "";
}

}  // namespace sluice::mutants
