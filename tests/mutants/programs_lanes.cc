// Programs for the judge of mutants: streams, replays, stop, deadlocks, drainers that cannot be started, serial mode,
// and who looks at what is in flight.
#include "bed.h"
#include "programs.h"
#include "streams.h"

namespace sluice::mutants {
namespace {

/// Ops on two devices with streams and on the CPU, over shared variables.
std::string streams(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1 + static_cast<int>(b.below(2)), .gpus = 2}, 2);
  const bool fails = b.chance(30), cancels = b.chance(20);
  const auto on_device = [&b](int device, Value& v, bool updates, bool async) {
    if (updates) ++v.updates;
    const auto kernel = [&b, &v, updates] { updates ? b.update_value(v) : b.read_value(v); };
    const Access access = updates ? update(v.variable) : read(v.variable);
    if (async) {
      b.engine->push(
          [kernel](Context& c, Completion done) {
            static_cast<ExploredStream*>(c.stream())->launch(kernel);
            auto held = std::make_shared<Completion>(std::move(done));
            ExplorePolicy::start_substitute([held] { held->done(); });
          },
          {access}, {.on = sim(device)});
    } else {
      b.engine->push([kernel](Context& c) { static_cast<ExploredStream*>(c.stream())->launch(kernel); }, {access},
                     {.on = sim(device)});
    }
  };
  return run_bed(std::move(bed),
                 {[&b, on_device, fails] {
                    on_device(0, b.x[0], true, b.chance(30));
                    on_device(0, b.x[0], false, false);
                    on_device(1, b.x[0], true, b.chance(30));
                    if (!fails) {
                      // Two rights to be issued by, two to be complete by.
                      ++b.x[0].updates, ++b.x[1].updates;
                      b.engine->push(
                          [&b](Context& c) {
                            static_cast<ExploredStream*>(c.stream())->launch([&b] {
                              b.update_value(b.x[0]), b.update_value(b.x[1]);
                            });
                          },
                          {update(b.x[0].variable), update(b.x[1].variable)},
                          {.on = sim(static_cast<int>(b.below(2)))});
                    }
                    b.push_update(b.x[0]);
                    if (fails) {
                      // The device finds out late; what was made from it is worth nothing either.
                      b.engine->push(
                          [](Context& c) {
                            static_cast<ExploredStream*>(c.stream())->launch([] { throw std::runtime_error("x"); });
                          },
                          {write(b.x[1].variable)}, {.on = sim(0)});
                      b.engine->push(
                          // Either says it: the kernel, or whoever answers.
                          [kernel = b.chance(50)](Context& c, Completion done) {
                            static_cast<ExploredStream*>(c.stream())->launch([kernel] {
                              if (kernel) throw std::runtime_error("x");
                            });
                            auto held = std::make_shared<Completion>(std::move(done));
                            ExplorePolicy::start_substitute([held, kernel] {
                              Completion mine = std::move(*held);
                              kernel ? mine.done() : mine.fail(std::make_exception_ptr(std::runtime_error("x")));
                            });
                          },
                          {write(b.x[1].variable)}, {.on = sim(0)});
                      const Ticket after = b.engine->push([](Context&) {}, {update(b.x[1].variable)}, {.on = sim(1)});
                      if (!b.throws(ErrorKind::failed, [&] { after.wait(); }))
                        b.fail("an op that used what failed on the device did not fail");
                      if (!b.throws(ErrorKind::failed, [&] { b.engine->wait(b.x[1].variable); }))
                        b.fail("a variable that a device's kernel failed to write is not poisoned");
                      return;
                    }
                    b.engine->wait(b.x[0].variable);
                    if (b.x[0].number.load(relaxed) < 3) b.fail("a wait ended before the device");
                  },
                  [&b, on_device, fails, cancels] {
                    if (fails) return;
                    on_device(1, b.x[1], true, false);
                    b.push_two(b.x[0], b.x[1]);
                    on_device(0, b.x[1], false, b.chance(50));
                    const Ticket last = b.engine->push([](Context&) {}, {read(b.x[1].variable)}, {.on = sim(1)});
                    if (cancels) last.cancel();
                  }});
}

