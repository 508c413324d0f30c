// Programs for the judge of mutants: waits and deadlocks, and who looks at what is in flight.
#include "bed.h"
#include "programs.h"
#include "streams.h"

namespace sluice::mutants {
namespace {

/// One ticket, several who wait for it, some with a limit; and a cancel.
std::string tickets(std::uint64_t seed) {
  struct Shared : Bed {
    using Bed::Bed;
    Ticket ticket;
    ExplorePolicy::Atomic<bool> pushed{false};
    bool ran = false, cancelled = false;
  };
  auto bed = std::make_unique<Shared>(seed);
  Shared& b = *bed;
  b.make({.threads = 1}, 1);
  const bool cancels = b.chance(40), limited = b.chance(40), again = b.chance(50);
  const auto wait = [&b, limited, cancels] {
    while (!b.pushed.load(std::memory_order_acquire)) ExplorePolicy::pause();
    bool over = true;
    const bool threw = b.throws(ErrorKind::cancelled, [&] {
      limited ? void(over = b.ticket.wait_for(std::chrono::milliseconds(1))) : b.ticket.wait();
    });
    if (!over) return;
    if (threw && (!cancels || b.ran)) b.fail("a ticket threw");
    if (b.ran && b.x[0].number.load(relaxed) < 1) b.fail("who waited for a ticket does not see what its op wrote");
    if (!b.ticket.done()) b.fail("a wait for a ticket ended before the op");
  };
  std::vector<std::function<void()>> bodies{[&b, again, cancels] {
                                              ++b.x[0].updates;
                                              b.ticket = b.engine->push(
                                                  [&b] {
                                                    b.ran = true;
                                                    b.update_value(b.x[0]);
                                                  },
                                                  {update(b.x[0].variable)});
                                              b.pushed.store(true, std::memory_order_release);
                                              if (cancels && b.ticket.cancel()) {
                                                b.cancelled = true;
                                                --b.x[0].updates;
                                              }
                                              // Its record is used again while others wait for it.
                                              for (int i = 0; again && i < 9; ++i) b.engine->push([] {}, {});
                                            },
                                            wait, wait};
  return run_bed(std::move(bed), std::move(bodies), limited, [&b] {
    if (b.ran == b.cancelled) b.fail("what a cancel said is not so");
  });
}

/// Waits with a limit, outside and inside of ops.
std::string limits(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1}, 3);
  const bool inside = b.chance(50);
  const std::chrono::nanoseconds limit(b.below(3) * 10'000);
  const auto late = [&b] {
    ++b.x[0].updates;
    b.engine->push(
        [&b](Completion done) {
          auto held = std::make_shared<Completion>(std::move(done));
          ExplorePolicy::start_substitute([&b, held] {
            b.update_value(b.x[0]);
            held->done();
          });
        },
        {update(b.x[0].variable)});
  };
  const auto wait = [&b, limit] {
    if (b.engine->wait_for(b.x[0].variable, limit) && b.x[0].number.load(relaxed) < 1) b.fail("a wait ended too early");
  };
  return run_bed(std::move(bed),
                 {[&b, late, wait, inside] {
                    late();
                    if (inside) {
                      ++b.x[1].updates;
                      b.engine->push([&b, wait] { wait(), b.update_value(b.x[1]); }, {update(b.x[1].variable)});
                      b.push_update(b.x[2]);
                    } else {
                      wait();
                    }
                  },
                  [&b] {
                    b.push_read(b.x[0]);
                    if (b.chance(50)) b.engine->borrow(read(b.x[2].variable)).release();
                  }},
                 true);
}

/// Everything that is live, and its errors.
std::string all_of_it(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1 + static_cast<int>(b.below(2))}, 2);
  const bool fails = b.chance(50), alone = fails && b.chance(40);  // alone: by its ticket
  b.engine->on_unobserved_error([](const ErrorRoot&) { expect(false, "an error that was thrown counts as not seen"); });
  return run_bed(std::move(bed), {[&b, fails, alone] {
                                    b.push_update(b.x[0]);
                                    if (alone) {
                                      const Ticket bad = b.engine->push([] { throw std::runtime_error("x"); },
                                                                        {write(b.x[1].variable)});
                                      if (!b.throws(ErrorKind::failed, [&] { bad.wait(); }))
                                        b.fail("what a ticket threw");
                                      b.push_update(b.x[0]).wait();
                                      for (Value& v : b.x) v.updates = v.number.load();
                                      return;
                                    }
                                    if (fails) b.engine->push([] { throw std::runtime_error("x"); }, {});
                                    b.push_two(b.x[0], b.x[1]);
                                    const bool threw = b.throws(ErrorKind::failed, [&] { b.engine->wait_all(); });
                                    if (threw != fails) b.fail("what wait_all threw");
                                    if (b.x[1].number.load(relaxed) < 1 || b.x[0].number.load(relaxed) < 2)
                                      b.fail("wait_all ended before an op");
                                  },
                                  [&b, alone] {
                                    if (!alone) b.push_update(b.x[1]), b.push_update(b.x[0]);
                                  }});
}

