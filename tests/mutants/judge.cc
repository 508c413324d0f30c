#include "judge.h"

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "chosen.h"
#include "explore_run.h"
#include "explore_search.h"
#include "explore_small.h"
#include "programs.h"

namespace sluice::mutants {
namespace {

using detail::Explorer;

/// Random programs against the serial model.
Family sampled() {
  return {"sample", [seed = std::uint64_t{0}](std::string& told) mutable -> std::string {
            told = std::to_string(++seed);
            const testing::ProgramResult result = testing::run_program(seed);
            return result.hang ? "a hang" : result.mismatch;
          }};
}

/// Every schedule of the small program with few deviations.
Family every(const char* name, bool waits, int budget) {
  auto all = std::make_shared<detail::Exhaustive>(budget);
  return {name, [all, waits, run = std::uint64_t{0}](std::string& told) mutable -> std::string {
            const testing::Deciding deciding(all.get());
            if (!all->next_schedule()) {
              told.clear();
              return "";
            }
            told = "run " + std::to_string(++run);
            Explorer::get().reset(0);
            const testing::SmallResult result = testing::run_small(waits);
            if (result.good()) return "";
            told = all->decisions();
            return result.hang ? "a hang" : result.mismatch;
          }};
}

/// A program of this judge's, its schedule drawn from a seed.
Family drawn(const Drawn& program) {
  return {program.name,
          [run = program.run, seed = std::uint64_t{0}](std::string& told) mutable -> std::string {
            told = std::to_string(++seed);
            Explorer::get().reset(seed);
            return run(seed);
          },
          program.aims};
}

}  // namespace

Running running{};

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::vector<Drawn> all_programs() {
  std::vector<Drawn> all;
  for (const auto& programs : {chain_programs(), cap_programs(), circle_programs(), device_programs(), error_programs(),
                               lane_programs(), stream_programs(), wait_programs(), watcher_programs()})
    all.insert(all.end(), programs.begin(), programs.end());
  return all;
}

std::vector<Family> make_families() {
  std::vector<Family> all{sampled(), every("every", false, 2), every("wait", true, 1)};
  for (const Drawn& d : all_programs()) all.push_back(drawn(d));
  return all;
}

std::string replay_one(const std::string& family, std::uint64_t seed) {
  for (const Drawn& d : all_programs())
    if (family == d.name) {
      Explorer::get().reset(seed);
      std::string wrong = d.run(seed);
      if (wrong.empty() && broken) wrong = broken;
      if (wrong.empty() && cores != 0) wrong = "an engine that never ended";
      return wrong;
    }
  return "no such family";
}

Verdict judge(double seconds, const std::string& only) {
  Verdict verdict;
  struct Turn {
    Family family;
    bool done = false;
    std::uint64_t runs = 0, hits = 0;
  };
  std::vector<Turn> turns;
  for (Family& f : make_families())
    if (only.empty() || f.name == only) turns.push_back({std::move(f)});
  const double start = cpu_seconds();
  const auto used = [&] { return cpu_seconds() - start; };
  // Each gets a turn, longer from round to round. Who never comes by the mutant gets a few schedules, and no more where
  // somebody does.
  double slice = 0.3;
  for (int round = 0; used() < seconds; ++round, slice *= 1.5) {
    bool any = false;
    for (Turn& t : turns) {
      if (t.done || (round > 0 && t.hits == 0 && verdict.reached)) continue;
      any = true;
      const bool aimed = t.family.aims && std::string_view(chosen_name).find(t.family.aims) != std::string_view::npos;
      const double end = std::min(used() + (aimed ? 20 : 1) * slice, seconds);
      do {
        std::string seed;
        std::snprintf(running.what, sizeof(running.what), "%s, after %llu", t.family.name.c_str(),
                      static_cast<unsigned long long>(t.runs));
        const std::uint32_t before = chosen >= 0 ? passed[static_cast<std::size_t>(chosen)] : 0;
        std::string wrong = t.family.step(seed);
        if (wrong.empty() && broken) wrong = broken;
        if (wrong.empty() && cores != 0) wrong = "an engine that never ended";
        ++running.schedules;
        ++t.runs;
        if (chosen >= 0 && passed[static_cast<std::size_t>(chosen)] != before) ++t.hits, verdict.reached = true;
        if (!wrong.empty()) {
          verdict.family = t.family.name, verdict.seed = seed, verdict.what = wrong;
          verdict.seconds = used(), verdict.schedules = running.schedules;
          return verdict;
        }
        if (seed.empty()) t.done = true;
      } while (!t.done && used() < end && (chosen < 0 || round > 0 || t.hits > 0 || t.runs < 60));
    }
    if (!any) break;
  }
  verdict.seconds = used(), verdict.schedules = running.schedules;
  return verdict;
}

}  // namespace sluice::mutants
