// Random programs over streams against an oracle: the order record reports accesses without order where there are some,
// only such, and none where there are none, whatever the timing is.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "sim_support.h"

namespace sluice {
namespace {

using testing::label_here;
using testing::reach;
using testing::Sim;

constexpr std::size_t kBytes = 64;

struct Step {
  enum Kind { touch, record, wait, learn } kind = touch;
  int stream = 0;
  // touch
  int block = 0;
  std::size_t begin = 0, end = 0;
  bool writes = false;
  const char* name = nullptr;
  // record: this one's point; wait and learn: another's
  int other = 0;
  std::uint64_t point = 0;
};

/// Names of accesses: "#12".
const char* name_of(std::size_t access) {
  static auto* const names = new std::deque<std::string>();
  while (names->size() <= access) names->push_back("#" + std::to_string(names->size()));
  return (*names)[access].c_str();
}

struct Program {
  int streams = 0, blocks = 0;
  std::vector<Step> steps;  ///< in an order in which they can be issued
  std::vector<std::uint64_t> points;
};

/// Any steps at all; waits may name points that come later.
Program random_program(std::minstd_rand& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Program program{2 + below(3), 1 + below(2), {}, {}};
  program.points.resize(static_cast<size_t>(program.streams));
  const int steps = 10 + below(50), touches = 1 + below(3);
  std::size_t accesses = 0;
  for (int i = 0; i < steps; ++i) {
    Step step;
    step.stream = below(program.streams);
    auto& points = program.points;
    if (below(10) < touches) {
      step.block = below(program.blocks);
      step.begin = static_cast<std::size_t>(below(kBytes));
      step.end = step.begin + 1 + static_cast<std::size_t>(below(static_cast<int>(kBytes - step.begin)));
      step.writes = below(3) == 0;
      step.name = name_of(accesses++);
    } else if (below(2) == 0) {
      step.kind = Step::record;
      step.point = points[static_cast<size_t>(step.stream)] += 1 + static_cast<unsigned>(below(3));
    } else {
      step.kind = Step::wait;
      step.other = below(program.streams);
      step.point = points[static_cast<size_t>(step.other)] + static_cast<unsigned>(below(4)) / 3;
      if (step.point > 2 && below(2) == 0) step.point -= static_cast<unsigned>(below(2));
      step.point = std::max<std::uint64_t>(step.point, 1);
    }
    program.steps.push_back(step);
  }
  for (int s = 0; s < program.streams; ++s) {
    Step step;
    step.kind = Step::record;
    step.stream = s;
    step.point = program.points[static_cast<size_t>(s)] += 2;
    program.steps.push_back(step);
  }
  return program;
}

/// As an engine would: each access waits for the last write of its block, and a write for the reads since. Then,
/// perhaps, one wait is left out.
Program ordered_program(std::minstd_rand& random, bool leaves_one_out) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Program program{2 + below(3), 1 + below(4), {}, {}};
  const auto streams = static_cast<size_t>(program.streams);
  program.points.resize(streams);
  std::vector<bool> pending(streams);  // commands since the last point
  struct Uses {
    std::optional<StreamEvent> write;
    std::vector<std::optional<std::uint64_t>> reads;
    int writer = 0;
  };
  std::vector<Uses> uses(static_cast<size_t>(program.blocks));
  for (auto& use : uses) use.reads.resize(streams);
  // An access's place: the next point that its stream records.
  const auto place = [&](int stream) { return program.points[static_cast<size_t>(stream)] + 1; };
  const auto wait_for = [&](int stream, int other, std::uint64_t point) {
    if (stream == other) return;
    auto& last = program.points[static_cast<size_t>(other)];
    Step step;
    if (last < point) {
      step.kind = Step::record;
      step.stream = other;
      step.point = last += 1 + static_cast<unsigned>(below(2));
      program.steps.push_back(step);
    }
    step.kind = below(3) == 0 ? Step::learn : Step::wait;
    step.stream = stream;
    step.other = other;
    step.point = point;
    program.steps.push_back(step);
  };
  const int steps = 5 + below(40);
  for (int i = 0; i < steps; ++i) {
    Step step;
    step.stream = below(program.streams);
    step.block = below(program.blocks);
    step.begin = static_cast<std::size_t>(below(kBytes / 2));
    step.end = kBytes - static_cast<std::size_t>(below(kBytes / 2));
    step.writes = below(3) == 0;
    step.name = name_of(static_cast<std::size_t>(i));
    Uses& use = uses[static_cast<size_t>(step.block)];
    if (use.write) wait_for(step.stream, use.writer, use.write->point);
    if (step.writes) {
      for (size_t s = 0; s < streams; ++s) {
        if (use.reads[s]) wait_for(step.stream, static_cast<int>(s), *use.reads[s]);
      }
      std::fill(use.reads.begin(), use.reads.end(), std::nullopt);
      use.write = StreamEvent{nullptr, place(step.stream)};
      use.writer = step.stream;
    } else {
      use.reads[static_cast<size_t>(step.stream)] = place(step.stream);
    }
    program.steps.push_back(step);
  }
  for (int s = 0; s < program.streams; ++s) {
    Step step;
    step.kind = Step::record;
    step.stream = s;
    step.point = program.points[static_cast<size_t>(s)] += 2;
    program.steps.push_back(step);
  }
  if (leaves_one_out) {
    std::vector<size_t> waits;
    for (size_t i = 0; i < program.steps.size(); ++i) {
      if (program.steps[i].kind == Step::wait || program.steps[i].kind == Step::learn) waits.push_back(i);
    }
    if (!waits.empty()) {
      program.steps.erase(program.steps.begin() + static_cast<std::ptrdiff_t>(waits[random() % waits.size()]));
    }
  }
  return program;
}

/// Which accesses nothing orders, by reachability; nothing where the program never ends.
std::optional<std::vector<std::pair<std::string, std::string>>> oracle(const Program& program) {
  const size_t n = program.steps.size();
  // Each step comes after the one before it on its stream; a wait, after the first recorded point that will do.
  std::vector<std::vector<size_t>> after(n);
  for (size_t i = 0; i < n; ++i) {
    const Step& step = program.steps[i];
    for (size_t j = i; j-- > 0;) {
      if (program.steps[j].stream != step.stream) continue;
      after[i].push_back(j);
      break;
    }
    if (step.kind != Step::wait && step.kind != Step::learn) continue;
    if (step.other == step.stream) continue;
    for (size_t j = 0; j < n; ++j) {
      const Step& other = program.steps[j];
      if (other.kind != Step::record || other.stream != step.other || other.point < step.point) continue;
      after[i].push_back(j);
      break;
    }
  }
  std::vector<std::vector<bool>> before(n, std::vector<bool>(n));
  std::vector<bool> done(n);
  for (size_t left = n; left > 0;) {
    const size_t had = left;
    for (size_t i = 0; i < n; ++i) {
      if (done[i] || !std::all_of(after[i].begin(), after[i].end(), [&](size_t j) { return done[j]; })) continue;
      for (const size_t j : after[i]) {
        before[i][j] = true;
        for (size_t k = 0; k < n; ++k) {
          if (before[j][k]) before[i][k] = true;
        }
      }
      done[i] = true;
      --left;
    }
    if (left == had) return std::nullopt;
  }
  std::vector<std::pair<std::string, std::string>> races;
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i + 1; j < n; ++j) {
      const Step &a = program.steps[i], &b = program.steps[j];
      if (a.kind != Step::touch || b.kind != Step::touch || a.block != b.block) continue;
      if (!(a.writes || b.writes) || a.begin >= b.end || b.begin >= a.end || before[i][j] || before[j][i]) continue;
      races.emplace_back(a.name, b.name);
    }
  }
  return races;
}