/// Everything that another thread pushed: what is over already when the waiter comes to its record, too.
std::string all_of_others(std::uint64_t seed) {
  struct Shared : Bed {
    using Bed::Bed;
    ExplorePolicy::Atomic<bool> pushed{false};
  };
  auto bed = std::make_unique<Shared>(seed);
  Shared& b = *bed;
  b.make({.threads = 2}, 2);
  const auto pusher = [&b] {
    b.push_update(b.x[0]);
    ++b.x[1].updates;
    b.engine->push([&b] { b.slow(), b.update_value(b.x[1]); }, {update(b.x[1].variable)});
    b.pushed.store(true, std::memory_order_release);
  };
  const auto waiter = [&b] {
    while (!b.pushed.load(std::memory_order_acquire)) ExplorePolicy::pause();
    b.engine->wait_all({.help = false});
    if (b.x[0].number.load(relaxed) < 1 || b.x[1].number.load(relaxed) < 1) b.fail("wait_all ended before an op");
  };
  return run_bed(std::move(bed), {pusher, waiter});
}

/// A wait that can never end must throw; those beside it that can must not.
std::string deadlocks(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1 + static_cast<int>(b.below(2))}, 4);
  const bool stuck = b.chance(50), borrows = b.chance(30), late = b.chance(50);
  if (!stuck && b.chance(60)) Explorer::get().park_loosely();
  std::vector<std::function<void()>> bodies;
  if (stuck && !borrows)
    bodies.push_back([&b] {
      const Ticket t = b.engine->push(
          [&b] {
            b.engine->push([] {}, {write(b.x[0].variable), write(b.x[1].variable)});
            b.engine->wait(b.x[1].variable);
          },
          {read(b.x[0].variable)});
      if (!b.throws(ErrorKind::deadlock, [&] { t.wait(); })) b.fail("a wait that can never end did not throw");
    });
  if (stuck && borrows)
    bodies.push_back([&b, twice = b.chance(50)] {
      Borrow held = b.engine->borrow(update(b.x[0].variable));
      b.push_two(b.x[0], b.x[1]);
      if (twice) {
        if (!b.throws(ErrorKind::deadlock, [&] { b.engine->borrow(update(b.x[1].variable)); }))
          b.fail("a borrow that can never be granted did not throw");
        return;
      }
      if (!b.throws(ErrorKind::deadlock, [&] { b.engine->wait(b.x[1].variable); }))
        b.fail("a wait that only its own borrow can end did not throw");
    });
  if (!stuck && borrows)
    bodies.push_back([&b] {
      const Borrow held = b.engine->borrow(update(b.x[0].variable));
      b.push_update(b.x[1]);
      b.quiet([&] { b.engine->wait(b.x[1].variable); });
    });
  // Waits inside of ops that do end, by a push from outside, by a Completion.
  bodies.push_back([&b, late] {
    Ticket t;
    if (late) {
      ++b.x[2].updates;
      b.engine->push(
          [&b](Completion done) {
            auto held = std::make_shared<Completion>(std::move(done));
            ExplorePolicy::start_substitute([&b, held] {
              b.update_value(b.x[2]);
              Completion mine = std::move(*held);
              mine.done();
            });
          },
          {update(b.x[2].variable)});
    } else {
      b.push_update(b.x[2]);
    }
    ++b.x[3].updates;
    t = b.engine->push(
        [&b, pushes = b.chance(50)] {
          if (pushes) b.push_update(b.x[2]);
          b.engine->wait(b.x[2].variable), b.slow(), b.update_value(b.x[3]);
        },
        {update(b.x[3].variable)});
    // And a wait for that one, in whose body somebody was blocked and is no more.
    const Ticket u = b.engine->push([&b] { b.engine->wait(b.x[3].variable); }, {});
    b.quiet([&] { t.wait(), u.wait(); });
  });
  // Waits from outside, which take their place behind others and before others.
  if (!stuck && b.chance(60))
    bodies.push_back([&b] {
      for (int i = 0; i < 4; ++i) b.quiet([&] { b.engine->wait(b.x[i % 2 ? 2 : 3].variable); });
    });
  return run_bed(std::move(bed), std::move(bodies), true, [stuck, &b] {
    if (!stuck && Explorer::get().stalls()) b.fail("a lost wake-up: all stood until a time limit passed");
  });
}

