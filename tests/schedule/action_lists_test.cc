// What a schedule says of its actions: what they wait for, and one sequence in which a thread can push them.
#include "sluice/schedule/action_lists.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "schedules.h"
#include "sluice/schedule/program_order.h"

namespace sluice::parallel {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Actions, TableIsComplete) {
  std::string letters;
  std::set<Result> given;
  for (int kind = 0; kind < kActionKinds; ++kind) {
    const ActionRow& row = row_of(static_cast<ActionKind>(kind));
    letters += row.letter;
    given.insert(row.given().begin(), row.given().end());
    for (const Result r : row.given()) EXPECT_TRUE(gives(static_cast<ActionKind>(kind), r));
  }
  EXPECT_EQ(letters, "FBIWRU");
  EXPECT_EQ(given.size(), static_cast<std::size_t>(kResults)) << "each result comes from somewhere";
  EXPECT_EQ(row_of(static_cast<ActionKind>(9)).letter, '?');
  EXPECT_EQ(to_text(Action{W, 2, 5}), "W(2,5)");
  EXPECT_EQ(to_text(Action{U, 2, 0}), "U(2)");
}

TEST(Order, ProgramOrderNeverPushesAheadOfWhatItNeeds) {
  for (const Schedule& schedule : fixed_and_free_schedules()) {
    SCOPED_TRACE(describe(schedule));
    const std::vector<Action> sequence = program_order(schedule);
    const Order order(schedule);
    std::set<Action> pushed;
    std::vector<std::vector<Action>> lists(schedule.per_device.size());
    for (const Action& action : sequence) {
      for (const Action& needed : order.waits_for(action)) {
        EXPECT_TRUE(pushed.contains(needed)) << to_text(action) << " stands before " << to_text(needed);
      }
      pushed.insert(action);
      lists[static_cast<std::size_t>(order.device(action))].push_back(action);
    }
    if (schedule.fixed_order) {
      EXPECT_EQ(lists, schedule.per_device);
    } else {
      for (std::size_t d = 0; d < lists.size(); ++d) {
        EXPECT_THAT(lists[d], testing::UnorderedElementsAreArray(schedule.per_device[d]));
      }
    }
    EXPECT_EQ(sequence, program_order(schedule));
  }
}

TEST(Order, ProgramOrderInterleavesStages) {
  std::string text;
  for (const Action& action : program_order(one_f_one_b(2, 3))) text += to_text(action) + " ";
  EXPECT_EQ(text, "F(0,0) F(0,1) F(1,0) B(1,0) B(0,0) F(1,1) F(0,2) B(1,1) B(0,1) F(1,2) B(1,2) B(0,2) ");
}

TEST(Order, Needs) {
  const Schedule whole = gpipe(3, 2);
  const Order order(whole);
  EXPECT_THAT(order.needs({F, 0, 1}), IsEmpty());
  EXPECT_THAT(order.needs({F, 2, 1}), ElementsAre(Action{F, 1, 1}));
  EXPECT_THAT(order.needs({B, 2, 0}), ElementsAre(Action{F, 2, 0}));
  EXPECT_THAT(order.needs({B, 1, 0}), ElementsAre(Action{B, 2, 0}, Action{F, 1, 0}));
  const Schedule halves = zb_h1(3, 2);
  const Order of_halves(halves);
  EXPECT_THAT(of_halves.needs({I, 1, 0}), ElementsAre(Action{I, 2, 0}, Action{F, 1, 0}));
  EXPECT_THAT(of_halves.needs({W, 1, 0}), ElementsAre(Action{I, 1, 0}));
  EXPECT_THAT(of_halves.waits_for({W, 2, 0}), ElementsAre(Action{I, 2, 0}, Action{I, 2, 1}));
  // Stage 0 recomputes microbatch 0; both stages step.
  Schedule more{2, 1, "more", {{{F, 0, 0}, {R, 0, 0}, {B, 0, 0}, {U, 0, 0}}, {{F, 1, 0}, {B, 1, 0}, {U, 1, 0}}}};
  const Order of_more(more);
  EXPECT_THAT(of_more.needs({B, 0, 0}), ElementsAre(Action{B, 1, 0}, Action{R, 0, 0}));
  EXPECT_THAT(of_more.needs({R, 0, 0}), ElementsAre(Action{F, 0, 0}));
  EXPECT_THAT(of_more.needs({U, 1, 0}), ElementsAre(Action{B, 1, 0}));
  EXPECT_THAT(of_more.needs({F, 1, 0}), ElementsAre(Action{F, 0, 0}));
}

TEST(Order, SlotsAndTheOrderOfSums) {
  const Schedule free = make_schedule("dynamic:2,3", 2, 5);
  const Order order(free);
  EXPECT_THAT(order.frees_slots_for({F, 0, 1}), IsEmpty());
  EXPECT_THAT(order.frees_slots_for({F, 0, 2}), ElementsAre(Action{I, 0, 0}));
  EXPECT_THAT(order.frees_slots_for({F, 0, 4}), ElementsAre(Action{I, 0, 2}, Action{W, 0, 1}));
  EXPECT_THAT(order.waits_for({W, 0, 2}), ElementsAre(Action{I, 0, 2}, Action{W, 0, 1}));
}

TEST(Order, EachActionHasANumberOfItsOwn) {
  for (const Schedule& schedule : fixed_schedules()) {
    std::set<int> numbers;
    for (const auto& list : schedule.per_device) {
      for (const Action& action : list) EXPECT_TRUE(numbers.insert(index_of(schedule, action)).second);
    }
    EXPECT_GE(*numbers.begin(), 0);
    EXPECT_LT(*numbers.rbegin(), action_count(schedule));
  }
}

}  // namespace
}  // namespace sluice::parallel