/// Issues the program: by one thread, or by one for each stream, which touch the memory for real where nothing races.
std::vector<std::string> run(const Program& program, bool threads, bool touches, unsigned seed) {
  using std::chrono::microseconds;
  Sim sim(2, {.random_delay = microseconds(threads ? 20 : 0),
              .seed = seed,
              .observer = order_record,
              .label = testing::test_label});
  std::vector<std::unique_ptr<Stream>> streams;
  for (int s = 0; s < program.streams; ++s) streams.push_back(sim.stream(0, static_cast<LaneKind>(s % 3)));
  std::vector<char*> blocks;
  for (int b = 0; b < program.blocks; ++b) {
    blocks.push_back(static_cast<char*>(sim.provider->allocate(0, kBytes, nullptr)));
  }
  const auto issue = [&](const Step& step) {
    Stream& stream = *streams[static_cast<size_t>(step.stream)];
    const StreamEvent event{streams[static_cast<size_t>(step.other)].get(), step.point};
    switch (step.kind) {
      case Step::touch: {
        label_here = {step.name, std::source_location::current()};
        char* const begin = blocks[static_cast<size_t>(step.block)] + step.begin;
        const MemoryUse uses[] = {{begin, step.end - step.begin, step.writes}};
        stream.launch(
            [step, begin, touches] {
              if (!touches) return;
              auto* const bytes = static_cast<volatile char*>(kernel_address(begin));
              for (std::size_t i = 0; i < step.end - step.begin; ++i) {
                if (step.writes) {
                  bytes[i] = 1;
                } else {
                  (void)bytes[i];
                }
              }
            },
            uses);
        break;
      }
      case Step::record:
        EXPECT_TRUE(stream.record(step.point));
        break;
      case Step::wait:
        EXPECT_TRUE(stream.wait(event));
        break;
      case Step::learn:
        reach(*event.stream, event.point);
        sim.observer().stream_after(stream, {&event, 1});
        break;
    }
  };
  if (threads) {
    std::vector<std::thread> issuers;
    for (int s = 0; s < program.streams; ++s) {
      issuers.emplace_back([&, s] {
        for (const Step& step : program.steps) {
          if (step.stream == s) issue(step);
        }
      });
    }
    for (auto& issuer : issuers) issuer.join();
  } else {
    for (const Step& step : program.steps) issue(step);
  }
  for (size_t s = 0; s < streams.size(); ++s) reach(*streams[s], program.points[s]);
  label_here = {};
  return sim.control->take_reports();
}

