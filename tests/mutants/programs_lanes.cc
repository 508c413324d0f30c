// Programs for the judge of mutants: batches and drainers, their starts and turns; stop; serial mode.
#include "bed.h"
#include "programs.h"

namespace sluice::mutants {
namespace {

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

/// Two ops that meet, so that both must run at once; and more of them than one worker should take. `together`: one
/// takes both, as another has just left.
std::string meet(std::uint64_t seed, bool together) {
  struct Met : Bed {
    using Bed::Bed;
    ExplorePolicy::Atomic<int> here{0};
  };
  auto bed = std::make_unique<Met>(seed);
  Met& b = *bed;
  b.make({.threads = 2 + static_cast<int>(b.below(2))}, 1);
  const bool late = !together && b.chance(40);
  std::uint64_t n = b.chance(60) ? 2 + b.below(3) : 9 + b.below(4), first = b.below(n - 1),
                second = first + 1 + b.below(std::min<std::uint64_t>(n - first - 1, 3)), pauses = 0;
  // A drainer that looks around finds the first, as the second comes.
  if (late) n = 3, first = 1, second = 2, pauses = b.below(12);
  // It has run one before, so that it is not new and wakes others for that.
  if (together) first = 1 + b.below(2), second = first + 1, n = first + 8 + b.below(3);
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

std::string meeting(std::uint64_t seed) { return meet(seed, false); }
std::string taken_together(std::uint64_t seed) { return meet(seed, true); }

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
    bool ran = false;
    detail::ExplorePolicy::Atomic<bool> pushed{false};
    int before = 0;
    void again() {
      engine->push(
          [this] {
            if (ran) return;
            if (++before > 600) return fail("an op of a low priority starves");
            again();
          },
          {}, {.priority = 7});
    }
  };
  auto bed = std::make_unique<Starved>(seed);
  Starved& b = *bed;
  b.make({.threads = 1}, 1);
  return run_bed(std::move(bed), {[&b] {
                   // The worker begins when it cannot miss the other in the queue.
                   b.engine->push(
                       [&b] {
                         while (!b.pushed.load(std::memory_order_acquire)) ExplorePolicy::pause();
                         b.again();
                       },
                       {}, {.priority = 7});
                   b.engine->push([&b] { b.ran = true; }, {}, {.priority = 1});
                   b.pushed.store(true, std::memory_order_release);
                 }},
                 false, {}, 300'000);
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

}  // namespace

std::vector<Drawn> lane_programs() {
  return {{"batch", batch},
          {"batches", batches},
          {"meeting", meeting},
          {"freed to meet", freed_to_meet},
          {"taken together", taken_together, "core_drain.h take_queued: wake"},
          {"in a row", in_a_row},
          {"starving", starving},
          {"failures", failures},
          {"stop", stop},
          {"stop asks", stop_asks},
          {"stop alone", stop_alone},
          {"serial", serial}};
}

}  // namespace sluice::mutants