/// A stream op behind two ops of the CPU, which end on two threads.
std::string issued(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 2, .gpus = 2}, 2);
  const bool fails = b.chance(40), first = b.chance(50);
  return run_bed(std::move(bed), {[&b, fails, first] {
                   for (const bool one : {true, false}) {
                     Value& v = b.x[one ? 0 : 1];
                     const bool bad = fails && one == first;
                     if (!bad) ++v.updates;
                     b.engine->push(
                         [&b, &v, bad] {
                           if (bad) throw std::runtime_error("x");
                           b.update_value(v);
                         },
                         {update(v.variable)});
                   }
                   const Ticket on_device = b.engine->push(
                       [&b, fails](Context& c) {
                         if (!fails) b.read_value(b.x[0], 1), b.read_value(b.x[1], 1);  // issued, so both are over
                         static_cast<ExploredStream*>(c.stream())->launch([&b, fails] {
                           if (!fails) b.read_value(b.x[0], 1), b.read_value(b.x[1], 1);
                         });
                       },
                       {read(b.x[0].variable), read(b.x[1].variable)}, {.on = sim(0)});
                   const bool threw = b.throws(ErrorKind::failed, [&] { on_device.wait(); });
                   if (threw != fails) b.fail("what an op on a device came to");
                 }});
}