/// An op waits for another that a device, or a thread, answers late; and nobody else is there to move.
std::string late_answers(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1 + static_cast<int>(b.below(3)), .cpus = 1 + static_cast<int>(b.below(2)), .gpus = 1}, 3);
  const int cpus = b.engine->device_count();
  const bool device = b.chance(50), stuck = b.chance(15), behind = b.chance(40);
  if (!stuck) Explorer::get().park_loosely();
  return run_bed(
      std::move(bed), {[&b, device, stuck, behind, cpus] {
        ++b.x[0].updates;
        if (device) {
          b.engine->push([&b](Context& c) { c.stream()->launch([&b] { b.update_value(b.x[0]); }); },
                         {update(b.x[0].variable)}, {.on = sim(0)});
        } else {
          b.engine->push(
              [&b](Completion done) {
                auto held = std::make_shared<Completion>(std::move(done));
                ExplorePolicy::start_substitute([&b, held] {
                  b.update_value(b.x[0]);
                  Completion mine = std::move(*held);
                  mine.done();
                });
              },
              {update(b.x[0].variable)});
        }
        const auto some_cpu = [&b, cpus] {
          return Place(cpu(static_cast<int>(b.below(static_cast<std::uint64_t>(cpus)))));
        };
        for (int i = 0; behind && i < 2; ++i) {  // lanes have to go on first
          ++b.x[0].updates;
          b.engine->push([&b] { b.slow(), b.update_value(b.x[0]); }, {update(b.x[0].variable)}, {.on = some_cpu()});
        }
        const Ticket t = b.engine->push(
            [&b, stuck] {
              b.engine->wait(b.x[0].variable);
              if (!stuck) return;
              b.engine->push([] {}, {write(b.x[1].variable)});
              b.engine->wait(b.x[1].variable);
            },
            {read(b.x[1].variable)});
        const bool threw = b.throws(ErrorKind::deadlock, [&] { t.wait(); });
        if (threw != stuck)
          b.fail(stuck ? "a wait that can never end did not throw" : "a wait that can end was taken for a deadlock");
      }},
      true);
}

/// A thread whose push of no body makes another op ready, which it has in its hands for a moment, while an op waits for
/// that.
std::string in_hand(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1 + static_cast<int>(b.below(2))}, 1);
  Explorer::get().park_loosely();
  return run_bed(std::move(bed),
                 {[&b] {
                    for (int i = 0; i < 8; ++i) b.engine->recover(b.x[0].variable);
                  },
                  [&b] {
                    for (int i = 0; i < 3; ++i) {
                      b.push_update(b.x[0]);
                      const Ticket t = b.engine->push([&b] { b.engine->wait(b.x[0].variable); }, {});
                      b.quiet([&] { t.wait(); });
                    }
                  }},
                 true);
}

