// Programs for the judge of mutants: devices that cannot wait for one another, and lanes that are full.
#include "bed.h"
#include "programs.h"

namespace sluice::mutants {
namespace {

/// Sets what the destructor of an op's closure tells.
struct Ends {
  explicit Ends(ExplorePolicy::Atomic<int>& c) : count(&c) {}
  Ends(Ends&& other) noexcept : count(std::exchange(other.count, nullptr)) {}
  ~Ends() {
    if (count) count->fetch_add(1, relaxed);
  }
  ExplorePolicy::Atomic<int>* count;
};

/// Two kinds of devices, which cannot wait for one another: ops are held back until the host knows that the others are
/// over.
std::string foreign(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1, .devices = {{.count = 2}, {.kind = DeviceKind::null}}}, 3);
  const auto some = [&b] { return b.chance(50) ? Place(null(0)) : Place(sim(static_cast<int>(b.below(2)))); };
  const auto both = [&b](Value& v, Value& w, const Place& on) {
    ++v.updates;
    b.engine->push(
        [&b, &v, &w](Context& c) { c.stream()->launch([&b, &v, &w] { b.read_value(w), b.update_value(v); }); },
        {update(v.variable), read(w.variable)}, {.on = on});
  };
  const auto pusher = [&b, some, both](std::size_t own) {
    return [&b, some, both, own] {
      for (std::uint64_t i = 0, n = 2 + b.below(4); i < n; ++i) {
        if (b.chance(50)) both(b.x[own], b.x[2], some());
        if (b.chance(30)) b.push_kernel(b.x[2], some());
        if (b.chance(20)) b.push_update(b.x[own]);
        const Ticket t =
            b.engine->push([&b, own](Context& c) { c.stream()->launch([&b, own] { b.read_value(b.x[own]); }); },
                           {read(b.x[own].variable)}, {.on = some()});
        if (b.chance(20)) t.cancel();
      }
      b.quiet([&] { b.engine->wait(b.x[own].variable); });
    };
  };
  return run_bed(std::move(bed), {pusher(0), pusher(1)}, false, {}, 60'000);
}

/// Who cancels an op that is held back, before and after it began for the first time: it runs once, or not at all where
/// the cancel says so.
std::string held_back(std::uint64_t seed) {
  struct Shared : Bed {
    using Bed::Bed;
    ExplorePolicy::Atomic<bool> open{false};
    int runs = 0;
  };
  auto bed = std::make_unique<Shared>(seed);
  Shared& b = *bed;
  b.make({.threads = 1, .devices = {{.count = 1}, {.kind = DeviceKind::null}}}, 1);
  const std::uint64_t steps = b.below(60);
  return run_bed(std::move(bed), {[&b, steps] {
                   ++b.x[0].updates;
                   b.engine->push(
                       [&b](Context& c) {
                         c.stream()->launch([&b] {
                           while (!b.open.load(std::memory_order_acquire)) ExplorePolicy::pause();
                           b.update_value(b.x[0]);
                         });
                       },
                       {update(b.x[0].variable)}, {.on = sim(0)});
                   const Ticket t =
                       b.engine->push([&b](Context&) { ++b.runs; }, {read(b.x[0].variable)}, {.on = null(0)});
                   for (std::uint64_t i = 0; i < steps; ++i) b.x[0].number.load(relaxed);
                   const bool cancelled = t.cancel();
                   b.open.store(true, std::memory_order_release);
                   if (b.throws(ErrorKind::cancelled, [&] { t.wait(); }) != cancelled) b.fail("what a cancel said");
                   if (b.runs != (cancelled ? 0 : 1)) b.fail("how often an op ran that was held back");
                 }});
}

/// More lanes read than a variable has places for (two, here): a write waits for them all the same.
std::string many_readers(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1, .devices = {{.count = 2}, {.kind = DeviceKind::null}}}, 1);
  const auto body = [&b] {
    b.push_kernel(b.x[0], sim(0));
    const int lanes = 3 + static_cast<int>(b.below(2));
    for (int i = 0; i < lanes; ++i)
      b.engine->push(
          [&b](Context& c) { c.stream()->launch([&b] { b.read_value(b.x[0], 1), b.read_value(b.x[0], 1); }); },
          {read(b.x[0].variable)}, {.on = Place(sim(i / 3), static_cast<LaneKind>(i % 3))});
    b.push_kernel(b.x[0], b.chance(20) ? Place(null(0)) : Place(sim(1), LaneKind::copy_out));
    b.quiet([&] { b.engine->wait(b.x[0].variable); });
  };
  return run_bed(std::move(bed), {body}, false, {}, 60'000);
}

