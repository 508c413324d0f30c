// Programs for the judge of mutants: tokens, chains and records.
#include "bed.h"
#include "programs.h"

namespace sluice::mutants {
namespace {

/// A few accesses to one variable, each op with no other.
std::string one_variable(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1 + static_cast<int>(b.below(3))}, 1);
  const bool drops = b.chance(30), waits = b.chance(40);
  std::vector<std::function<void()>> pushers;
  for (std::uint64_t t = 2 + b.below(2); t > 0; --t)
    pushers.push_back([&b, waits, drops, reads = b.below(2), n = 1 + b.below(3), mine = b.x[0].variable]() mutable {
      for (std::uint64_t i = 0; i < n; ++i) i % 2 == reads ? b.push_update(b.x[0]) : b.push_read(b.x[0]);
      if (waits) {
        b.engine->wait(mine);
        if (b.x[0].number.load(relaxed) < static_cast<int>(n / 2)) b.fail("a wait ended too early");
      }
      if (drops) mine = {};
    });
  if (drops) b.x[0].variable = {};
  return drops ? run_bed(std::move(bed), {[&b, mine = b.engine->variable()]() mutable {
                           // Its handle goes while its op is in flight.
                           auto* const v = &b.x[0];
                           v->variable = std::move(mine);
                           b.push_update(*v), b.push_update(*v);
                           v->variable = {};
                         }})
               : run_bed(std::move(bed), std::move(pushers));
}

/// The same over two variables at once.
std::string two_variables(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 2 + static_cast<int>(b.below(2))}, 3);
  std::vector<std::function<void()>> pushers;
  for (std::uint64_t t = 2 + b.below(2); t > 0; --t)
    pushers.push_back([&b, n = 1 + b.below(3), other = 1 + b.below(2)] {
      b.push_update(b.x[3 - other]);  // so that there is more than one worker
      for (std::uint64_t i = 0; i < n; ++i) b.push_two(b.x[0], b.x[other]);
    });
  return run_bed(std::move(bed), std::move(pushers));
}

/// A closure that pushes as it is made: more than a lap of the records.
std::string pushes_inside(std::uint64_t seed) {
  struct Pushes {
    Pushes(Bed* bed, bool wait) : b(bed), waits(wait) {}
    Pushes(const Pushes& other) : mark(other.mark), b(other.b), waits(other.waits) {
      for (int i = 0; i < 20; ++i) {
        const Ticket t = b->push_update(b->x[0]);
        if (waits) t.wait();
      }
    }
    void operator()() const {
      if (mark != 42) b->fail("an op's record was given to another");
      b->update_value(b->x[1]);
    }
    std::uint64_t mark = 42;  // where another closure would have a pointer
    Bed* b;
    bool waits;
  };
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({}, 2);
  return run_bed(std::move(bed), {[&b, waits = b.chance(80)] {
                   const Pushes body(&b, waits);
                   for (int i = 0; i < 2; ++i) {
                     ++b.x[1].updates;
                     b.engine->push(body, {update(b.x[1].variable)});
                   }
                 }});
}

/// An idle variable that was used and let go since its pusher looked, in a place where little else orders the two.
std::string handed_over(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 2}, 3);
  std::vector<std::function<void()>> pushers{[&b] { b.push_update(b.x[0]); }, [&b] { b.push_two(b.x[0], b.x[1]); }};
  if (b.chance(80)) pushers.push_back([&b] { b.push_update(b.x[2]); });
  return run_bed(std::move(bed), std::move(pushers));
}

/// Two ops, two threads: every way in which they can meet at an idle variable.
std::string pair(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 2}, 2);
  const bool two = b.chance(40), marked = b.chance(30);
  const auto push = [&b, two] { two ? b.push_two(b.x[0], b.x[1]) : b.push_update(b.x[0]); };
  std::vector<std::function<void()>> bodies{push, push};
  if (marked) {  // an overwrite heals; a reader that has not heard of it is skipped
    bodies[0] = [&b] {
      const Ticket bad = b.engine->push([] { throw std::runtime_error("x"); }, {write(b.x[0].variable)});
      b.engine->push([&b] { b.update_value(b.x[0]); }, {write(b.x[0].variable)});
      ++b.x[0].updates;
      b.push_read(b.x[0]);
      if (!b.throws(ErrorKind::failed, [&] { bad.wait(); })) b.fail("an op that failed did not say so");
      b.quiet([&] { b.engine->wait(b.x[0].variable); });
    };
    bodies[1] = [&b] { b.engine->push([] {}, {order(b.x[0].variable)}); };
  }
  return run_bed(std::move(bed), std::move(bodies));
}

/// A reader that sees poison ends while an update is linked behind it: that must hear of the poison.
std::string poisoned(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1 + static_cast<int>(b.below(2))}, 2);
  const int readers = 1 + static_cast<int>(b.below(2));
  return run_bed(std::move(bed), {[&b, readers] {
                   Value& v = b.x[0];
                   const Ticket bad = b.engine->push([] { throw std::runtime_error("x"); }, {write(v.variable)});
                   if (!b.throws(ErrorKind::failed, [&] { bad.wait(); })) b.fail("an op that failed did not say so");
                   ExplorePolicy::start_substitute([&b, &v] {
                     const Ticket t = b.engine->push([&b] { b.fail("an op ran on a poisoned variable"); },
                                                     {update(v.variable), order(b.x[1].variable)});
                     if (!b.throws(ErrorKind::failed, [&] { t.wait(); }))
                       b.fail("an op that was skipped did not say so");
                   });
                   for (int i = 0; i < readers; ++i)
                     b.engine->push(
                         [&b, &v](Context& c) {
                           if (!c.error(v.variable)) b.fail("a reader was not told of the poison");
                         },
                         {read(v.variable)}, {.on_poison = OnPoison::run});
                   const Ticket last =
                       b.engine->push([&b] { b.fail("an op ran on a poisoned variable"); }, {update(v.variable)});
                   if (!b.throws(ErrorKind::failed, [&] { last.wait(); }))
                     b.fail("an op that was skipped did not say so");
                 }});
}

