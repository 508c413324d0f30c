// Programs for the judge of mutants: waits that can never end, looked for while others push and wait.
#include "bed.h"
#include "programs.h"

namespace sluice::mutants {
namespace {

/// Looks are due at every wake-up, and waiting threads wake up for no reason; else time passes only where all stand.
struct Looking : Bed {
  explicit Looking(std::uint64_t seed) : Bed(seed) { looks_at_once = true; }
  ~Looking() override { looks_at_once = false; }
  void until(const ExplorePolicy::Atomic<bool>& flag) {
    while (!flag.load(std::memory_order_acquire)) ExplorePolicy::pause();
  }
};

/// Ops that wait for one another in a circle: the last to begin gives up, and the others meet its error. If one of the
/// waits has a time limit there is no circle.
std::string circles(std::uint64_t seed) {
  struct Circle : Looking {
    using Looking::Looking;
    std::array<Ticket, 3> ops;
    ExplorePolicy::Atomic<bool> pushed{false};
  };
  auto bed = std::make_unique<Circle>(seed);
  Circle& b = *bed;
  const std::size_t n = 2 + b.below(2);
  const bool ends = b.chance(30), others = b.chance(60);
  b.make({.threads = 1 + static_cast<int>(b.below(2))}, 4);
  Explorer::get().park_loosely();
  std::vector<std::function<void()>> bodies{[&b, n, ends] {
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t next = (i + 1) % n;
      const bool by_ticket = b.chance(40), bounded = ends && i == 0, reads = b.chance(30);
      b.ops[i] = b.engine->push(
          [&b, next, by_ticket, bounded] {
            b.until(b.pushed);
            const std::chrono::nanoseconds limit =
                bounded ? std::chrono::nanoseconds(30'000) : std::chrono::nanoseconds::max();
            by_ticket ? b.ops[next].wait_for(limit) : b.engine->wait_for(b.x[next].variable, limit);
          },
          {reads && !by_ticket ? read(b.x[i].variable) : write(b.x[i].variable)});
      // Behind a read stands a write, and that is what is waited for.
      if (reads && !by_ticket) b.engine->push([] {}, {write(b.x[i].variable)});
    }
    b.pushed.store(true, std::memory_order_release);
    ErrorRef first;
    for (std::size_t i = 0; i < n; ++i) {
      const ErrorRef error = b.thrown([&] { b.ops[i].wait(); });
      if (error && error->kind != ErrorKind::deadlock) b.fail("a circle ended with an error of another kind");
      if (error && first && error != first) b.fail("a circle has two errors");
      if (error) first = error;
    }
    if (first && ends) b.fail("a wait that ends by itself was taken for one that never does");
    if (!first && !ends) b.fail("a circle was not found");
  }};
  if (others)
    bodies.push_back([&b, n] {
      for (int i = 0; i < 4; ++i) {
        const std::size_t at = b.below(n);
        const Ticket t = b.engine->push([] {}, {b.chance(50) ? read(b.x[at].variable) : update(b.x[at].variable)});
        if (b.chance(40)) b.thrown([&] { t.wait(); });
      }
    });
  return run_bed(std::move(bed), std::move(bodies), true, {}, 60'000);
}

/// Waits that stand behind others and do end, while all look: none may be taken for a circle.
std::string no_circles(std::uint64_t seed) {
  auto bed = std::make_unique<Looking>(seed);
  Looking& b = *bed;
  b.make({.threads = 1 + static_cast<int>(b.below(2))}, 4);
  Explorer::get().park_loosely();
  const auto pusher = [&b](std::size_t own) {
    return [&b, own] {
      for (std::size_t i = 0; i < 3; ++i) {
        // Waits for what was pushed before it, of a variable with a smaller number.
        ++b.x[own + 1].updates;
        b.engine->push(
            [&b, own] {
              b.quiet([&] { b.engine->wait(b.x[own].variable); });
              b.update_value(b.x[own + 1]);
            },
            {update(b.x[own + 1].variable)});
        b.push_update(b.x[own]);
        b.push_read(b.x[own + 1]);
      }
      b.quiet([&] { b.engine->wait(b.x[own + 1].variable); });
    };
  };
  std::vector<std::function<void()>> bodies{pusher(0), pusher(2)};
  if (b.chance(50))
    bodies.push_back([&b] {
      for (std::size_t i = 0; i < 2; ++i) {
        const Borrow held = b.engine->borrow(b.chance(50) ? read(b.x[i].variable) : update(b.x[i].variable));
        b.quiet([&] { b.engine->wait(b.x[3].variable); });
      }
    });
  return run_bed(std::move(bed), std::move(bodies), true, {}, 60'000);
}

/// Borrows in circles: of a thread that waits for what stands behind its own, and of two that wait for each other's.
std::string borrows(std::uint64_t seed) {
  struct Shared : Looking {
    using Looking::Looking;
    ExplorePolicy::Atomic<int> have{0};
    int threw = 0;
  };
  auto bed = std::make_unique<Shared>(seed);
  Shared& b = *bed;
  b.make({.threads = 1}, 2);
  const bool two = b.chance(50);
  Explorer::get().park_loosely();
  const auto taker = [&b, two](std::size_t own) {
    return [&b, two, own] {
      const Borrow held = b.engine->borrow(update(b.x[own].variable));
      if (!two) {
        b.push_two(b.x[0], b.x[1]);
        if (!b.throws(ErrorKind::deadlock, [&] { b.engine->wait(b.x[1].variable); }))
          b.fail("a wait for what stands behind its own Borrow did not throw");
        return;
      }
      b.have.fetch_add(1, std::memory_order_acq_rel);
      while (b.have.load(std::memory_order_acquire) < 2) ExplorePolicy::pause();
      b.threw += b.throws(ErrorKind::deadlock, [&] {
        const Borrow other = b.engine->borrow(read(b.x[1 - own].variable));
        b.x[1 - own].number.load(relaxed);
      });
    };
  };
  std::vector<std::function<void()>> bodies{taker(0)};
  if (two) bodies.push_back(taker(1));
  return run_bed(std::move(bed), std::move(bodies), true, [&b, two] {
    if (two && b.threw != 1) b.fail("of two that wait for each other's Borrow one gives up");
  });
}

/// In serial mode an op runs on the stack of a thread that has a Borrow, and waits for what stands behind that.
std::string borrow_below(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.serial = true}, 2);
  const bool passes = b.chance(30);
  return run_bed(std::move(bed), {[&b, passes] {
                   Borrow held = b.engine->borrow(update(b.x[passes ? 1 : 0].variable));
                   const Ticket t = b.engine->push([&b] { b.engine->wait(b.x[0].variable); }, {});
                   if (b.throws(ErrorKind::deadlock, [&] { t.wait(); }) == passes)
                     b.fail(passes ? "a wait that can end was taken for a circle" : "a circle was not found");
                 }},
                 true);
}

/// A Borrow is granted to who does not wait in a list: what it sees was written before.
std::string granted(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1}, 1);
  const bool fails = b.chance(30);
  return run_bed(std::move(bed), {[&b, fails] {
                   for (int i = 1; i < 5; ++i) {
                     b.push_update(b.x[0]);
                     const Borrow held = b.engine->borrow(i % 2 ? read(b.x[0].variable) : update(b.x[0].variable));
                     if (b.x[0].number.load(relaxed) != i) b.fail("who has a Borrow does not see what was written");
                   }
                   if (!fails) return;
                   b.engine->push([] { throw std::runtime_error("x"); }, {write(b.x[0].variable)});
                   if (!b.throws(ErrorKind::failed, [&] { b.engine->borrow(read(b.x[0].variable)); }))
                     b.fail("a Borrow of what failed did not throw");
                 }});
}

