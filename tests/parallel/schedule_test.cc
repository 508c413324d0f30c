// Schedules and the prover: exact orders, each action once, no cycles, memory as the formula says, bad ones refused.
#include "sluice/parallel/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "sluice/parallel/verify.h"

namespace sluice::parallel {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto F = ActionKind::forward;
constexpr auto B = ActionKind::backward;

std::set<int> microbatch_counts(int stages) {
  std::set<int> counts{1, stages - 1, stages, 2 * stages, 4 * stages};
  counts.erase(0);
  return counts;
}

std::vector<Schedule> all_schedules() {
  std::vector<Schedule> all;
  for (const int p : {1, 2, 3, 4, 8}) {
    for (const int m : microbatch_counts(p)) {
      for (const char* name : {"gpipe", "1f1b"}) all.push_back(make_schedule(name, p, m));
    }
  }
  return all;
}

std::string describe(const Schedule& s) {
  return s.name + " p=" + std::to_string(s.stages) + " m=" + std::to_string(s.microbatches);
}

std::string refusal(const Schedule& schedule, std::span<const int> limits = {}) {
  try {
    verify(schedule, limits);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Schedule, TableOfTheReference) {
  EXPECT_EQ(to_text(one_f_one_b(4, 8)),
            "s0 F0-3 B0 F4 B1 F5 B2 F6 B3 F7 B4-7\n"
            "s1 F0-2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5-7\n"
            "s2 F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7\n"
            "s3 F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7\n");
  EXPECT_EQ(to_text(gpipe(2, 4)), "s0 F0-3 B0-3\ns1 F0-3 B0-3\n");
  EXPECT_EQ(to_text(one_f_one_b(4, 2)), "s0 F0 F1 B0 B1\ns1 F0 F1 B0 B1\ns2 F0 F1 B0 B1\ns3 F0 B0 F1 B1\n");
}

TEST(Schedule, EachActionOnceAndAcyclic) {
  for (const Schedule& schedule : all_schedules()) {
    SCOPED_TRACE(describe(schedule));
    std::multiset<Action> actions;
    for (const auto& lane : schedule.per_stage) actions.insert(lane.begin(), lane.end());
    EXPECT_EQ(actions.size(), static_cast<std::size_t>(action_count(schedule)));
    for (int s = 0; s < schedule.stages; ++s) {
      for (int k = 0; k < schedule.microbatches; ++k) {
        EXPECT_EQ(actions.count({F, s, k}), 1u);
        EXPECT_EQ(actions.count({B, s, k}), 1u);
      }
    }
    EXPECT_EQ(refusal(schedule), "accepted");
  }
}

// The position of each action by formula, written down differently from how the schedule is built.
TEST(Schedule, OrderByFormula) {
  for (const Schedule& schedule : all_schedules()) {
    SCOPED_TRACE(describe(schedule));
    const int p = schedule.stages, m = schedule.microbatches;
    for (int s = 0; s < p; ++s) {
      const int warm_up = schedule.name == "gpipe" ? m : std::min(p - 1 - s, m);
      std::vector<Action> expected(static_cast<std::size_t>(2 * m));
      for (int k = 0; k < m; ++k) {
        // Before F_k: all earlier F's, and the B's of the pairs between the warm-up and it. Before B_k: likewise.
        const int f = k + std::max(0, k - warm_up), b = k + std::min(m, warm_up + k + 1);
        expected[static_cast<std::size_t>(f)] = {F, s, k};
        expected[static_cast<std::size_t>(b)] = {B, s, k};
      }
      EXPECT_EQ(schedule.per_stage[static_cast<std::size_t>(s)], expected) << "stage " << s;
    }
  }
}

TEST(Schedule, PeakActivationsAreTheFormula) {
  for (const Schedule& schedule : all_schedules()) {
    SCOPED_TRACE(describe(schedule));
    const int p = schedule.stages, m = schedule.microbatches;
    std::vector<int> limits;
    for (int s = 0; s < p; ++s) {
      limits.push_back(schedule.name == "gpipe" ? m : std::min(p - s, m));
      EXPECT_EQ(peak_activations(schedule, s), limits.back()) << "stage " << s;
    }
    EXPECT_EQ(refusal(schedule, limits), "accepted");
    --limits.back();
    EXPECT_THAT(refusal(schedule, limits), HasSubstr("on stage " + std::to_string(p - 1) + ", over its limit of"));
  }
}

TEST(Schedule, ProgramOrderNeverPushesAheadOfWhatItNeeds) {
  for (const Schedule& schedule : all_schedules()) {
    SCOPED_TRACE(describe(schedule));
    const std::vector<Action> order = program_order(schedule);
    ASSERT_EQ(order.size(), static_cast<std::size_t>(action_count(schedule)));
    std::set<Action> pushed;
    std::vector<std::vector<Action>> lanes(static_cast<std::size_t>(schedule.stages));
    for (const Action& action : order) {
      for (const Action& needed : data_dependencies(schedule, action)) {
        EXPECT_TRUE(pushed.contains(needed)) << to_text(action) << " stands before " << to_text(needed);
      }
      pushed.insert(action);
      lanes[static_cast<std::size_t>(action.stage)].push_back(action);
    }
    EXPECT_EQ(lanes, schedule.per_stage);
    EXPECT_EQ(order, program_order(schedule));
  }
}

TEST(Schedule, ProgramOrderInterleavesStages) {
  std::string text;
  for (const Action& action : program_order(one_f_one_b(2, 3))) text += to_text(action) + " ";
  EXPECT_EQ(text, "F(0,0) F(0,1) F(1,0) B(1,0) B(0,0) F(1,1) F(0,2) B(1,1) B(0,1) F(1,2) B(1,2) B(0,2) ");
}

TEST(Schedule, DataDependencies) {
  const Schedule schedule = gpipe(3, 2);
  EXPECT_THAT(data_dependencies(schedule, {F, 0, 1}), ElementsAre());
  EXPECT_THAT(data_dependencies(schedule, {F, 2, 1}), ElementsAre(Action{F, 1, 1}));
  EXPECT_THAT(data_dependencies(schedule, {B, 2, 0}), ElementsAre(Action{F, 2, 0}));
  EXPECT_THAT(data_dependencies(schedule, {B, 1, 0}), ElementsAre(Action{B, 2, 0}, Action{F, 1, 0}));
  std::set<int> indices;
  for (const auto& lane : schedule.per_stage) {
    for (const Action& action : lane) indices.insert(index_of(schedule, action));
  }
  EXPECT_EQ(indices.size(), 12u);
  EXPECT_EQ(*indices.begin(), 0);
  EXPECT_EQ(*indices.rbegin(), action_count(schedule) - 1);
}

TEST(Schedule, BadArgumentsGiveOneClearLine) {
  const auto message = [](const char* name, int p, int m) -> std::string {
    try {
      make_schedule(name, p, m);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message("zigzag", 2, 2), "unknown schedule 'zigzag': known are gpipe, 1f1b");
  EXPECT_EQ(message("gpipe", 0, 4), "schedule 'gpipe' needs at least 1 stage, not 0");
  EXPECT_EQ(message("1f1b", 4, -1), "schedule '1f1b' needs at least 1 microbatch, not -1");
  EXPECT_THROW(peak_activations(gpipe(2, 2), 2), std::invalid_argument);
  EXPECT_THROW(peak_activations(gpipe(2, 2), -1), std::invalid_argument);
}

TEST(Verify, RefusesIncompleteAndDoubledWork) {
  Schedule missing = one_f_one_b(2, 3);
  missing.per_stage[0].pop_back();
  EXPECT_EQ(refusal(missing), "schedule '1f1b' lacks B(0,2)");

  Schedule doubled = gpipe(2, 2);
  doubled.per_stage[1].push_back({B, 1, 0});
  EXPECT_EQ(refusal(doubled), "schedule 'gpipe' lists B(1,0) twice");

  Schedule beyond = gpipe(2, 2);
  beyond.per_stage[1].push_back({F, 1, 2});
  EXPECT_EQ(refusal(beyond), "schedule 'gpipe' lists F(1,2) but has only 2 microbatches");

  Schedule negative = gpipe(2, 2);
  negative.per_stage[0][0].microbatch = -1;
  EXPECT_EQ(refusal(negative), "schedule 'gpipe' lists F(0,-1) but has only 2 microbatches");

  Schedule elsewhere = gpipe(2, 2);
  std::swap(elsewhere.per_stage[0], elsewhere.per_stage[1]);
  EXPECT_EQ(refusal(elsewhere), "schedule 'gpipe' lists F(1,0) on stage 0");

  Schedule strange = gpipe(2, 2);
  strange.per_stage[0][0].kind = static_cast<ActionKind>(7);
  EXPECT_EQ(refusal(strange), "schedule 'gpipe' lists an action of unknown kind 7 on stage 0");

  Schedule short_list = gpipe(2, 2);
  short_list.per_stage.pop_back();
  EXPECT_EQ(refusal(short_list), "schedule 'gpipe' lists actions for 1 stages, not 2");
  EXPECT_EQ(refusal(Schedule{0, 2, "none", {}}),
            "schedule 'none' needs at least 1 stage and 1 microbatch, not 0 and 2");
  EXPECT_THAT(refusal(Schedule{1, 2'000'000'000, "vast", {{}}}), HasSubstr("too many microbatches"));
  EXPECT_THAT(refusal(gpipe(2, 2), std::vector<int>{1}), HasSubstr("limits are given for 1"));
}

TEST(Verify, NamesTheCycle) {
  Schedule own{1, 1, "own", {{{B, 0, 0}, {F, 0, 0}}}};
  EXPECT_EQ(refusal(own),
            "schedule 'own' cannot finish: B(0,0) waits for F(0,0) waits for B(0,0) (earlier on stage 0)");

  // Stage 0 wants B0 back before it sends F1; stage 1 wants F1 before it returns B0.
  Schedule crossed{
      2, 2, "crossed", {{{F, 0, 0}, {B, 0, 0}, {F, 0, 1}, {B, 0, 1}}, {{F, 1, 0}, {F, 1, 1}, {B, 1, 0}, {B, 1, 1}}}};
  EXPECT_EQ(refusal(crossed),
            "schedule 'crossed' cannot finish: B(0,0) waits for B(1,0) waits for F(1,1) (earlier on stage 1) waits for "
            "F(0,1) waits for B(0,0) (earlier on stage 0)");
  EXPECT_THROW(program_order(crossed), std::invalid_argument);

  // Stage 0 is stuck behind a cycle that it is no part of; the message starts in the cycle.
  Schedule behind = gpipe(3, 1);
  behind.per_stage[2] = {{B, 2, 0}, {F, 2, 0}};
  EXPECT_EQ(refusal(behind),
            "schedule 'gpipe' cannot finish: B(2,0) waits for F(2,0) waits for B(2,0) (earlier on stage 2)");
}

// Against an independent oracle: the union of edges has a topological order or it has none (Kahn's algorithm).
TEST(Verify, AgreesWithATopologicalSort) {
  std::mt19937 random(7);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 600; ++round) {
    Schedule schedule = one_f_one_b(2 + round % 3, 1 + round % 4);
    for (int swaps = round % 5; swaps > 0; --swaps) {
      auto& lane = schedule.per_stage[random() % schedule.per_stage.size()];
      std::swap(lane[random() % lane.size()], lane[random() % lane.size()]);
    }
    std::vector<std::pair<Action, Action>> edges;
    std::set<Action> left;
    for (const auto& lane : schedule.per_stage) {
      for (std::size_t i = 0; i < lane.size(); ++i) {
        left.insert(lane[i]);
        if (i > 0) edges.push_back({lane[i - 1], lane[i]});
        const auto [kind, s, k] = lane[i];
        if (kind == F && s > 0) edges.push_back({{F, s - 1, k}, lane[i]});
        if (kind == B && s + 1 < schedule.stages) edges.push_back({{B, s + 1, k}, lane[i]});
        if (kind == B) edges.push_back({{F, s, k}, lane[i]});
      }
    }
    for (std::size_t before = 0; before != left.size();) {
      before = left.size();
      std::erase_if(left, [&](const Action& a) {
        return std::ranges::none_of(edges, [&](const auto& e) { return e.second == a && left.contains(e.first); });
      });
    }
    if (left.empty()) {
      EXPECT_EQ(refusal(schedule), "accepted") << to_text(schedule);
      ++accepted;
    } else {
      EXPECT_THAT(refusal(schedule), AllOf(HasSubstr("cannot finish: "), HasSubstr(" waits for ")))
          << to_text(schedule);
      ++refused;
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace sluice::parallel
