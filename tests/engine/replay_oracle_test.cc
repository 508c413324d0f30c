// Replays against the same pushes in serial mode: random programs, with errors, recoveries and Completions.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "oracle.h"
#include "slice.h"
#include "support.h"

namespace sluice {
namespace {
using testing::failure;
using testing::QuietEngine;

constexpr int kVariables = 12;

/// One engine's run of a random scenario: a stretch of ops, issued `kRounds` times, with other pushes in between.
/// Whether an op throws depends on the round.
class Scenario {
 public:
  Scenario(std::uint64_t seed, bool replays, int threads)
      : engine_(QuietEngine::given({.mode = replays ? EngineMode::threaded : EngineMode::serial,
                                    .threads = threads,
                                    .logical_cpus = replays ? 2 : 1})),
        random_(seed),
        replays_(replays) {
    engine_.on_unobserved_error([](const ErrorRoot&) {});
    std::mt19937_64 valued(seed);
    for (int i = 0; i < kVariables; ++i) {
      variables_.push_back(engine_.variable(names[static_cast<std::size_t>(i)], valued() % 4 != 0));
      values_[static_cast<std::size_t>(i)] = static_cast<std::uint64_t>(i);
    }
    round_variable_ = engine_.variable();
  }

  std::vector<std::string> run() {
    std::vector<std::string> log;
    const std::uint64_t shape = random_();
    Program program;
    if (replays_) program = engine_.capture([&] { stretch(shape); });
    for (int round = 0; round < 6; ++round) {
      engine_.push([this, round] { round_ = round; }, {write(round_variable_)});
      const std::uint64_t between = random_();
      if (between % 3 == 0) engine_.recover(variables_[between / 8 % kVariables]);
      if (between % 5 == 0) one(static_cast<int>(between % 1000), between);
      if (replays_) {
        engine_.replay(program);
      } else {
        stretch(shape);
      }
      if (between % 7 == 0) log.push_back(failure([&] { engine_.wait(variables_[between / 64 % kVariables]); }));
    }
    for (int i = 0; i < kVariables; ++i) {
      log.push_back(failure([&] { engine_.wait(variables_[static_cast<std::size_t>(i)]); }));
      if (log.back().empty()) log.back() = std::to_string(values_[static_cast<std::size_t>(i)]);
    }
    // Intact or torn: what a recovery leaves.
    for (const Variable& v : variables_) {
      engine_.recover(v);
      log.push_back(failure([&] { engine_.wait(v); }));
    }
    return log;
  }

 private:
  void stretch(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const int ops = 5 + static_cast<int>(random() % 40);
    for (int i = 0; i < ops; ++i) one(i, random());
  }

  void one(int id, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::pair<std::size_t, AccessMode>> touched;
    std::set<std::size_t> seen;
    for (int i = 0, n = static_cast<int>(random() % 6); i < n; ++i) {
      const std::size_t v = random() % kVariables;
      if (!seen.insert(v).second) continue;
      touched.emplace_back(v, static_cast<AccessMode>(random() % 4));
    }
    std::vector<Access> accesses{read(round_variable_)};
    for (const auto& [v, mode] : touched) accesses.push_back({variables_[v].get(), mode});
    const std::uint64_t salt = random();
    const bool runs_poisoned = random() % 8 == 0, heals = random() % 2, late = random() % 6 == 0;
    const auto body = [this, touched, id, salt, runs_poisoned, heals](Context& context) {
      const std::uint64_t fate = oracle::mix(salt, static_cast<std::uint64_t>(round_)) % 16;
      if (fate == 0) throw std::runtime_error("op " + std::to_string(id));
      if (fate == 1) {
        context.wrote_nothing();
        throw std::runtime_error("intact op " + std::to_string(id));
      }
      std::uint64_t h = salt;
      for (const auto& [v, mode] : touched) {
        if (runs_poisoned && context.error(variables_[v])) {
          h = oracle::mix(h, 77);
          if (heals && mode == AccessMode::update) context.heal(variables_[v]);
          continue;
        }
        if (mode == AccessMode::read || mode == AccessMode::update) h = oracle::mix(h, values_[v]);
      }
      for (const auto& [v, mode] : touched)
        if (mode == AccessMode::update || mode == AccessMode::write) values_[v] = oracle::mix(h, v);
    };
    PushOptions options{.on = replays_ ? cpu(static_cast<int>(salt % 2)) : cpu(0),
                        .priority = static_cast<int>(salt % 8),
                        .name = names[static_cast<std::size_t>(id) % names.size()],
                        .on_poison = runs_poisoned ? OnPoison::run : OnPoison::skip};
    if (late) {
      engine_.push(
          [body](Context& context, Completion done) {
            body(context);
            done.done();
          },
          accesses, options);
    } else {
      engine_.push(body, accesses, options);
    }
  }

  static constexpr std::array names{"ant", "bee", "cat",  "dog", "eel", "fox",
                                    "gnu", "hen", "ibis", "jay", "kea", "lynx"};

  Engine engine_;
  std::mt19937_64 random_;
  const bool replays_;
  std::vector<Variable> variables_;
  Variable round_variable_;
  std::array<std::uint64_t, kVariables> values_{};
  int round_ = 0;
};

TEST(Replay, EqualsThePushesOneByOne) {
  const std::uint64_t kSeeds = testing::slice(100, 400, 2000);
  int poisoned = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto expected = Scenario(seed, false, 1).run();
    const auto got = Scenario(seed, true, 1 + static_cast<int>(seed % 4)).run();
    ASSERT_EQ(expected, got) << "seed " << seed;
    for (const std::string& s : got) poisoned += s.find(':') != std::string::npos;
  }
  EXPECT_GT(poisoned, static_cast<int>(kSeeds)) << "errors are part of it";
}

}  // namespace
}  // namespace sluice