/// However long others have waited, a circle is found soon after its last wait has begun.
std::string found_soon(std::uint64_t seed) {
  struct Shared : Bed {
    using Bed::Bed;
    Completion late;
    ExplorePolicy::Atomic<bool> given{false};
  };
  auto bed = std::make_unique<Shared>(seed);
  Shared& b = *bed;
  b.make({.threads = 2}, 3);
  const int naps = static_cast<int>(b.below(8));
  return run_bed(std::move(bed), {[&b, naps] {
                   b.engine->push(
                       [&b](Completion done) {
                         b.late = std::move(done);
                         b.given.store(true, std::memory_order_release);
                       },
                       {write(b.x[0].variable)});
                   const Ticket waits = b.engine->push([&b] { b.engine->wait(b.x[0].variable); }, {});
                   for (int i = 0; i < naps; ++i) ExplorePolicy::Parker().wait(std::chrono::milliseconds(150));
                   const Ticket circle = b.engine->push(
                       [&b] {
                         const std::int64_t begin = ExplorePolicy::now();
                         b.engine->push([] {}, {read(b.x[1].variable)});
                         const Ticket behind = b.engine->push([] {}, {update(b.x[1].variable)});
                         if (!b.throws(ErrorKind::deadlock, [&] { behind.wait(); }))
                           b.fail("a wait that can never end did not throw");
                         if (ExplorePolicy::now() - begin > 60'000'000) b.fail("a circle was found late");
                       },
                       {write(b.x[1].variable)});
                   b.quiet([&] { circle.wait(); });
                   while (!b.given.load(std::memory_order_acquire)) ExplorePolicy::pause();
                   Completion(std::move(b.late)).done();
                   b.quiet([&] { waits.wait(); });
                 }},
                 true, {}, 60'000);
}

}  // namespace

std::vector<Drawn> circle_programs() {
  return {{"circles", circles},           {"no circles", no_circles},    {"borrow circles", borrows},
          {"borrow below", borrow_below}, {"granted", granted, "grant"}, {"found soon", found_soon, "next_look"}};
}

}  // namespace sluice::mutants
