// Programs for the judge of mutants: what devices find wrong, early or late, and who is told of it.
#include "bed.h"
#include "programs.h"

namespace sluice::mutants {
namespace {

void nothing() {}

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

}  // namespace

std::vector<Drawn> error_programs() {
  return {{"lost", lost, "lose:"},
          {"silent", silent},
          {"suspects", suspects, "doubts"},
          {"gates", gates, "settle"},
          {"gates in time", gates, "doubts.load"},
          {"which error", which_error, "issue: finish_pending"},
          {"late errors", late_errors}};
}

}  // namespace sluice::mutants
