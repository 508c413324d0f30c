// Programs for the judge of mutants: devices that lack something, lanes that are full, watchers that come and go.
#include "bed.h"
#include "programs.h"

namespace sluice::mutants {
namespace {

void nothing() {}

/// Sets what the destructor of an op's closure tells.
struct Ends {
  explicit Ends(ExplorePolicy::Atomic<int>& c) : count(&c) {}
  Ends(Ends&& other) noexcept : count(std::exchange(other.count, nullptr)) {}
  ~Ends() {
    if (count) count->fetch_add(1, relaxed);
  }
  ExplorePolicy::Atomic<int>* count;
};

/// What became of some ops.
struct Outcomes : Bed {
  using Bed::Bed;
  struct Pushed {
    Ticket ticket;
    Value* value;  ///< that it updates
  };
  /// All that failed have one error. Returns it; null: none failed.
  ErrorRef one_root(const std::vector<Pushed>& ops) {
    ErrorRef root;
    for (const Pushed& p : ops) {
      const ErrorRef error = thrown([&] { p.ticket.wait(); });
      if (error && root && error != root) fail("what one loss ended has two errors");
      if (error) root = error;
      if (!error && p.value) {
        ++good[static_cast<std::size_t>(p.value - &x[0])];
        if (p.value->number.load(relaxed) < good[static_cast<std::size_t>(p.value - &x[0])])
          fail("an op that is done did not do its work");
      }
    }
    return root;
  }
  /// Ops failed, and perhaps after their work was done.
  void count_what_is_there() {
    for (Value& v : x) v.updates = v.number.load();
  }
  std::array<int, 8> good{};
};

/// A device is lost with ops in flight: all that are not confirmed fail with one error, and so do later ones, at once.
std::string lost(std::uint64_t seed) {
  auto bed = std::make_unique<Outcomes>(seed);
  Outcomes& b = *bed;
  b.make({.threads = 1, .devices = {{.count = 2, .unconfirmed = b.chance(30) ? 2 : 512}}}, 4);
  const std::uint64_t steps = b.below(120);
  const bool async = b.chance(30);
  const auto pusher = [&b, async] {
    std::vector<Outcomes::Pushed> ops, behind;
    for (std::uint64_t i = 0, n = 2 + b.below(5); i < n; ++i) {
      const bool copy = i % 3 == 2;
      Value& v = b.x[copy ? 1 : 0];
      ops.push_back({b.push_kernel(v, Place(sim(0), copy ? LaneKind::copy_in : LaneKind::compute)), &v});
      if (b.chance(40))
        behind.push_back(
            {b.engine->push([](Context& c) { c.stream()->launch(nothing); }, {read(v.variable)}, {.on = sim(1)}), &v});
      if (b.chance(40)) b.push_kernel(b.x[2], sim(1));
    }
    if (async)
      ops.push_back({b.engine->push(
                         [](Context& c, Completion done) {
                           c.stream()->launch(nothing);
                           done.done();
                         },
                         {read(b.x[1].variable)}, {.on = sim(0)}),
                     nullptr});
    const ErrorRef root = b.one_root(ops);
    b.quiet([&] { b.engine->wait(b.x[2].variable); });
    if (!root) return;
    if (root->message.find("sim(0) was lost: it is gone") == std::string::npos) b.fail("what is said of a lost device");
    for (const Outcomes::Pushed& p : behind) {
      const ErrorRef error = b.thrown([&] { p.ticket.wait(); });
      if (error && error != root) b.fail("an op behind one on a lost device has another error");
    }
    const Ticket later = b.engine->push([&b](Context&) { b.fail("a body ran on a lost device"); },
                                        {update(b.x[3].variable)}, {.on = sim(0)});
    if (b.thrown([&] { later.wait(); }) != root) b.fail("an op for a lost device did not fail with its error");
  };
  return run_bed(
      std::move(bed),
      {pusher,
       [&b, steps] {
         for (std::uint64_t i = 0; i < steps; ++i) b.x[3].number.load(relaxed);
         b.devices[0]->lose(0);
       }},
      false, [&b] { b.count_what_is_there(); }, 60'000);
}

/// A device falls silent: at the limit it is lost, with one error, and another device goes on.
std::string silent(std::uint64_t seed) {
  auto bed = std::make_unique<Outcomes>(seed);
  Outcomes& b = *bed;
  b.make({.threads = 1,
          .devices = {{.count = 2, .unconfirmed = b.chance(30) ? 2 : 512, .timed = true}},
          .device_limit = std::chrono::milliseconds(50)},
         4);
  const std::uint64_t steps = b.below(60);
  const auto pusher = [&b] {
    std::vector<Outcomes::Pushed> ops;
    for (std::uint64_t i = 0, n = 3 + b.below(4); i < n; ++i) {
      const bool copy = i % 2;
      Value& v = b.x[copy ? 1 : 0];
      ops.push_back({b.push_kernel(v, Place(sim(0), copy ? LaneKind::copy_in : LaneKind::compute)), &v});
    }
    const ErrorRef root = b.one_root(ops);
    if (root && root->message.find("has not answered for 50 ms") == std::string::npos)
      b.fail("what is said of a silent device");
    // The loss is settled as any error is, although nothing is in flight any more.
    int looks = 0;
    while (root && b.core->settled_errors(sim(0)) != b.devices[0]->errors(0) && ++looks < 100)
      ExplorePolicy::Parker().wait(std::chrono::milliseconds(5));
    if (looks == 100) b.fail("a loss was never settled");
  };
  const auto other = [&b, steps] {
    for (std::uint64_t i = 0; i < steps; ++i) b.x[3].number.load(relaxed);
    b.devices[0]->silence(0);
    const int rounds = 1 + static_cast<int>(b.below(5));
    for (int i = 0; i < rounds; ++i) {
      b.quiet([&] { b.push_kernel(b.x[2], sim(1)).wait(); });
      ExplorePolicy::Parker().wait(std::chrono::milliseconds(15));
    }
  };
  return run_bed(
      std::move(bed), {pusher, other}, true,
      [&b] {
        const int two = b.x[2].updates;
        b.count_what_is_there();
        b.x[2].updates = two;
      },
      100'000);
}

/// More errors than a device keeps: an op that failed is never taken for a good one, and where none was lost no other
/// fails.
std::string suspects(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  const std::size_t kept = 1 + b.below(2);
  const int failing_reads = b.chance(20) ? 2 : 0;
  b.make({.threads = 1, .devices = {{.count = 2, .kept_errors = kept, .failing_reads = failing_reads}}}, 5);
  return run_bed(
      std::move(bed), {[&b, kept, failing_reads] {
        struct Pushed {
          Ticket ticket;
          int reports;
        };
        std::vector<Pushed> ops;
        std::size_t reported = 0;
        for (std::size_t i = 0; i < 5; ++i) {
          const int reports = b.chance(50) ? 1 + static_cast<int>(b.below(2)) : 0;
          const bool slow = b.chance(50), copy = b.chance(50);
          reported += static_cast<std::size_t>(reports);
          const Ticket t = b.engine->push(
              [&b, reports, slow](Context& c) {
                c.stream()->launch([&b, reports, op = current_device_op()] {
                  for (int k = 0; k < reports; ++k) b.devices[0]->report(0, op);
                });
                for (std::uint64_t k = slow ? b.below(60) : 0; k > 0; --k) b.x[0].number.load(relaxed);
              },
              {update(b.x[i].variable)},
              {.on = Place(sim(0), copy ? LaneKind::copy_in : LaneKind::compute), .bytes = std::size_t{b.chance(50)}});
          ops.push_back({t, reports});
        }
        for (const Pushed& p : ops) {
          const ErrorRef error = b.thrown([&] { p.ticket.wait(); });
          if (p.reports && !error) b.fail("an op whose error the device lost is taken for a good one");
          if (!p.reports && error && reported <= kept && !failing_reads) b.fail("an op failed, and no error was lost");
          if (p.reports && error && reported <= kept && !failing_reads && error->message != "x")
            b.fail("an op has not its own error");
        }
        // Who was not in flight is no suspect.
        b.quiet([&] {
          b.engine->push([](Context& c) { c.stream()->launch(nothing); }, {write(b.x[0].variable)}, {.on = sim(0)})
              .wait();
        });
        b.quiet([&] {
          b.engine->push([](Context& c) { c.stream()->launch(nothing); }, {write(b.x[1].variable)}, {.on = sim(1)})
              .wait();
        });
      }});
}

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

/// A kernel that acts for others only where no error came in between (Context::settled_errors).
std::string gates(std::uint64_t seed) {
  struct Shared : Bed {
    using Bed::Bed;
    ExplorePolicy::Atomic<int> opened{0};
    /// Returns at once where the op is not to act.
    static void look(Shared& b, Context& c) {
      const std::uint64_t known = c.settled_errors(sim(0));
      c.stream()->launch([&b, known] {
        if (b.devices[0]->errors(0) == known) b.opened.fetch_add(1, relaxed);
      });
    }
  };
  auto bed = std::make_unique<Shared>(seed);
  Shared& b = *bed;
  b.make({.threads = 1, .devices = {{.count = 2}}}, 3);
  const bool between = b.chance(50), more = b.chance(50);
  std::vector<std::function<void()>> bodies{[&b, between] {
    b.engine->push([](Context& c) { c.stream()->launch([] { throw std::runtime_error("x"); }); },
                   {write(b.x[0].variable)}, {.on = sim(0)});
    if (between)
      b.engine->push([&b](Context& c) { b.x[2].number.load(relaxed), c.stream()->launch(nothing); },
                     {read(b.x[0].variable), write(b.x[1].variable)},
                     {.on = Place(sim(static_cast<int>(b.below(2))), LaneKind::copy_in)});
    const Ticket gate =
        b.engine->push([&b](Context& c) { Shared::look(b, c); }, {read(b.x[between ? 1 : 0].variable)}, {.on = sim(1)});
    if (!b.throws(ErrorKind::failed, [&] { gate.wait(); })) b.fail("an op that used what failed did not fail");
    if (b.opened.load(relaxed) > 0) b.fail("a kernel acted on what had failed");
    while (b.core->settled_errors(sim(0)) == 0) ExplorePolicy::pause();
    b.quiet([&] { b.engine->push([&b](Context& c) { Shared::look(b, c); }, {}, {.on = sim(1)}).wait(); });
    if (b.opened.load(relaxed) != 1) b.fail("a kernel did not act, and nothing had failed");
  }};
  if (more)
    bodies.push_back([&b] {
      for (int i = 0; i < 3; ++i) b.push_kernel(b.x[2], sim(static_cast<int>(b.below(2))));
    });
  return run_bed(std::move(bed), std::move(bodies));
}

/// Errors while several wait for what failed, by tickets and by variables, in bodies and outside.
std::string late_errors(std::uint64_t seed) {
  struct Shared : Bed {
    using Bed::Bed;
    Ticket failing;
    ExplorePolicy::Atomic<bool> pushed{false};
  };
  auto bed = std::make_unique<Shared>(seed);
  Shared& b = *bed;
  b.make({.threads = 1, .devices = {{.count = 2}}}, 3);
  const auto waiter = [&b] {
    while (!b.pushed.load(std::memory_order_acquire)) ExplorePolicy::pause();
    const bool inside = b.chance(40), by_ticket = b.chance(50);
    const auto wait = [&b, by_ticket] { by_ticket ? b.failing.wait() : b.engine->wait(b.x[0].variable); };
    bool threw = false;
    if (inside) {
      const Ticket t = b.engine->push(wait, {});
      threw = b.throws(ErrorKind::failed, [&] { t.wait(); });
    } else {
      threw = b.throws(ErrorKind::failed, wait);
    }
    if (!threw) b.fail("who waited for what failed on a device was not told");
  };
  return run_bed(std::move(bed), {[&b] {
                                    for (int i = 0; i < 2; ++i) b.push_kernel(b.x[1], sim(0));
                                    b.failing = b.engine->push(
                                        [](Context& c) { c.stream()->launch([] { throw std::runtime_error("x"); }); },
                                        {write(b.x[0].variable)}, {.on = sim(0)});
                                    b.pushed.store(true, std::memory_order_release);
                                    for (int i = 0; i < 2; ++i)
                                      b.push_kernel(b.x[1], sim(static_cast<int>(b.below(2))));
                                    b.quiet([&] { b.engine->wait(b.x[1].variable); });
                                  },
                                  waiter, waiter});
}

/// Of several inputs that failed, the one that is named first says why, also where it is known last.
std::string which_error(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1, .devices = {{.count = 2}}}, 2);
  const bool host = b.chance(50), swapped = b.chance(50);
  return run_bed(std::move(bed), {[&b, host, swapped] {
                   const auto device = [](Context& c) { c.stream()->launch([] { throw std::runtime_error("x"); }); };
                   const Variable& first = b.x[swapped ? 1 : 0].variable;
                   const Variable& second = b.x[swapped ? 0 : 1].variable;
                   const Ticket late = b.engine->push(device, {write(first)}, {.on = sim(0)});
                   const Ticket other =
                       host ? b.engine->push([] { throw std::runtime_error("y"); }, {write(second)})
                            : b.engine->push(device, {write(second)}, {.on = Place(sim(0), LaneKind::copy_in)});
                   const Ticket both = b.engine->push([](Context& c) { c.stream()->launch(nothing); },
                                                      {read(first), read(second)}, {.on = sim(1)});
                   const ErrorRef expected = b.thrown([&] { late.wait(); });
                   const ErrorRef error = b.thrown([&] { both.wait(); });
                   b.thrown([&] { other.wait(); });
                   if (!expected || error != expected) b.fail("of several errors an op has another one");
                 }});
}

/// No thread for the watcher, and no memory for points.
std::string no_watcher(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  const bool records = b.chance(40);
  failing_watchers = b.chance(60) ? 1 + static_cast<int>(b.below(6)) : b.chance(50) ? 10'000 : 0;
  b.make(
      {.threads = 1,
       .devices = {{.count = 2, .failing_records = records ? 2 + static_cast<int>(b.below(3)) : 0, .timed = records}}},
      2);
  const bool several = b.chance(50);
  std::vector<std::function<void()>> bodies{[&b] {
    for (int i = 0; i < 3; ++i) {
      b.push_kernel(b.x[0], sim(0));
      b.push_update(b.x[1]);
      b.push_kernel(b.x[1], sim(1));
      if (b.chance(50)) b.thrown([&] { b.engine->wait(b.x[b.below(2)].variable); });
    }
    b.thrown([&] { b.engine->wait(b.x[0].variable); });
    b.thrown([&] { b.engine->wait(b.x[1].variable); });
  }};
  if (several)
    bodies.push_back([&b] {
      for (int i = 0; i < 3; ++i) b.thrown([&] { b.push_kernel(b.x[0], sim(1)).wait(); });
    });
  const std::string verdict = run_bed(std::move(bed), std::move(bodies), true, [&b, records] {
    // Without a point an op of another stream has nothing to wait for, and fails.
    for (Value& v : b.x)
      if (records) v.updates = v.number.load();
  });
  failing_watchers = 0;
  return verdict;
}

/// A watcher that stays for a while, parked: woken by later points; it leaves; the engine ends meanwhile.
std::string parked(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  watch_stays = true;
  slots_of_others = 1;  // the watcher's
  b.make({.threads = 1, .devices = {{.count = 2}}}, 2);
  const bool loosely = b.chance(50), sleeps = b.chance(30), several = b.chance(50);
  if (loosely) Explorer::get().park_loosely();
  const auto ends = [&b] {
    for (Value& v : b.x)
      if (v.number.load() != v.updates) b.fail("an update was lost, or made twice");
    b.x.clear();
    b.engine.reset();
  };
  std::vector<std::function<void()>> bodies{[&b, sleeps, several, ends] {
    for (int i = 0; i < 4; ++i) {
      b.push_kernel(b.x[0], sim(static_cast<int>(b.below(2))));
      if (b.chance(50)) b.quiet([&] { b.engine->wait(b.x[0].variable); });
      if (sleeps && i == 1) ExplorePolicy::Parker().wait(std::chrono::milliseconds(300));
    }
    b.quiet([&] { b.engine->wait(b.x[0].variable); });
    if (!several) ends();
  }};
  if (several)
    bodies.push_back([&b] {
      for (std::uint64_t i = b.below(300); i > 0; --i) b.x[1].number.load(relaxed);
      for (int i = 0; i < 3; ++i) b.quiet([&] { b.push_kernel(b.x[1], Place(sim(1), LaneKind::copy_in)).wait(); });
    });
  const std::string verdict = run_bed(std::move(bed), std::move(bodies), sleeps || several || loosely);
  watch_stays = false;
  slots_of_others = 0;
  return verdict;
}

/// Ops whose body has answered their Completion and throws afterwards: the first answer counts.
std::string answered(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1, .gpus = 1}, 1);
  const Place place = b.chance(50) ? Place(sim(0)) : Place(cpu(0));
  return run_bed(
      std::move(bed), {[&b, place] {
        const int how = static_cast<int>(b.below(4));
        const Ticket t = b.engine->push(
            [&b, how](Completion done) {
              b.update_value(b.x[0]);
              if (how == 0) done.done(), done.done();
              if (how == 1) done.fail(std::make_exception_ptr(std::runtime_error("x"))), done.done();
              if (how == 2) return;
              throw std::runtime_error("y");
            },
            {update(b.x[0].variable)}, {.on = place});
        ++b.x[0].updates;
        const ErrorRef error = b.thrown([&] { t.wait(); });
        if (how == 0 ? error != nullptr : !error) b.fail("what an op came to that was answered");
        if (how == 2 ? error->kind != ErrorKind::abandoned : error && error->message != (how == 1 ? "x" : "y"))
          b.fail("what an op failed with that was answered");
      }});
}

}  // namespace

std::vector<Drawn> device_programs() {
  return {{"lost", lost, "lose:"},
          {"silent", silent},
          {"suspects", suspects, "doubts"},
          {"foreign", foreign, "wait_on_device"},
          {"held back", held_back, "release_held"},
          {"many readers", many_readers, "wait_on_device: issued"},
          {"foreign replays", foreign_replays},
          {"full", full, "make_room"},
          {"crowded", crowded, "lock_place"},
          {"awaits issued", awaits_issued, "await_issued"},
          {"gates", gates, "settle"},
          {"gates in time", gates, "doubts.load"},
          {"which error", which_error, "issue: finish_pending"},
          {"late errors", late_errors},
          {"no watcher", no_watcher, "start_watch"},
          {"parked", parked, "run_watch"},
          {"parked again", parked, "start_watch: state"},
          {"answered", answered, "told.store"}};
}

}  // namespace sluice::mutants