/// Programs replayed by two threads, with an op between.
std::string replays(std::uint64_t seed) {
  struct Captured : Bed {
    using Bed::Bed;
    Program program;
    int fails_at = -1;
  };
  auto bed = std::make_unique<Captured>(seed);
  Captured& b = *bed;
  const int devices = b.chance(30) ? 1 : 0;
  b.make({.threads = 1 + static_cast<int>(b.below(3)), .cpus = 1 + static_cast<int>(b.below(2)), .gpus = devices}, 3);
  const bool fails = b.chance(30), inside = b.chance(40), async = b.chance(40), traced = b.chance(10),
             asks = b.chance(20);
  const int cpus = b.engine->device_count();
  if (traced) b.engine->start_trace();
  const auto capture = [&b, fails, async, devices, cpus, asks] {
    const CancelScope scope;
    std::optional<CancelScope::Guard> guard;
    if (asks) guard.emplace(scope);
    b.program = b.engine->capture([&] {
      for (int i = 0; i < 6; ++i) {
        Value& v = b.x[static_cast<std::size_t>(i) % 3];
        Value& w = b.x[static_cast<std::size_t>(i + 1) % 3];
        const PushOptions how{.on = i == 4 && devices ? Place(sim(0)) : Place(cpu(i % cpus))};
        if (i == 2 && async) {
          b.engine->push(
              [&b, &v](Completion done) {
                auto held = std::make_shared<Completion>(std::move(done));
                ExplorePolicy::start_substitute([&b, &v, held] {
                  b.read_value(v);
                  Completion mine = std::move(*held);
                  mine.done();
                });
              },
              {read(v.variable)}, how);
        } else if (i == 3) {
          b.engine->push(
              [&b, &v, fails](Context& c) {
                if (c.cancelled()) b.fail("a replay is taken for cancelled");
                b.update_value(v);
                if (fails) throw std::runtime_error("x");
              },
              {update(v.variable)}, how);
        } else {
          b.engine->push([&b, &v, &w] { b.read_value(v), b.update_value(w); }, {read(v.variable), write(w.variable)},
                         how);
        }
      }
    });
  };
  // Of a run that nothing fails in: what each variable is written.
  const auto count = [&b, fails, async](int runs) {
    for (int i = 0; i < 6; ++i) {
      if (i == 2 && async) continue;
      b.x[static_cast<std::size_t>(i == 3 ? i : i + 1) % 3].updates += fails ? 0 : runs;
    }
  };
  if (!inside) capture();
  count(inside ? 2 : 3);
  std::vector<std::function<void()>> bodies{[&b, inside, capture, fails] {
                                              if (inside) capture();
                                              b.engine->replay(b.program);
                                              const Ticket second = b.engine->replay(b.program);
                                              const bool threw = b.throws(ErrorKind::failed, [&] { second.wait(); });
                                              if (fails != threw) b.fail("what a replay threw");
                                            },
                                            [&b, inside, fails] {
                                              if (!fails) b.push_update(b.x[0]), b.push_read(b.x[1]);
                                              if (!inside) b.engine->replay(b.program);
                                            }};
  return run_bed(
      std::move(bed), std::move(bodies), false,
      [&b, fails, traced] {
        if (traced && b.engine->stop_trace().empty()) b.fail("a trace without an op");
        if (!fails) return;
        for (Value& v : b.x) v.updates = v.number.load();
      },
      60'000);
}

/// The bytes that captured ops declare count while a replay of them is in flight.
std::string replayed_bytes(std::uint64_t seed) {
  struct Held : Bed {
    using Bed::Bed;
    Completion open;
    bool held = false;
  };
  auto bed = std::make_unique<Held>(seed);
  Held& b = *bed;
  b.make({.threads = 1, .max_bytes = 100}, 1);
  return run_bed(std::move(bed), {[&b] {
                   {
                     const Program program = b.engine->capture([&b] {
                       for (int i = 0; i < 2; ++i)
                         b.engine->push(
                             [&b](Completion done) {
                               if (b.held) return done.done();
                               b.held = true;
                               b.open = std::move(done);
                             },
                             {order(b.x[0].variable)}, {.bytes = 250});
                     });
                     b.engine->replay(program);
                   }
                   const Ticket t = b.engine->push(
                       [&b] {
                         try {
                           b.engine->push([] {}, {}, {.bytes = 10});
                           b.fail("bytes of a replay do not count");
                         } catch (const CapError&) {
                         }
                       },
                       {});
                   b.quiet([&] { t.wait(); });
                   while (!b.open) ExplorePolicy::pause();
                   Completion(std::move(b.open)).done();
                 }});
}

/// stop(), while others push.
std::string stop(std::uint64_t seed) {
  struct Stopped : Bed {
    using Bed::Bed;
    bool stopped = false;
    std::vector<Ticket> tickets;
  };
  auto bed = std::make_unique<Stopped>(seed);
  Stopped& b = *bed;
  b.make({.threads = 1 + static_cast<int>(b.below(2))}, 1);
  const StopMode mode = b.chance(50) ? StopMode::drain : StopMode::cancel;
  const bool recovers = b.chance(20);
  const auto pusher = [&b, recovers] {
    for (int i = 0; i < 3; ++i) try {
        const bool late = b.stopped;
        if (recovers && i == 1) b.engine->recover(b.x[0].variable);
        const Ticket t = b.engine->push(
            [&b] {
              if (b.stopped) b.fail("a body ran after stop() had returned");
              b.update_value(b.x[0]);
            },
            {update(b.x[0].variable)});
        b.tickets.push_back(t);
        if (late) b.fail("a push was taken after stop() had returned");
      } catch (const StoppedError&) {
        return;
      }
  };
  return run_bed(std::move(bed),
                 {pusher, pusher,
                  [&b, mode] {
                    if (!b.engine->stop(mode)) b.fail("stop() ran out of time");
                    b.stopped = true;
                    if (mode == StopMode::drain && b.x[0].number.load(relaxed) < static_cast<int>(b.tickets.size()))
                      b.fail("who stopped does not see what the ops wrote");
                  }},
                 true, [&b] { b.x[0].updates = b.x[0].number.load(); });
}

/// stop() asks bodies to end.
std::string stop_asks(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1}, 1);
  return run_bed(std::move(bed), {[&b] {
                   b.engine->push(
                       [](Context& c) {
                         while (!c.cancelled()) ExplorePolicy::pause();
                       },
                       {});
                   b.engine->push([&b] { b.fail("an op ran that was to be cancelled"); }, {});
                   if (!b.engine->stop(StopMode::cancel)) b.fail("stop() ran out of time");
                 }},
                 true);
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
          b.engine->push(
              [&b](Context& c) { static_cast<ExploredStream*>(c.stream())->launch([&b] { b.update_value(b.x[0]); }); },
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

/// Drainers that cannot be started, queues without memory.
std::string failures(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  const bool wide = b.chance(50);
  b.make({.threads = wide ? 2 : 1, .max_ops = b.chance(30) ? 3 : 100}, 5);
  turn = 0;
  failing_starts = b.chance(60) ? 1 + static_cast<int>(b.below(4)) : 0;
  failing_queues = b.chance(60) ? 1 + static_cast<int>(b.below(3)) : 0;
  // Or the first few fail, and what waits helps itself until a drainer can be had.
  first_starts = failing_starts == 0 && b.chance(70) ? 3 + static_cast<int>(b.below(5)) : 0;
  first_slots = b.chance(20) ? 21 : 0;
  const bool inside = failing_starts != 1 && b.chance(50), waits = b.chance(30);
  if (inside && b.chance(50)) Explorer::get().park_loosely();
  const auto reset = [] { failing_starts = failing_queues = first_starts = first_slots = 0; };
  const bool stuck = failing_starts == 0 && b.chance(20);
  const auto pusher = [&b, inside, waits, stuck] {
    b.quiet([&] {
      for (std::size_t i = 0; i < 4; ++i) i % 2 ? b.push_update(b.x[i % 3]) : b.push_two(b.x[i % 3], b.x[(i + 1) % 3]);
      ++b.x[3].updates;
      const Ticket t = b.engine->push(
          [&b, inside] {
            if (inside) b.engine->wait(b.x[2].variable);
            b.update_value(b.x[3]);
          },
          {update(b.x[3].variable)}, {.priority = 5});
      waits ? b.engine->wait(b.x[3].variable) : t.wait();
      // The others may still lack a thread. (Another pusher's wait below may have thrown.)
      b.throws(ErrorKind::deadlock, [&] { b.engine->wait_all(); });
    });
    if (!stuck) return;
    const Ticket never = b.engine->push(
        [&b] {
          b.engine->push([] {}, {write(b.x[4].variable)});
          b.engine->wait(b.x[4].variable);
        },
        {read(b.x[4].variable)});
    if (!b.throws(ErrorKind::deadlock, [&] { never.wait(); })) b.fail("a wait that can never end did not throw");
    b.throws(ErrorKind::deadlock, [&] { b.engine->wait_all(); });
  };
  const std::string verdict = run_bed(std::move(bed), {pusher, pusher}, true, reset);
  reset();
  return verdict;
}

/// No drainer can be started, and for a while there is no memory: who stops runs the ops.
std::string stop_alone(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1}, 2);
  turn = 0;
  failing_starts = failing_waits = 1;
  const auto reset = [] { failing_starts = failing_waits = 0; };
  const std::string verdict = run_bed(std::move(bed), {[&b] {
                                        for (std::size_t i = 0; i < 3; ++i) b.push_two(b.x[0], b.x[1]);
                                        if (!b.engine->stop(StopMode::drain, std::chrono::seconds(1)))
                                          b.fail("stop() did not run what was there");
                                      }},
                                      true, reset);
  reset();
  return verdict;
}