/// Records are used again and again: an op at a time, or a few.
std::string reuse(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  Size options{.threads = 1 + static_cast<int>(b.below(2))};
  if (b.chance(50))
    options.counters = {.generation = 0xfffffffe, .batch = 0xfffffff0, .variables = 0, .pushes = ~std::uint64_t{3}};
  b.make(options, 3);
  std::vector<std::function<void()>> pushers;
  const bool waits = b.chance(50);
  // (Another pusher may sit on a batch of credits.)
  for (std::uint64_t t = credit_batch ? 1 : 1 + b.below(2); t > 0; --t)
    pushers.push_back([&b, rhythm = waits ? 1 + b.below(4) : 1000, from = b.below(3)] {
      std::vector<Ticket> mine;
      for (std::uint64_t i = 1; i < 28; ++i) {
        Value& v = b.x[(from + i) % 3];
        Value& w = b.x[(from + i + 1) % 3];
        mine.push_back(i % 3 == 0 ? b.push_two(v, w) : i % 3 == 1 ? b.push_update(v) : b.push_read(v));
        if (i % rhythm == 0) mine.back().wait();
      }
      for (const Ticket& one : mine) {
        one.wait();
        if (!one.done()) b.fail("a ticket that was waited for is not done");
      }
    });
  return run_bed(std::move(bed), std::move(pushers));
}

/// More accesses than an op record holds.
std::string many_tokens(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 2}, 6);
  const auto push = [&b](std::uint64_t from) {
    std::vector<Access> accesses;
    for (std::uint64_t i = 0; i < 5; ++i) {
      Value& v = b.x[(from + i) % 6];
      i < 2 ? accesses.push_back(update(v.variable)) : accesses.push_back(read(v.variable));
      if (i < 2) ++v.updates;
    }
    b.engine->push(
        [&b, from] {
          for (std::uint64_t i = 0; i < 5; ++i)
            i < 2 ? b.update_value(b.x[(from + i) % 6]) : b.read_value(b.x[(from + i) % 6]);
        },
        accesses);
  };
  const std::uint64_t n = 1 + b.below(9);
  return run_bed(std::move(bed),
                 {[push, n] {
                    for (std::uint64_t i = 0; i < n; ++i) push(0), push(1);
                  },
                  [push] { push(1), push(3), push(0); }, [&b] { b.push_update(b.x[1]), b.push_two(b.x[2], b.x[0]); }});
}

/// Threads that come and go, so that their slots get other owners.
std::string threads(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1, .max_ops = 6}, 2);
  const auto guest = [&b](std::uint64_t n) {
    b.quiet([&] {
      for (std::uint64_t i = 0; i < n; ++i) b.push_update(b.x[i % 2]);
    });
  };
  return run_bed(std::move(bed),
                 {[guest, n = 1 + b.below(4)] {
                    ExplorePolicy::start_substitute([guest, n] { guest(n); });
                    ExplorePolicy::start_substitute([guest, n] { guest(n + 1); });
                    guest(2);
                  },
                  [&b, guest, m = 1 + b.below(3)] {
                    ExplorePolicy::start_substitute([guest, m] { guest(m); });
                    guest(m);
                    b.engine->wait(b.x[0].variable);
                  }},
                 true);
}

/// The last handle of a variable goes as an op that fails leaves it.
std::string dropped(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1}, 1);
  return run_bed(std::move(bed), {[&b] {
                   for (int i = 0; i < 3; ++i) {
                     const Variable mine = b.engine->variable("mine");
                     b.engine->push([] { throw std::runtime_error("x"); }, {write(mine)});
                   }
                   b.throws(ErrorKind::failed, [&] { b.engine->wait_all(); });
                 }});
}

/// A captured program names a variable for as long as it lives, and no longer.
std::string captured(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({}, 1);
  return run_bed(std::move(bed), {[&b] {
                   Value& v = b.x[0];
                   {
                     const Program program = b.engine->capture(
                         [&] { b.engine->push([&b, &v] { b.update_value(v); }, {update(v.variable)}); });
                     for (std::uint64_t replays = b.below(3); replays > 0; --replays) {
                       ++v.updates;
                       b.engine->replay(program);
                     }
                     if (b.chance(50)) b.engine->wait_all();
                   }
                   if (b.engine->variable() == v.variable) b.fail("a variable went while it had a handle");
                 }});
}

}  // namespace

std::vector<Drawn> chain_programs() {
  return {{"one variable", one_variable},
          {"two variables", two_variables},
          {"pushes inside", pushes_inside},
          {"handed over", handed_over},
          {"pair", pair},
          {"poisoned", poisoned},
          {"reuse", reuse},
          {"many tokens", many_tokens},
          {"threads", threads},
          {"dropped", dropped, "chain.h leave: tail"},
          {"captured", captured, "core_capture.h record: refs"}};
}

}  // namespace sluice::mutants
