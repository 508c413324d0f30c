// Programs for the judge of mutants: watchers that come and go, and bodies that answer more than once.
#include "bed.h"
#include "programs.h"

namespace sluice::mutants {
namespace {

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

std::vector<Drawn> watcher_programs() {
  return {{"no watcher", no_watcher, "start_watch"},
          {"parked", parked, "run_watch"},
          {"parked again", parked, "start_watch: state"},
          {"answered", answered, "told.store"}};
}

}  // namespace sluice::mutants
