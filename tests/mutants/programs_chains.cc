// Programs for the judge of mutants: chains, records, caps, tickets, waits, threads that come and go.
#include "bed.h"
#include "programs.h"

namespace sluice::mutants {
namespace {

using std::chrono::milliseconds;

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

/// A worker's batch alone: its owner fills it again and again, others take from it.
std::string batch(std::uint64_t seed) {
  struct Alone : Bed {
    using Bed::Bed;
    detail::Batch<ExplorePolicy> items;
    std::array<detail::Runnable<ExplorePolicy>, 40> ops;
    std::array<int, 40> taken{};
    ExplorePolicy::Atomic<bool> over{false};
    void take(detail::Runnable<ExplorePolicy>* op) {
      const auto i = static_cast<std::size_t>(op - ops.data());
      if (taken[i]++ > 0) fail("an op was taken from a batch twice");
      if (op->lane != i) fail("who took an op does not see what its pusher wrote");
    }
  };
  auto bed = std::make_unique<Alone>(seed);
  Alone& b = *bed;
  b.items.begin_at(b.chance(50) ? 0 : 0xfffffff0);
  const std::size_t size = 1 + b.below(3);
  const bool appends = b.chance(60), only = appends && b.chance(50);  // only: others take them all
  const auto thief = [&b] {
    while (!b.over.load(std::memory_order_acquire)) {
      if (auto* op = b.items.take()) {
        b.take(op);
      } else {
        ExplorePolicy::pause();
      }
    }
  };
  return run_bed(std::move(bed),
                 {[&b, size, appends, only] {
                    for (std::size_t next = 0; next < 36;) {
                      std::array<detail::Runnable<ExplorePolicy>*, 3> some;
                      const std::size_t n = std::min(size, 36 - next);
                      for (std::size_t i = 0; i < n; ++i, ++next) {
                        b.ops[next].lane = static_cast<std::uint16_t>(next);
                        some[i] = &b.ops[next];
                      }
                      if (appends) {
                        for (std::size_t i = 0; i < n; ++i)
                          while (!b.items.append(some[i])) ExplorePolicy::pause();
                      } else {
                        b.items.put(some.data(), n);
                      }
                      while ((!only || next == 36) && !b.items.empty())
                        if (auto* op = b.items.take()) b.take(op);
                    }
                    b.over.store(true, std::memory_order_release);
                  },
                  thief, thief},
                 false, [&b] {
                   for (std::size_t i = 0; i < 36; ++i)
                     if (b.taken[i] != 1) b.fail("an op was lost in a batch");
                 });
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

/// A closure that pushes as it is made: more than a lap of the records.
std::string pushes_inside(std::uint64_t seed) {
  struct Pushes {
    Pushes(Bed* bed, bool wait) : b(bed), waits(wait) {}
    Pushes(const Pushes& other) : b(other.b), waits(other.waits) {
      for (int i = 0; i < 20; ++i) {
        const Ticket t = b->push_update(b->x[0]);
        if (waits) t.wait();
      }
    }
    void operator()() const { b->update_value(b->x[1]); }
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
  const std::uint64_t n = 1 + b.below(5);
  return run_bed(std::move(bed),
                 {[push, n] {
                    for (std::uint64_t i = 0; i < n; ++i) push(0), push(1);
                  },
                  [push] { push(1), push(3), push(0); }, [&b] { b.push_update(b.x[1]), b.push_two(b.x[2], b.x[0]); }});
}

/// Few ops and bytes allowed in flight.
std::string caps(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  const bool bytes = b.chance(60);
  credit_batch = b.chance(40) ? 1 + static_cast<std::int64_t>(b.below(3)) : 0;
  b.make({.threads = 1 + static_cast<int>(b.below(2)),
          .max_ops = 2 + static_cast<std::int64_t>(b.below(3)),
          .max_bytes = 100},
         2);
  over_the_cap = 0;
  const bool async = b.chance(30);
  std::vector<std::function<void()>> pushers;
  for (std::uint64_t t = 1 + b.below(2); t > 0; --t)
    pushers.push_back([&b, bytes, async] {
      b.quiet([&] {
        for (std::uint64_t i = 0; i < 18; ++i) {
          if (async && i % 3 == 1) {
            b.engine->push(
                [](Completion done) {
                  auto held = std::make_shared<Completion>(std::move(done));
                  ExplorePolicy::start_substitute([held] { held->done(); });
                },
                {});
            continue;
          }
          const PushOptions how{.bytes = bytes ? i % 4 * 40 : 0};  // one in four above the cap
          i % 3 == 0 ? b.push_two(b.x[0], b.x[1], how) : b.push_update(b.x[i % 2], how);
        }
      });
    });
  const std::string verdict = run_bed(std::move(bed), std::move(pushers), credit_batch != 0 || async);
  credit_batch = 0;
  // One may, where what moves was not seen for a moment.
  return verdict.empty() && over_the_cap > 2 ? "pushes went over the cap while ops could move" : verdict;
}

/// Bytes are free when their op is over, also where its worker goes on to a body that waits for the pusher.
std::string freed_bytes(std::uint64_t seed) {
  struct Told : Bed {
    using Bed::Bed;
    ExplorePolicy::Atomic<int> pushed{0};
  };
  auto bed = std::make_unique<Told>(seed);
  Told& b = *bed;
  b.make({.threads = 1, .max_bytes = 100}, 1);
  return run_bed(std::move(bed), {[&b] {
                   b.push_update(b.x[0], {.bytes = 100});
                   ++b.x[0].updates;
                   b.engine->push(
                       [&b] {
                         while (b.pushed.load() == 0) ExplorePolicy::pause();
                         b.update_value(b.x[0]);
                       },
                       {update(b.x[0].variable)});
                   b.engine->push([] {}, {}, {.bytes = 100});
                   b.pushed.store(1);
                 }});
}

/// At the hard cap a worker uses the credits that it has not returned yet.
std::string own_credits(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  credit_batch = 2;
  b.make({.threads = 1, .max_ops = 1}, 1);
  const std::string verdict = run_bed(std::move(bed), {[&b] {
                                        b.engine->push(
                                            [&b] {
                                              b.engine->push(
                                                  [&b] {
                                                    for (int i = 0; i < 3; ++i) b.push_update(b.x[0]);
                                                  },
                                                  {});
                                            },
                                            {});
                                        b.quiet([&] { b.engine->wait_all({.help = false}); });
                                      }});
  credit_batch = 0;
  return verdict;
}

/// Pushes that are given up: there is no memory, or the closure throws as it is made.
std::string abandoned(std::uint64_t seed) {
  struct Throws {
    explicit Throws(bool now) : bad(now) {}
    Throws(const Throws& other) : bad(other.bad) {
      if (bad) throw std::runtime_error("x");
    }
    void operator()() const {}
    bool bad;
  };
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.max_ops = 3, .max_bytes = 100}, 2);
  turn = 0;
  failing_pushes = b.chance(60) ? 2 + static_cast<int>(b.below(3)) : 0;
  const auto pusher = [&b] {
    for (int i = 0; i < 8; ++i) {
      try {
        const Throws body(false);
        Throws bad = body;
        bad.bad = i % 2 == 0;
        b.engine->push(bad, {update(b.x[0].variable), read(b.x[1].variable)}, {.bytes = 40});
      } catch (const std::bad_alloc&) {
      } catch (const std::runtime_error&) {
      }
    }
  };
  const std::string verdict = run_bed(std::move(bed), {pusher, pusher});
  failing_pushes = 0;
  return verdict;
}

/// The cap is reached by ops that only a Completion ends; ops push at the cap too.
std::string hard_cap(std::uint64_t seed) {
  struct Held : Bed {
    using Bed::Bed;
    std::vector<Completion> completions;
  };
  auto bed = std::make_unique<Held>(seed);
  Held& b = *bed;
  b.make({.threads = 1, .max_ops = 2}, 2);
  return run_bed(std::move(bed), {[&b] {
                   b.quiet([&] {
                     for (int i = 0; i < 4; ++i) {
                       ++b.x[0].updates;
                       b.engine->push(
                           [&b](Completion done) {
                             b.update_value(b.x[0]);
                             b.completions.push_back(std::move(done));
                           },
                           {});
                     }
                     b.engine->push([&b] { b.push_update(b.x[1]), b.push_update(b.x[1]); }, {});
                   });
                   int answered = 0;
                   while (answered < 4) {
                     while (!b.completions.empty()) {
                       Completion one = std::move(b.completions.back());
                       b.completions.pop_back();
                       one.done(), ++answered;
                     }
                     ExplorePolicy::pause();
                   }
                 }},
                 true);
}

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
    const bool threw = b.throws(ErrorKind::cancelled,
                                [&] { limited ? void(over = b.ticket.wait_for(milliseconds(1))) : b.ticket.wait(); });
    if (!over) return;
    if (threw && (!cancels || b.ran)) b.fail("a ticket threw");
    if (!b.ticket.done()) b.fail("a wait for a ticket ended before the op");
    if (b.ran && b.x[0].number.load(relaxed) < 1) b.fail("who waited for a ticket does not see what its op wrote");
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
                 {[&b, guest, n = 1 + b.below(4)] {
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

/// Ready ops in a worker's hands, some of which wait for others there.
std::string batches(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  Size options{.threads = 1 + static_cast<int>(b.below(3))};
  options.counters.batch = b.chance(50) ? 0xfffffffb : 0;
  b.make(options, 12);
  const bool waits = b.chance(60);
  const int priority = b.chance(40) ? 6 : kDefaultPriority;
  const std::uint64_t n = 4 + b.below(8);
  return run_bed(std::move(bed), {[&b, waits, priority, n] {
                                    for (std::size_t i = 0; i < n; ++i) {
                                      Value& v = b.x[i];
                                      Value& next = b.x[i + 1];
                                      ++v.updates;
                                      b.engine->push(
                                          [&b, &v, &next, waits, i] {
                                            b.update_value(v);
                                            if (!waits || i % 4 != 0) return;
                                            b.engine->wait(next.variable);
                                          },
                                          {update(v.variable)}, {.priority = i == 3 ? priority : kDefaultPriority});
                                    }
                                    b.push_update(b.x[n]);
                                  },
                                  [&b] {
                                    b.push_update(b.x[4]), b.push_read(b.x[1]);
                                    for (int i = 0; i < 6; ++i) b.engine->push([] {}, {});
                                  }});
}

/// Everything that is live, and its errors.
std::string all_of_it(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1 + static_cast<int>(b.below(2))}, 2);
  const bool fails = b.chance(50);
  b.engine->on_unobserved_error([](const ErrorRoot&) { expect(false, "an error that was thrown counts as not seen"); });
  return run_bed(std::move(bed), {[&b, fails] {
                                    b.push_update(b.x[0]);
                                    if (fails) b.engine->push([] { throw std::runtime_error("x"); }, {});
                                    b.push_two(b.x[0], b.x[1]);
                                    const bool threw = b.throws(ErrorKind::failed, [&] { b.engine->wait_all(); });
                                    if (threw != fails) b.fail("what wait_all threw");
                                    if (b.x[1].number.load(relaxed) < 1 || b.x[0].number.load(relaxed) < 2)
                                      b.fail("wait_all ended before an op");
                                  },
                                  [&b] { b.push_update(b.x[1]), b.push_update(b.x[0]); }});
}

}  // namespace

std::vector<Drawn> chain_programs() {
  return {{"one variable", one_variable},
          {"two variables", two_variables},
          {"pushes inside", pushes_inside},
          {"handed over", handed_over},
          {"pair", pair},
          {"poisoned", poisoned},
          {"batch", batch},
          {"reuse", reuse},
          {"many tokens", many_tokens},
          {"caps", caps},
          {"own credits", own_credits},
          {"freed bytes", freed_bytes},
          {"abandoned", abandoned},
          {"hard cap", hard_cap},
          {"tickets", tickets},
          {"limits", limits},
          {"threads", threads},
          {"batches", batches},
          {"all of it", all_of_it}};
}

}  // namespace sluice::mutants