/// So many errors that nobody saw that some are reported and go.
std::string many_errors(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  many_roots = 2;
  b.make({.threads = 1, .max_ops = 4}, 1);
  auto told = std::make_shared<int>(0);
  b.engine->on_unobserved_error([told](const ErrorRoot&) { ++*told; });
  const std::string verdict =
      run_bed(std::move(bed), {[&b, told] {
                for (int i = 0; i < 8; ++i)
                  b.engine->push([] { throw std::runtime_error("x"); }, {write(b.x[0].variable)});
                if (!b.throws(ErrorKind::failed, [&] { b.engine->wait(b.x[0].variable); }))
                  b.fail("a wait told of no error");
                for (int i = 0; i < 4; ++i) b.engine->push([] {}, {});
                if (*told == 0) b.fail("errors that nobody saw are kept without bound");
              }});
  many_roots = 0;
  return verdict;
}

/// Two ops that meet, so that both must run at once; and more of them than one worker should take.
std::string meeting(std::uint64_t seed) {
  struct Met : Bed {
    using Bed::Bed;
    ExplorePolicy::Atomic<int> here{0};
  };
  auto bed = std::make_unique<Met>(seed);
  Met& b = *bed;
  b.make({.threads = 2 + static_cast<int>(b.below(2))}, 1);
  // A drainer that looks around finds the first, as the second comes; or one takes both, and another has just left.
  const bool late = b.chance(40), both = !late && b.chance(40);
  std::uint64_t n = b.chance(60) ? 2 + b.below(3) : 9 + b.below(4), first = b.below(n - 1),
                second = first + 1 + b.below(std::min<std::uint64_t>(n - first - 1, 3)), pauses = 0;
  if (late) n = 3, first = 1, second = 2, pauses = b.below(12);
  if (both) n = 8 + b.below(4), first = 0, second = 1;
  return run_bed(std::move(bed), {[&b, n, first, second, pauses] {
                   for (std::uint64_t i = 0; i < n; ++i) {
                     for (std::uint64_t k = 0; i == first && k < pauses; ++k) ExplorePolicy::pause();
                     if (i != first && i != second) {
                       b.engine->push([] {}, {});
                       continue;
                     }
                     b.engine->push(
                         [&b] {
                           b.here.fetch_add(1);
                           while (b.here.load() < 2) ExplorePolicy::pause();
                         },
                         {});
                   }
                 }});
}

