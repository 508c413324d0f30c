// Programs for the judge of mutants: the caps, pushes that are given up, what errors keep.
#include "bed.h"
#include "programs.h"

namespace sluice::mutants {
namespace {

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

/// One op at a time: each push waits for the one before.
std::string one_at_a_time(std::uint64_t seed) {
  auto bed = std::make_unique<Bed>(seed);
  Bed& b = *bed;
  b.make({.threads = 1, .max_ops = 1}, 1);
  return run_bed(std::move(bed), {[&b] {
                   for (int i = 0; i < 4; ++i) b.push_update(b.x[0]);
                 }});
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

/// So many errors that nobody saw that some are reported and go: by one thread at a time.
std::string many_errors(std::uint64_t seed) {
  struct Told : Bed {
    using Bed::Bed;
    ExplorePolicy::Atomic<int> told{0};
    int calls = 0;
  };
  auto bed = std::make_unique<Told>(seed);
  Told& b = *bed;
  many_roots = 2;
  b.make({.threads = 1, .max_ops = 4}, 2);
  b.engine->on_unobserved_error([&b](const ErrorRoot&) {
    ++b.calls;
    b.told.store(b.told.load(relaxed) + 1, relaxed);
  });
  const auto pusher = [&b](Value& v) {
    for (int i = 0; i < 14; ++i) b.engine->push([] { throw std::runtime_error("x"); }, {write(v.variable)});
    if (!b.throws(ErrorKind::failed, [&] { b.engine->wait(v.variable); })) b.fail("a wait told of no error");
    for (int i = 0; i < 4; ++i) b.engine->push([] {}, {});
  };
  const std::string verdict = run_bed(
      std::move(bed), {[&b, pusher] { pusher(b.x[0]); }, [&b, pusher] { pusher(b.x[1]); }}, false,
      [&b] {
        if (b.calls == 0) b.fail("errors that nobody saw are kept without bound");
        if (b.told.load() != b.calls) b.fail("the hook was called by two threads at once");
        b.engine->on_unobserved_error([](const ErrorRoot&) {});
      },
      60'000);
  many_roots = 0;
  return verdict;
}

}  // namespace

std::vector<Drawn> cap_programs() {
  return {{"caps", caps},
          {"one at a time", one_at_a_time},
          {"freed bytes", freed_bytes},
          {"own credits", own_credits},
          {"abandoned", abandoned},
          {"hard cap", hard_cap},
          {"replayed bytes", replayed_bytes},
          {"many errors", many_errors, "core_errors.h shed_roots: shedding"}};
}

}  // namespace sluice::mutants
