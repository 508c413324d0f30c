// The prover: what cannot finish, counts a gradient twice or never, or does not fit is refused, with the reason.
#include "sluice/schedule/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "schedules.h"
#include "sluice/schedule/program_order.h"
#include "sluice/schedule/schedule_text.h"

namespace sluice::parallel {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(Verify, RefusesIncompleteAndDoubledWork) {
  Schedule missing = one_f_one_b(2, 3);
  missing.per_device[0].pop_back();
  EXPECT_EQ(refusal(missing), "schedule '1f1b' lacks B(0,2)");

  Schedule doubled = gpipe(2, 2);
  doubled.per_device[1].push_back({B, 1, 0});
  EXPECT_EQ(refusal(doubled), "schedule 'gpipe' lists B(1,0) twice");

  Schedule beyond = gpipe(2, 2);
  beyond.per_device[1].push_back({F, 1, 2});
  EXPECT_EQ(refusal(beyond), "schedule 'gpipe' lists F(1,2) but has only 2 microbatches");

  Schedule above = gpipe(2, 2);
  above.per_device[1].push_back({F, 2, 0});
  EXPECT_EQ(refusal(above), "schedule 'gpipe' lists F(2,0) but has only 2 stages");

  Schedule negative = gpipe(2, 2);
  negative.per_device[0][0].microbatch = -1;
  EXPECT_EQ(refusal(negative), "schedule 'gpipe' lists F(0,-1) but has only 2 microbatches");