/// Waiters that run what they wait for, while an op waits for the same: it must see that somebody is at it.
std::string helpers(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1 + static_cast<int>(b.below(2))}, 3);
  Explorer::get().park_loosely();
  const auto helper = [&b](bool all) {
    return [&b, all] {
      b.quiet([&] {
        for (int i = 0; i < 2; ++i) {
          ++b.x[1].updates;
          b.engine->push([&b] { b.slow(), b.update_value(b.x[1]); }, {update(b.x[1].variable)});
          all ? b.engine->wait_all() : b.engine->wait(b.x[1].variable, {.help = true});
        }
      });
    };
  };
  const bool all = b.chance(30);
  return run_bed(std::move(bed),
                 {helper(all),
                  [&b] {
                    for (int i = 0; i < 2; ++i) {
                      ++b.x[2].updates;
                      const Ticket t = b.engine->push([&b] { b.engine->wait(b.x[1].variable), b.update_value(b.x[2]); },
                                                      {update(b.x[2].variable)});
                      b.quiet([&] { t.wait(); });
                    }
                  }},
                 true);
}

/// Who goes by the number of ops in flight: it falls before a ticket is done, and not before its op is.
std::string counted(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1 + static_cast<int>(b.below(2))}, 1);
  const bool by_ticket = b.chance(50);
  return run_bed(std::move(bed), {[&b, by_ticket] {
                   for (int i = 1; i < 4; ++i) {
                     const Ticket t = b.push_update(b.x[0]);
                     while (by_ticket ? !t.done() : b.engine->in_flight() != 0) ExplorePolicy::pause();
                     if (b.engine->in_flight() != 0) b.fail("an op whose ticket is done is in flight");
                     if (b.x[0].number.load(relaxed) != i) b.fail("an op that is not in flight is not seen");
                   }
                 }});
}

/// Who looks at what is in flight, while variables go and records are used again.
std::string looks(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1}, 2);
  const std::size_t bytes = b.chance(50) ? 8 : 0;  // with them it ends by another path
  const auto pusher = [&b, bytes] {
    for (int i = 0; i < 3; ++i) {
      {  // A variable that goes with its last op, before that op is done with the others.
        const Variable mine = b.engine->variable("mine"), later = b.engine->variable("later");
        b.engine->push([] {}, {update(mine), read(later), read(b.x[0].variable)}, {.bytes = bytes});
      }
      b.push_update(b.x[0]);
      if (i == 1) b.engine->borrow(read(b.x[1].variable)).release();
    }
  };
  return run_bed(std::move(bed), {pusher, [&b] {
                                    for (int i = 0; i < 2; ++i)
                                      static_cast<void>(b.engine->explain(b.x[0].variable)),
                                          static_cast<void>(b.core->op_words());
                                  }});
}

/// Who looks while an op is pushed in a record that was used before: it has no turn yet.
std::string looks_at_pushed(std::uint64_t seed) {
  struct Shared : Bed {
    using Bed::Bed;
    ExplorePolicy::Atomic<bool> begun{false}, looked{false};
  };
  auto bed = std::make_unique<Shared>(seed);
  Shared& b = *bed;
  b.make({.threads = 1}, 1);
  const auto until = [](const ExplorePolicy::Atomic<bool>& flag) {
    while (!flag.load(std::memory_order_acquire)) ExplorePolicy::pause();
  };
  const auto pusher = [&b, until] {
    for (int i = 0; i < 16; ++i) b.push_update(b.x[0]).wait();  // two blocks of records, and back to the first
    b.engine->push(
        [&b, until] {
          b.begun.store(true, std::memory_order_release);
          until(b.looked);
        },
        {update(b.x[0].variable)});
    b.push_update(b.x[0]);
  };
  const auto looker = [&b, until] {
    until(b.begun);
    const detail::Look look = b.core->look();
    for (const detail::LookedAccess& a : look.accesses)
      if (a.has_turn && !look.ops[a.op].running) b.fail("an op that waits is said to have its turn");
    b.looked.store(true, std::memory_order_release);
  };
  return run_bed(std::move(bed), {pusher, looker});
}

}  // namespace

std::vector<Drawn> wait_programs() {
  return {{"tickets", tickets},
          {"limits", limits},
          {"all of it", all_of_it},
          {"all of others", all_of_others, "core_stop.h wait_live: word.load"},
          {"deadlocks", deadlocks},
          {"late answers", late_answers},
          {"in hand", in_hand, "core_push.h begin_link: pushes.store"},
          {"helpers", helpers},
          {"counted", counted, "core_run.h close: completed.store"},
          {"looks", looks, ": phase.store"},
          {"looks at pushed", looks_at_pushed, "chain.h advance: state.store"}};
}

}  // namespace sluice::mutants