/// Replays whose ops are on two kinds of devices, while others are in flight there.
std::string foreign_replays(std::uint64_t seed) {
  struct Captured : Bed {
    using Bed::Bed;
    Program program;
  };
  auto bed = std::make_unique<Captured>(seed);
  Captured& b = *bed;
  b.make({.threads = 1, .devices = {{.count = 2}, {.kind = DeviceKind::null}}}, 3);
  const bool many = b.chance(40);  // readers, in more lanes than a variable has places for
  const auto body = [&b, many] {
    if (many)
      for (int i = 0; i < 4; ++i)
        b.engine->push([&b](Context& c) { c.stream()->launch([&b] { b.read_value(b.x[0]); }); },
                       {read(b.x[0].variable)}, {.on = Place(sim(i / 3), static_cast<LaneKind>(i % 3))});
    b.program = b.engine->capture([&b] {
      for (std::size_t i = 0; i < 4; ++i) {
        Value& v = b.x[i % 2];
        Value& w = b.x[(i + 1) % 2];
        b.engine->push(
            [&b, &v, &w](Context& c) { c.stream()->launch([&b, &v, &w] { b.read_value(w), b.update_value(v); }); },
            {update(v.variable), read(w.variable)}, {.on = i % 2 ? Place(sim(0)) : Place(null(0))});
      }
    });
    for (int i = 0; i < 2; ++i) {
      b.x[0].updates += 2, b.x[1].updates += 2;
      const Ticket t = b.engine->replay(b.program);
      b.push_kernel(b.x[2], sim(0));
      b.push_kernel(b.x[2], sim(1));
      b.quiet([&] { t.wait(); });
      if (b.x[0].number.load(relaxed) != b.x[0].updates) b.fail("a replay did not do its work");
    }
  };
  return run_bed(std::move(bed), {body}, false, {}, 60'000);
}

/// A lane has as much in flight as its device takes.
std::string full(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  const int most = 1 + static_cast<int>(b.below(3));
  b.make({.threads = 1, .devices = {{.count = 2, .unconfirmed = most}}, .max_ops = b.chance(40) ? 3 : 16384}, 2);
  const auto pusher = [&b, most](int device) {
    return [&b, device, most] {
      for (int i = 0; i < 10; ++i) {
        const PushOptions how{.on = sim(device), .bytes = std::size_t{b.chance(30)}};
        Value& v = b.x[b.below(2)];
        ++v.updates;
        b.engine->push(
            [&b, &v, most, device](Context& c) {
              const LaneStats now = b.engine->lane_stats(sim(device));
              if (now.issued - now.finished >= static_cast<std::uint64_t>(most)) b.fail("more in flight than may be");
              c.stream()->launch([&b, &v] { b.update_value(v); });
            },
            {update(v.variable)}, how);
      }
      b.quiet([&] { b.engine->wait_all(); });
      const LaneStats now = b.engine->lane_stats(sim(device));
      if (now.points == 0 || now.points > now.issued) b.fail("how many points there were");
    };
  };
  std::vector<std::function<void()>> bodies{pusher(0)};
  if (b.chance(50)) bodies.push_back(pusher(1));
  return run_bed(std::move(bed), std::move(bodies), false, {}, 100'000);
}

/// Bodies that wait, on a stream's lane, so that substitutes issue beside them: more than the lane has room for.
std::string crowded(std::uint64_t seed) {
  struct Shared : Bed {
    using Bed::Bed;
    ExplorePolicy::Atomic<int> begun{0}, through{0};
    static void until(const ExplorePolicy::Atomic<int>& count, int n) {
      while (count.load(std::memory_order_acquire) < n) ExplorePolicy::pause();
    }
  };
  auto bed = std::make_unique<Shared>(seed);
  Shared& b = *bed;
  b.make({.threads = 1, .devices = {{.count = 1, .kept_errors = 1}}}, 2);
  const bool fails = b.chance(30), slow = b.chance(70);
  static constexpr int kOps = 11, kRoom = 8;
  return run_bed(std::move(bed), {[&b, fails, slow] {
                   b.engine->push(
                       [&b] {
                         Shared::until(b.begun, kOps);
                         b.update_value(b.x[0]);
                       },
                       {update(b.x[0].variable)});
                   ++b.x[0].updates;
                   std::vector<Ticket> ops;
                   for (int i = 0; i < kOps; ++i)
                     ops.push_back(b.engine->push(
                         [&b, fails, slow](Context& c) {
                           c.stream()->launch([&b, fails, slow, op = current_device_op()] {
                             if (slow) Shared::until(b.through, kRoom + 1);
                             if (fails) b.devices[0]->report(0, op);
                           });
                           b.begun.fetch_add(1, std::memory_order_acq_rel);
                           b.quiet([&] { b.engine->wait(b.x[0].variable); });
                           if (b.x[0].number.load(relaxed) < 1) b.fail("a wait ended too early");
                           b.through.fetch_add(1, std::memory_order_acq_rel);
                         },
                         {}, {.on = sim(0)}));
                   for (const Ticket& t : ops)
                     if (b.throws(ErrorKind::failed, [&] { t.wait(); }) != fails) b.fail("what a kernel came to");
                 }},
                 true, {}, 200'000);
}

/// A body waits until all that was issued is over.
std::string awaits_issued(std::uint64_t seed) {
  struct Shared : Bed {
    using Bed::Bed;
    ExplorePolicy::Atomic<int> ended{0};
  };
  auto bed = std::make_unique<Shared>(seed);
  Shared& b = *bed;
  b.make({.threads = 1, .devices = {{.count = 2}, {.kind = DeviceKind::null}}}, 2);
  const bool loses = b.chance(20);
  std::vector<std::function<void()>> bodies{[&b, loses] {
    const auto launch = [&b](Value& v, const Place& on) {
      ++v.updates;
      return b.engine->push(
          [&b, &v, end = Ends(b.ended)](Context& c) { c.stream()->launch([&b, &v] { b.update_value(v); }); },
          {update(v.variable)}, {.on = on});
    };
    const int before = 1 + static_cast<int>(b.below(4));
    for (int i = 0; i < before; ++i) launch(b.x[0], sim(0));
    // Behind one that is issued, on another device: so all of them are.
    const Ticket asks = b.engine->push(
        [&b, before, loses](Context& c) {
          c.await_issued();
          if (loses) return;
          if (b.x[0].number.load(relaxed) < before) b.fail("what was issued is not over");
          if (b.ended.load(relaxed) < before) b.fail("what was issued still has what it used");
        },
        {read(b.x[0].variable)}, {.on = b.chance(50) ? Place(sim(1)) : Place(sim(0))});
    if (b.chance(50)) launch(b.x[1], null(0)), launch(b.x[1], sim(0));
    const ErrorRef error = b.thrown([&] { asks.wait(); });
    if (error && !loses) b.fail("who waited for what was issued failed");
  }};
  if (loses) bodies.push_back([&b] { b.slow(), b.devices[0]->lose(0); });
  return run_bed(std::move(bed), std::move(bodies), false, [&b, loses] {
    for (Value& v : b.x)
      if (loses) v.updates = v.number.load();
  });
}

}  // namespace

std::vector<Drawn> device_programs() {
  return {{"foreign", foreign, "wait_on_device"},
          {"held back", held_back, "release_held"},
          {"many readers", many_readers, "wait_on_device: issued"},
          {"foreign replays", foreign_replays},
          {"full", full, "make_room"},
          {"crowded", crowded, "lock_place"},
          {"awaits issued", awaits_issued, "await_issued"}};
}

}  // namespace sluice::mutants