/// The two names in a report.
std::pair<std::string, std::string> names_in(const std::string& report) {
  std::array<std::string, 2> names;
  size_t at = 0;
  for (std::string& name : names) {
    at = report.find("[#", at);
    if (at == std::string::npos) return {report, ""};
    name = report.substr(at + 1, report.find(']', at) - at - 1);
    ++at;
  }
  return {names[0], names[1]};
}

struct Seen {
  int programs = 0, racy = 0, endless = 0;
};

void check(const Program& program, bool threads, unsigned seed, Seen& seen) {
  const auto races = oracle(program);
  if (!races) {
    ++seen.endless;
    return;
  }
  ++seen.programs;
  seen.racy += !races->empty();
  const auto reports = run(program, threads, races->empty(), seed);
  EXPECT_EQ(reports.empty(), races->empty()) << "seed " << seed;
  for (const std::string& report : reports) {
    auto [a, b] = names_in(report);
    const bool is_race = std::find(races->begin(), races->end(), std::pair(a, b)) != races->end() ||
                         std::find(races->begin(), races->end(), std::pair(b, a)) != races->end();
    EXPECT_TRUE(is_race) << "seed " << seed << ": " << report;
  }
}

TEST(OrderOracle, RandomPrograms) {
  Seen seen;
  for (unsigned seed = 1; seed <= 600 && !HasFailure(); ++seed) {
    std::minstd_rand random(seed * 7919);
    check(random_program(random), seed % 4 == 0, seed, seen);
  }
  EXPECT_GT(seen.racy, 50);
  EXPECT_GT(seen.programs - seen.racy, 50);
}

TEST(OrderOracle, ProgramsInOrderAndWithOneWaitLeftOut) {
  Seen seen;
  for (unsigned seed = 1; seed <= 600 && !HasFailure(); ++seed) {
    std::minstd_rand random(seed * 104729);
    check(ordered_program(random, seed % 2 == 0), seed % 3 == 0, seed, seen);
  }
  EXPECT_EQ(seen.endless, 0);
  EXPECT_GT(seen.racy, 50);
  EXPECT_GT(seen.programs - seen.racy, 250);
}

}  // namespace
}  // namespace sluice