  Schedule elsewhere = gpipe(2, 2);
  std::swap(elsewhere.per_device[0][0], elsewhere.per_device[1][0]);
  EXPECT_EQ(refusal(elsewhere), "schedule 'gpipe' lists F(0,0) on device 1, and stage 0 is on device 0");
}

TEST(Verify, RefusesABackwardPassThatIsNoneOrTwo) {
  Schedule twice = zb_h1(2, 2);
  twice.per_device[1].push_back({B, 1, 1});
  EXPECT_EQ(refusal(twice), "schedule 'zb-h1' does the backward pass twice: B(1,1) and I(1,1)");

  Schedule never = zb_h1(2, 2);
  never.per_device[1].pop_back();
  EXPECT_EQ(refusal(never), "schedule 'zb-h1' never adds a gradient: it lacks W(1,1)");

  Schedule half = zb_h1(2, 2);
  std::erase(half.per_device[0], Action{I, 0, 1});
  EXPECT_EQ(refusal(half), "schedule 'zb-h1' lacks I(0,1)");

  Schedule one_steps = gpipe(2, 2);
  one_steps.per_device[0].push_back({U, 0, 0});
  EXPECT_EQ(refusal(one_steps), "schedule 'gpipe' lacks U(1)");
  one_steps.per_device[1].push_back({U, 1, 0});
  EXPECT_EQ(refusal(one_steps), "accepted");
  one_steps.per_device[1].back().microbatch = 1;
  EXPECT_EQ(refusal(one_steps), "schedule 'gpipe' lists U(1) but has only 1 microbatches");
}

TEST(Verify, RefusesWhatIsNoSchedule) {
  Schedule strange = gpipe(2, 2);
  strange.per_device[0][0].kind = static_cast<ActionKind>(7);
  EXPECT_EQ(refusal(strange), "schedule 'gpipe' lists an action of unknown kind 7 on device 0");

  Schedule short_list = gpipe(2, 2);
  short_list.per_device.pop_back();
  EXPECT_EQ(refusal(short_list), "schedule 'gpipe' lacks F(1,0)");
  EXPECT_EQ(refusal(Schedule{0, 2, "none", {}}),
            "schedule 'none' needs at least 1 stage and 1 microbatch, not 0 and 2");
  EXPECT_EQ(refusal(Schedule{1, 2, "none", {}}), "schedule 'none' has no devices");
  EXPECT_THAT(refusal(Schedule{1, 2'000'000'000, "vast", {{}}}), HasSubstr("too many microbatches"));
  Schedule ring = gpipe(2, 2);
  ring.rings.assign(2, {-1, 0});
  EXPECT_EQ(refusal(ring), "schedule 'gpipe' has a ring with fewer than 0 slots");
  ring.rings.pop_back();
  EXPECT_EQ(refusal(ring), "schedule 'gpipe' has 2 stages, and rings are given for 1");
}

TEST(Verify, NamesTheCycle) {
  Schedule own{1, 1, "own", {{{B, 0, 0}, {F, 0, 0}}}};
  EXPECT_EQ(refusal(own),
            "schedule 'own' cannot finish: B(0,0) waits for F(0,0) waits for B(0,0) (earlier on device 0)");

  // Stage 0 wants B0 back before it sends F1; stage 1 wants F1 before it returns B0.
  Schedule crossed{
      2, 2, "crossed", {{{F, 0, 0}, {B, 0, 0}, {F, 0, 1}, {B, 0, 1}}, {{F, 1, 0}, {F, 1, 1}, {B, 1, 0}, {B, 1, 1}}}};
  EXPECT_EQ(
      refusal(crossed),
      "schedule 'crossed' cannot finish: B(0,0) waits for B(1,0) waits for F(1,1) (earlier on device 1) waits for "
      "F(0,1) waits for B(0,0) (earlier on device 0)");
  EXPECT_THROW(program_order(crossed), std::invalid_argument);

  // Stage 0 is stuck behind a cycle that it is no part of; the message starts in the cycle.
  Schedule behind = gpipe(3, 1);
  behind.per_device[2] = {{B, 2, 0}, {F, 2, 0}};
  EXPECT_EQ(refusal(behind),
            "schedule 'gpipe' cannot finish: B(2,0) waits for F(2,0) waits for B(2,0) (earlier on device 2)");

  // A weight gradient before its input gradient; a recomputation behind what wants it.
  Schedule early = zb_h1(1, 1);
  std::swap(early.per_device[0][1], early.per_device[0][2]);
  EXPECT_EQ(refusal(early),
            "schedule 'zb-h1' cannot finish: W(0,0) waits for I(0,0) waits for W(0,0) (earlier on device 0)");
  Schedule late = gpipe(1, 1);
  late.per_device[0].push_back({R, 0, 0});
  EXPECT_EQ(refusal(late),
            "schedule 'gpipe' cannot finish: B(0,0) waits for R(0,0) waits for B(0,0) (earlier on device 0)");
}

TEST(Verify, NamesTheSlot) {
  // GPipe begins four microbatches before it ends one.
  Schedule fixed = gpipe(2, 4);
  fixed.rings.assign(2, {.saved = 3});
  EXPECT_EQ(
      refusal(fixed),
      "schedule 'gpipe' cannot finish: F(0,3) waits for B(0,0) (for its slot) waits for F(0,3) (earlier on device 0)");
  fixed.rings.assign(2, {.saved = 4});
  EXPECT_EQ(refusal(fixed), "accepted");
  // In a free order one slot a stage is enough for every order to end.
  for (const int m : {1, 2, 5, 9}) {
    for (const int p : {1, 2, 3, 8}) EXPECT_EQ(refusal(make_schedule("dynamic:1,1", p, m)), "accepted");
  }
  // A user's free order whose weight gradients are listed backwards is still one: sums go in index order.
  Schedule free = make_schedule("dynamic:2,2", 2, 4);
  for (auto& list : free.per_device) std::ranges::reverse(list);
  EXPECT_EQ(refusal(free), "accepted");
}

TEST(Verify, ChecksTheSum) {
  Schedule schedule = gpipe(2, 4);
  schedule.sum = sum_tree("((0 1) (2 3))");
  EXPECT_EQ(refusal(schedule), "accepted");
  schedule.sum = sum_tree("((0 1) (1 3))");
  EXPECT_EQ(refusal(schedule),
            "schedule 'gpipe' cannot add its gradients: the sum ((0 1) (1 3)) counts microbatch 1 twice");
  schedule.sum = sum_tree("(0 1 3)");
  EXPECT_EQ(refusal(schedule), "schedule 'gpipe' cannot add its gradients: the sum (0 1 3) never counts microbatch 2");
  Schedule free = make_schedule("dynamic", 2, 4);
  free.sum = sum_tree("(0 1 2 3)");
  EXPECT_EQ(refusal(free), "accepted");
  free.sum = sum_tree("((0 1) (2 3))");
  EXPECT_EQ(refusal(free),
            "schedule 'dynamic' has a free order, which adds gradients in index order, and not by ((0 1) (2 3))");
}

TEST(Verify, ChecksTiedWeights) {
  Schedule schedule = zb_h1(4, 2);
  const auto with = [&](std::vector<TiedWeight> tied) {
    schedule.tied = std::move(tied);
    return refusal(schedule);
  };
  EXPECT_EQ(with({{"w", {0, 3}}, {"w", {1, 2, 3}}, {"v", {0}, sum_tree("((0 2) 1)")}}), "accepted");
  EXPECT_EQ(
      with({{"w", {3, 0}}}),
      "schedule 'zb-h1' adds the gradients of the tied weight 'w' in the wrong order: W(3,0) before W(0,0), whose "
      "uses are earlier on the tape");
  EXPECT_EQ(with({{"w", {0, 3, 0}}}), "schedule 'zb-h1' counts the gradient of the tied weight 'w' twice: W(0,0)");
  EXPECT_EQ(with({{"w", {0, 3}}, {"w", {0, 1}}}),
            "schedule 'zb-h1' counts the gradient of the tied weight 'w' twice: it is listed twice");
  EXPECT_EQ(with({{"w", {0, 4}}}), "schedule 'zb-h1' has a tied weight 'w' in stage 4, but only 4 stages");
  EXPECT_EQ(with({{"w", {}}}), "schedule 'zb-h1' has a tied weight 'w' without stages");
  EXPECT_EQ(with({{"a b", {0, 1}}}), "schedule 'zb-h1' has a tied weight 'a b', and the name must be one word");
  EXPECT_EQ(with({{"w", {0, 3}, sum_tree("(0 (1 1))")}}),
            "schedule 'zb-h1' cannot add the gradients of the tied weight 'w': the sum (0 (1 1)) counts use 1 twice");
  EXPECT_EQ(with({{"w", {0, 3}, sum_tree("(0 2)")}}),
            "schedule 'zb-h1' cannot add the gradients of the tied weight 'w': the sum (0 2) counts use 2 of 2");

  // The owner's step waits for the uses in other stages.
  Schedule early = with_updates(zb_h1(2, 2));
  auto& list = early.per_device[1];
  list = {{F, 1, 0}, {I, 1, 0}, {F, 1, 1}, {I, 1, 1}, {W, 1, 0}, {W, 1, 1}, {U, 1, 0}};
  early.tied = {{"w", {0, 1}}};
  EXPECT_EQ(refusal(early), "accepted");
  EXPECT_EQ(Order(early).waits_for({U, 0, 0}).size(), 5U);
  EXPECT_EQ(Order(early).waits_for({U, 1, 0}).size(), 3U);
  // Both stages on one device: it would have to be there before its turn.
  Schedule one{2, 1, "one", {{{F, 0, 0}, {F, 1, 0}, {I, 1, 0}, {B, 0, 0}, {U, 0, 0}, {W, 1, 0}, {U, 1, 0}}}};
  EXPECT_EQ(refusal(one), "accepted");
  one.tied = {{"w", {0, 1}}};
  EXPECT_EQ(refusal(one),
            "schedule 'one' cannot finish: U(0) waits for W(1,0) (a use of a tied weight) waits for U(0) (earlier on "
            "device 0)");
}

TEST(Verify, CountsBytes) {
  const std::vector<StageBytes> stages(2, {.weights = 1000, .saved = 100, .kept = 30, .input = 10, .gradients = 400});
  Memory memory{stages, {1400, 1400}};
  EXPECT_EQ(refusal(gpipe(2, 4), memory), "accepted");
  memory.devices = {1400, 1399};
  EXPECT_EQ(refusal(gpipe(2, 4), memory),
            "schedule 'gpipe' needs 1.37 KiB on device 1 at F(1,3), and the device has 1.37 KiB");
  memory.devices = {1400};
  EXPECT_EQ(refusal(gpipe(2, 4), memory), "schedule 'gpipe' has 2 devices, and memory is given for 1");
  EXPECT_THROW(peak_bytes(gpipe(3, 1), stages), std::invalid_argument);

  // 1F1B: two, then one. Halves: I holds what it takes and what it gives.
  EXPECT_EQ(peak_bytes(one_f_one_b(2, 4), stages)[0].bytes, 1200);
  EXPECT_EQ(peak_bytes(one_f_one_b(2, 4), stages)[1].bytes, 1100);
  const std::vector<PeakBytes> halves = peak_bytes(zb_h1(2, 4), stages);
  EXPECT_EQ(halves[0].bytes, 1230);
  EXPECT_EQ(halves[1].bytes, 1160);
  EXPECT_EQ(halves[1].at, (Action{I, 1, 1}));

  // What it takes and gives as it is, is there once.
  std::vector<StageBytes> same = stages;
  for (StageBytes& bytes : same) bytes.both = 5;
  EXPECT_EQ(peak_bytes(zb_h1(2, 4), same)[0].bytes, 1225);
  EXPECT_EQ(peak_bytes(zb_h1(2, 4), same)[1].bytes, 1155);

  // Scratch is there while an action runs, once a device.
  for (StageBytes& bytes : same) bytes.work = 7;
  EXPECT_EQ(peak_bytes(zb_h1(2, 4), same)[0].bytes, 1232);
  EXPECT_EQ(peak_bytes(make_schedule("dynamic:2,3", 2, 8), same)[0].bytes, 1000 + 2 * 100 + 1 * 30 + (30 - 5) + 7);

  // With R, F keeps the input alone.
  Schedule again = gpipe(1, 4);
  for (int k = 3; k >= 0; --k) {
    again.per_device[0].insert(std::ranges::find(again.per_device[0], Action{B, 0, k}), {R, 0, k});
  }
  EXPECT_EQ(peak_bytes(again, std::vector(1, stages[0]))[0].bytes, 1000 + 4 * 10 + 100);

  // Backwards in the other order: three sums wait for the first.
  Schedule reversed = gpipe(1, 4);
  std::reverse(reversed.per_device[0].begin() + 4, reversed.per_device[0].end());
  EXPECT_EQ(peak_bytes(reversed, std::vector(1, stages[0]))[0].bytes, 1000 + 100 + 2 * 400);
  reversed.sum = sum_tree("(3 2 1 0)");
  EXPECT_EQ(peak_bytes(reversed, std::vector(1, stages[0]))[0].bytes, 1000 + 400);

  // A free order: what the rings allow, and one I that holds both.
  EXPECT_EQ(peak_bytes(make_schedule("dynamic:2,3", 2, 8), stages)[0].bytes, 1000 + 2 * 100 + 1 * 30 + 30);
  EXPECT_EQ(peak_bytes(make_schedule("dynamic:2,20", 2, 8), stages)[0].bytes, 1000 + 2 * 100 + 6 * 30 + 30);
  EXPECT_EQ(peak_bytes(make_schedule("dynamic:1,9", 2, 8), {{{.saved = 10, .kept = 30}, {}}})[0].bytes, 8 * 30 + 10);
  EXPECT_EQ(peak_bytes(in_free_order(gpipe(1, 8), {{3, 5}}), std::vector(1, stages[0]))[0].bytes, 1000 + 3 * 100);
  EXPECT_EQ(
      peak_bytes(with_recompute(in_free_order(gpipe(1, 8), {{3, 5}}), {true}), std::vector(1, stages[0]))[0].bytes,
      1000 + 3 * 100 + 10);
  memory.devices = {1259, 5000};
  EXPECT_EQ(refusal(make_schedule("dynamic:2,3", 2, 8), memory),
            "schedule 'dynamic' needs 1.23 KiB on device 0 in its worst order, and the device has 1.23 KiB");
  memory.devices = {1260, 1260};
  EXPECT_EQ(refusal(make_schedule("dynamic:2,3", 2, 8), memory), "accepted");
}

/// A free order of any kind: generated ones, and those of fixed orders, with any rings; some stages recompute.
Schedule random_free_order(std::mt19937& random) {
  const auto number = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  const int p = number(1, 5), m = number(1, 9);
  const Rings rings{number(1, 4), number(1, 6)};
  Schedule schedule;
  switch (number(0, 3)) {
    case 0:
      schedule = dynamic(rings)(p, m);
      break;
    case 1:
      schedule = dynamic_v({rings.saved + 1, rings.kept + 1})(2 * p, m);
      break;
    case 2:
      schedule = interleaved(2)(2 * p, m * p);
      break;
    default:
      schedule = zb_h2(p, m);
  }
  if (schedule.fixed_order) {
    std::vector<Rings> of_stages;
    for (int s = 0; s < schedule.stages; ++s) of_stages.push_back({number(0, 4), number(0, 6)});
    schedule = in_free_order(schedule, of_stages);
  }
  std::vector<bool> again;
  for (int s = 0; s < schedule.stages; ++s) again.push_back(number(0, 3) == 0);
  return with_recompute(schedule, again);
}

/// Every order of a free schedule, tried by taking ready actions at random, ends and holds no more than was proved.
TEST(Verify, EveryOrderOfAFreeScheduleEndsWithinItsBytes) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> any(0, 3);
  int tight = 0;
  for (int round = 0; round < 200; ++round) {
    const Schedule schedule = random_free_order(random);
    SCOPED_TRACE("seed 11, round " + std::to_string(round) + ", " + describe(schedule));
    std::vector<StageBytes> bytes;
    std::vector<double> held(schedule.per_device.size());
    const Order order(schedule);
    for (int s = 0; s < schedule.stages; ++s) {
      bytes.push_back({.weights = any(random), .saved = any(random), .kept = any(random), .input = any(random)});
      held[static_cast<std::size_t>(order.device_of_stage(s))] += bytes.back().weights;
    }
    const std::vector<PeakBytes> proved = peak_bytes(schedule, bytes);
    std::vector<double> most = held;
    std::vector<Action> left;
    for (const auto& list : schedule.per_device) left.insert(left.end(), list.begin(), list.end());
    std::map<Action, std::vector<Action>> before;
    for (const Action& a : left) before[a] = order.waits_for(a);
    std::vector<bool> done(static_cast<std::size_t>(action_count(schedule)));
    const auto is_done = [&](const Action& a) { return done[static_cast<std::size_t>(index_of(schedule, a))]; };
    while (!left.empty()) {
      std::vector<std::size_t> ready;
      for (std::size_t i = 0; i < left.size(); ++i) {
        if (std::ranges::all_of(before[left[i]], is_done)) ready.push_back(i);
      }
      ASSERT_FALSE(ready.empty());
      // Half of the rounds take forwards and input gradients first, which fills memory.
      std::size_t i = ready[random() % ready.size()];
      if (round % 2 == 0) {
        for (const std::size_t r : ready) {
          if (left[r].kind == F || (left[r].kind != F && left[i].kind == W && left[r].kind == I)) i = r;
        }
      }
      const Action a = left[i];
      const auto d = static_cast<std::size_t>(order.device(a));
      const StageBytes& of = bytes[static_cast<std::size_t>(a.stage)];
      const bool again = order.recomputes(a.stage, a.microbatch);
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
      done[static_cast<std::size_t>(index_of(schedule, a))] = true;
      if (a.kind == F) held[d] += again ? of.input : of.saved;
      if (a.kind == R) held[d] += of.saved;
      if (a.kind == I) held[d] += of.kept;
      most[d] = std::max(most[d], held[d]);
      ASSERT_LE(held[d], proved[d].bytes + 1e-9) << to_text(a);
      if (a.kind == R) held[d] -= of.input;
      if (a.kind == I || a.kind == B) held[d] -= of.saved;
      if (a.kind == W) held[d] -= of.kept;
    }
    for (std::size_t d = 0; d < most.size(); ++d) tight += most[d] > 0.999 * proved[d].bytes ? 1 : 0;
  }
  EXPECT_GT(tight, 20) << "the bound is reached";
}

// Against an independent oracle: the union of edges has a topological order or it has none (Kahn's algorithm).
TEST(Verify, AgreesWithATopologicalSort) {
  std::mt19937 random(7);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 600; ++round) {
    const int p = 2 + round % 3, m = 1 + round % 4;
    const bool halves = round % 2 == 1;
    Schedule schedule = halves ? zb_h1(p, m) : one_f_one_b(p, m);
    for (int swaps = round % 5; swaps > 0; --swaps) {
      auto& list = schedule.per_device[random() % schedule.per_device.size()];
      std::swap(list[random() % list.size()], list[random() % list.size()]);
    }
    const auto back = halves ? I : B;
    std::vector<std::pair<Action, Action>> edges;
    std::set<Action> left;
    for (const auto& list : schedule.per_device) {
      for (std::size_t i = 0; i < list.size(); ++i) {
        left.insert(list[i]);
        if (i > 0) edges.push_back({list[i - 1], list[i]});
        const auto [kind, s, k] = list[i];
        if (kind == F && s > 0) edges.push_back({{F, s - 1, k}, list[i]});
        if (kind == back && s + 1 < schedule.stages) edges.push_back({{back, s + 1, k}, list[i]});
        if (kind == back) edges.push_back({{F, s, k}, list[i]});
        if (kind == W) edges.push_back({{I, s, k}, list[i]});
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

/// A thousand schedules, each broken in one way, each refused for that.
TEST(Verify, RefusesAThousandBrokenSchedulesForTheRightReason) {
  std::mt19937 random(2024);
  const std::vector<Schedule> whole = fixed_schedules();
  const auto any = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  int refused = 0;
  std::vector<int> ways(12);
  while (refused < 1000) {
    Schedule broken = whole[any(whole.size())];
    const int d = static_cast<int>(any(broken.per_device.size()));
    auto& list = broken.per_device[static_cast<std::size_t>(d)];
    const std::size_t at = any(list.size());
    const Action a = list[at];
    const std::size_t way = any(ways.size());
    SCOPED_TRACE("seed 2024, broken " + std::to_string(refused) + ", way " + std::to_string(way) + ", " +
                 describe(broken) + ", " + to_text(a));
    std::string reason, more;
    Memory memory;
    if (way == 0) {  // left out
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
      reason = "lacks " + to_text(a);
    } else if (way == 1) {  // done again
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(any(list.size())), a);
      reason = "lists " + to_text(a) + " twice";
    } else if (way == 2) {  // given to another device
      if (broken.devices() < 2) continue;
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
      auto& other =
          broken
              .per_device[(static_cast<std::size_t>(&list - broken.per_device.data()) + 1) % broken.per_device.size()];
      if (list.empty()) continue;
      other.push_back(a);
      reason = ", and stage " + std::to_string(a.stage) + " is on device ";
    } else if (way == 3) {  // before what it needs, on its own device
      const Order order(broken);
      const std::vector<Action> needs = order.needs(a);
      const auto own = std::ranges::find_if(needs, [&](const Action& n) { return order.device(n) == order.device(a); });
      if (own == needs.end()) continue;
      const Action needed = *own;
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
      list.insert(std::ranges::find(list, needed), a);
      reason = " cannot finish: ";
      more = to_text(a);
    } else if (way == 4) {  // a gradient twice in the sum
      if (broken.microbatches < 2) continue;
      broken.sum = sum_in_order(broken.microbatches);
      int& item =
          *std::ranges::find(broken.sum.postfix, static_cast<int>(any(static_cast<std::size_t>(broken.microbatches))));
      item = (item + 1) % broken.microbatches;
      reason = "counts microbatch " + std::to_string(item) + " twice";
    } else if (way == 5) {  // a gradient that is in no sum
      if (broken.microbatches < 3) continue;
      broken.sum = sum_in_order(broken.microbatches - 1);
      int& item = *std::ranges::find(broken.sum.postfix, static_cast<int>(any(2)));
      reason = " cannot add its gradients: ";
      more = " never counts microbatch " + std::to_string(item);
      item = broken.microbatches - 1;
    } else if (way == 6) {  // the backward pass whole and in halves
      if (a.kind == F) continue;
      list.push_back({a.kind == B ? W : B, a.stage, a.microbatch});
      reason = " does the backward pass twice: " + to_text(Action{B, a.stage, a.microbatch}) + " and ";
    } else if (way == 7) {  // a device's forwards last: a circle, perhaps through other devices
      std::stable_partition(list.begin(), list.end(), [&](const Action& b) { return b.kind != F; });
      reason = " cannot finish: ";
      more = " (earlier on device ";
    } else if (way == 8) {  // fewer slots than the fixed order takes
      const int most = peak_saved(broken, a.stage);
      if (most < 2) continue;
      broken.rings.assign(static_cast<std::size_t>(broken.stages), {});
      broken.rings[static_cast<std::size_t>(a.stage)].saved = most;
      EXPECT_EQ(refusal(broken), "accepted");
      --broken.rings[static_cast<std::size_t>(a.stage)].saved;
      reason = " cannot finish: ";
      more = " (for its slot)";
    } else if (way == 9) {  // a step of some stages alone
      if (broken.stages < 2) continue;
      list.push_back({U, a.stage, 0});
      reason = " lacks U(";
    } else if (way == 10) {  // a tied weight's uses against the tape's order
      if (broken.stages < 2) continue;
      const int late = 1 + static_cast<int>(any(static_cast<std::size_t>(broken.stages - 1)));
      const int early = static_cast<int>(any(static_cast<std::size_t>(late)));
      broken.tied = {{"w", {late, early}}};
      const auto back = Order(broken).has({B, 0, 0}) ? B : W;
      reason = "tied weight 'w' in the wrong order: " + to_text(Action{back, late, 0}) + " before " +
               to_text(Action{back, early, 0});
    } else {  // one byte too little
      memory.stages.assign(static_cast<std::size_t>(broken.stages), {.weights = 8, .saved = 4, .kept = 2});
      for (const PeakBytes& peak : peak_bytes(broken, memory.stages)) memory.devices.push_back(peak.bytes);
      EXPECT_EQ(refusal(broken, memory), "accepted");
      const std::size_t device = any(memory.devices.size());
      --memory.devices[device];
      reason = " on device " + std::to_string(device) + " at ";
      more = ", and the device has ";
    }
    EXPECT_THAT(refusal(broken, memory),
                AllOf(StartsWith("schedule '" + broken.name + "' "), HasSubstr(reason), HasSubstr(more)));
    ++ways[way];
    ++refused;
  }
  EXPECT_THAT(ways, testing::Each(testing::Gt(50)));
}

}  // namespace
}  // namespace sluice::parallel
