// Programs for the judge of mutants: streams, and replays.
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
            c.stream()->launch(kernel);
            auto held = std::make_shared<Completion>(std::move(done));
            ExplorePolicy::start_substitute([held] { held->done(); });
          },
          {access}, {.on = sim(device)});
    } else {
      b.engine->push([kernel](Context& c) { c.stream()->launch(kernel); }, {access}, {.on = sim(device)});
    }
  };
  return run_bed(
      std::move(bed),
      {[&b, on_device, fails] {
         on_device(0, b.x[0], true, b.chance(30));
         on_device(0, b.x[0], false, false);
         on_device(1, b.x[0], true, b.chance(30));
         if (!fails) {
           // Two rights to be issued by, two to be complete by.
           ++b.x[0].updates, ++b.x[1].updates;
           b.engine->push(
               [&b](Context& c) { c.stream()->launch([&b] { b.update_value(b.x[0]), b.update_value(b.x[1]); }); },
               {update(b.x[0].variable), update(b.x[1].variable)}, {.on = sim(static_cast<int>(b.below(2)))});
         }
         b.push_update(b.x[0]);
         if (fails) {
           // The device finds out late; what was made from it is worth nothing either.
           b.engine->push([](Context& c) { c.stream()->launch([] { throw std::runtime_error("x"); }); },
                          {write(b.x[1].variable)}, {.on = sim(0)});
           b.engine->push(
               // Either says it: the kernel, or whoever answers.
               [kernel = b.chance(50)](Context& c, Completion done) {
                 c.stream()->launch([kernel] {
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
                         c.stream()->launch([&b, fails] {
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
  const bool on_device = devices && b.chance(30);  // it fails there, after its body
  const bool fails = on_device || b.chance(30), inside = b.chance(40), async = b.chance(40), traced = b.chance(10),
             asks = b.chance(20);
  const int cpus = b.engine->device_count();
  if (traced) b.engine->start_trace();
  const auto capture = [&b, fails, on_device, async, devices, cpus, asks] {
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
              [&b, &v, throws = fails && !on_device](Context& c) {
                if (c.cancelled()) b.fail("a replay is taken for cancelled");
                b.update_value(v);
                if (throws) throw std::runtime_error("x");
              },
              {update(v.variable)}, how);
        } else if (i == 4 && on_device) {
          b.engine->push([](Context& c) { c.stream()->launch([] { throw std::runtime_error("x"); }); },
                         {read(v.variable), write(w.variable)}, how);
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

}  // namespace

std::vector<Drawn> stream_programs() {
  return {{"streams", streams}, {"issued", issued}, {"replays", replays}, {"returned", returned}};
}

}  // namespace sluice::mutants