/// Two ops that meet, made ready at once by a third.
std::string freed_to_meet(std::uint64_t seed) {
  struct Met : Bed {
    using Bed::Bed;
    ExplorePolicy::Atomic<int> here{0};
  };
  auto bed = std::make_unique<Met>(seed);
  Met& b = *bed;
  b.make({.threads = 2 + static_cast<int>(b.below(2))}, 2);
  return run_bed(std::move(bed), {[&b] {
                   b.push_two(b.x[0], b.x[1]);
                   for (Value& v : b.x) {
                     ++v.updates;
                     b.engine->push(
                         [&b, &v] {
                           b.update_value(v);
                           b.here.fetch_add(1);
                           while (b.here.load() < 2) ExplorePolicy::pause();
                         },
                         {update(v.variable)});
                   }
                 }});
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

/// More than 64 ops in a row: a worker looks at the queues between.
std::string in_a_row(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1}, 3);
  return run_bed(std::move(bed),
                 {[&b] {
                    for (int i = 0; i < 75; ++i) b.push_update(b.x[0]);
                  },
                  [&b] {
                    for (int i = 0; i < 4; ++i) b.push_update(b.x[1]).wait();
                  }},
                 false, {}, 60'000);
}

/// An op of a low priority beside ops of a high one that never end before it ran. Each priority has its turn once in
/// 512 looks.
std::string starving(std::uint64_t seed) {
  struct Starved : Bed {
    using Bed::Bed;
    bool ran = false, pushed = false;
    int before = 0, all = 0;
    void again() {
      engine->push(
          [this] {
            if (ran || ++all > 2600) return;
            if (pushed && ++before > 1700) return fail("an op of a low priority starves");
            again();
          },
          {}, {.priority = 7});
    }
  };
  auto bed = std::make_unique<Starved>(seed);
  Starved& b = *bed;
  b.make({.threads = 1}, 1);
  return run_bed(std::move(bed), {[&b] {
                   b.again();
                   b.engine->push([&b] { b.ran = true; }, {}, {.priority = 1});
                   b.pushed = true;
                 }},
                 false, {}, 300'000);
}

/// Serial mode, several threads.
std::string serial(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.max_ops = b.chance(30) ? 2 : 100, .serial = true}, 4);
  turn = 0;
  failing_queues = b.chance(20) ? 2 : 0;
  if (b.chance(50)) Explorer::get().park_loosely();
  const bool stuck = b.chance(20);
  const auto pusher = [&b, stuck](std::size_t from) {
    if (stuck && from == 0) {
      const Ticket never = b.engine->push(
          [&b] {
            b.engine->push([] {}, {order(b.x[0].variable), write(b.x[3].variable)});
            b.engine->wait(b.x[3].variable);
          },
          {read(b.x[0].variable)});
      if (!b.throws(ErrorKind::deadlock, [&] { never.wait(); })) b.fail("a wait that can never end did not throw");
      return;
    }
    b.quiet([&] {
      b.push_update(b.x[from]);
      ++b.x[2].updates;
      const Ticket t = b.engine->push(
          [&b, from] {
            b.push_update(b.x[from]);
            b.engine->wait(b.x[from].variable);
            b.slow();
            b.update_value(b.x[2]);
          },
          {update(b.x[2].variable)});
      b.push_two(b.x[0], b.x[1]);
      b.chance(50) ? b.engine->wait(b.x[2].variable) : t.wait();
      b.engine->wait_all();  // what a thread pushes while another is at it, that one may miss
      t.wait();
      if (!t.done()) b.fail("an op that was waited for is not done");
    });
  };
  std::vector<std::function<void()>> bodies{[pusher] { pusher(0); }, [&b] { b.push_update(b.x[2]).wait(); }};
  if (!stuck) bodies.push_back([pusher] { pusher(1); });  // either could be the one that gives up
  const std::string verdict = run_bed(std::move(bed), std::move(bodies), true);
  failing_queues = 0;
  return verdict;
}

/// What those who look are told of ops that are answered later: whether the body has returned.
std::string returned(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1, .gpus = 1}, 1);
  const Place place = b.chance(50) ? Place(sim(0)) : Place(cpu(0));
  const auto seen = [&b] {  // -1: not there
    const detail::Look look = b.core->look();
    for (const detail::LookedOp& o : look.ops)
      if (std::string_view(o.name) == "later") return static_cast<int>(o.returned);
    return -1;
  };
  return run_bed(std::move(bed), {[&b, seen, place] {
                   for (int i = 0; i < 20; ++i) {
                     const bool asks = i % 3 == 0;
                     const Ticket t = b.engine->push(
                         [&b, seen, asks](Completion done) {
                           if (seen() > 0) b.fail("a body that runs is said to have returned");
                           if (!asks) return done.done();
                           auto held = std::make_shared<Completion>(std::move(done));
                           ExplorePolicy::start_substitute([&b, held, seen] {
                             int looks = 0;
                             while (seen() == 0 && ++looks < 60) ExplorePolicy::pause();
                             if (looks == 60) b.fail("a body that returned is not said to have");
                             Completion mine = std::move(*held);
                             mine.done();
                           });
                         },
                         {update(b.x[0].variable)}, {.on = place, .name = "later"});
                     t.wait();
                   }
                 }},
                 false, {}, 200'000);
}

/// Who looks at what is in flight, while variables go and records are used again.
std::string looks(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1}, 2);
  const auto pusher = [&b] {
    for (int i = 0; i < 3; ++i) {
      {  // A variable that goes with its last op, before that op is done with the others.
        const Variable mine = b.engine->variable("mine"), later = b.engine->variable("later");
        b.engine->push([] {}, {update(mine), read(later), read(b.x[0].variable)});
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

}  // namespace

std::vector<Drawn> lane_programs() {
  return {{"streams", streams},
          {"issued", issued},
          {"replays", replays},
          {"replayed bytes", replayed_bytes},
          {"stop", stop},
          {"stop asks", stop_asks},
          {"deadlocks", deadlocks},
          {"late answers", late_answers},
          {"failures", failures},
          {"serial", serial},
          {"meeting", meeting},
          {"in a row", in_a_row},
          {"stop alone", stop_alone},
          {"freed to meet", freed_to_meet},
          {"helpers", helpers},
          {"many errors", many_errors},
          {"starving", starving},
          {"looks", looks},
          {"returned", returned}};
}

}  // namespace sluice::mutants
