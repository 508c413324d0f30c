// Schedules as text, both ways.
#include "sluice/schedule/schedule_text.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "schedules.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice::parallel {
namespace {

std::string why(std::string_view text) {
  try {
    parse_schedule(text, "mine.txt");
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
  return "accepted";
}

TEST(ScheduleText, WhatIsWrittenIsRead) {
  for (const Schedule& schedule : fixed_and_free_schedules()) {
    SCOPED_TRACE(describe(schedule));
    EXPECT_EQ(parse_schedule(to_text(schedule, true)), schedule);
  }
  Schedule more = gpipe(2, 4);
  more.sum = sum_by_halves(4);
  for (int s = 0; s < 2; ++s) more.per_device[static_cast<std::size_t>(s)].push_back({U, s, 0});
  EXPECT_EQ(parse_schedule(to_text(more, true)), more);
  Schedule rings = make_schedule("dynamic", 2, 4);
  rings.rings = {{1, 2}, {3, 4}};
  EXPECT_TRUE(to_text(rings, true).ends_with("\nfree 1,2 3,4\n"));
  EXPECT_EQ(parse_schedule(to_text(rings, true)), rings);
  // Rings hold a fixed order back too.
  more.rings.assign(2, {4, 5});
  EXPECT_TRUE(to_text(more, true).ends_with("\nrings 4,5\n"));
  EXPECT_EQ(parse_schedule(to_text(more, true)), more);
  const Schedule free = with_updates(with_recompute(dynamic_v({3, 9})(4, 5), {true, false, true, false}));
  EXPECT_TRUE(to_text(free, true).ends_with("\nfree 2,7 1,4 2,5 1,2\n")) << to_text(free, true);
  EXPECT_EQ(parse_schedule(to_text(free, true)), free);
  // A name is one line, whatever it is.
  more.name = "a #1\nfree";
  EXPECT_TRUE(to_text(more, true).starts_with("schedule a _1_free\n"));
  Schedule tied = gpipe(3, 2);
  tied.tied = {{"0.weight", {0, 2}}, {"1.w", {0, 1, 2}, sum_tree("((0 1) (2 3))")}, {"v", {1}, sum_tree("(0)")}};
  EXPECT_TRUE(to_text(tied, true).ends_with("\ntied 0.weight 0 2\ntied 1.w 0 1 2 ((0 1) (2 3))\ntied v 1 (0)\n"));
  EXPECT_EQ(parse_schedule(to_text(tied, true)), tied);
}

TEST(ScheduleText, AsAPersonWritesIt) {
  const Schedule read = parse_schedule(
      "# two stages\n"
      "schedule  by hand \r\n"
      "s0 F0-1 B0 B1 U   # and a step\n"
      "\n"
      "s1 F0 I0W0F1 I1 W1 U\n"
      "sum (1 0)");
  EXPECT_EQ(read.name, "by hand");
  EXPECT_EQ(read.stages, 2);
  EXPECT_EQ(read.microbatches, 2);
  EXPECT_EQ(to_text(read), "s0 F0 F1 B0 B1 U0\ns1 F0 I0 W0 F1 I1 W1 U1\n");
  EXPECT_EQ(to_text(read.sum), "(1 0)");
  const Schedule two = parse_schedule("d0 F0.0 F1.0 B1.0 B0.0 U0U1\n", "there");
  EXPECT_EQ(two.name, "there");
  EXPECT_EQ(to_text(two), "d0 F0.0 F1.0 B1.0 B0.0 U0 U1\n");
}

TEST(ScheduleText, WhatIsWrongIsOneLineWithItsPlace) {
  EXPECT_EQ(why("s0 F0 B0\ns1 F0 X4"), "mine.txt:2: 'X4': an action is F, B, I, W, R or U and a number");
  EXPECT_EQ(why("s0 F"), "mine.txt:1: 'F': an action is F, B, I, W, R or U and a number");
  EXPECT_EQ(why("d0 F0"),
            "mine.txt:1: 'F0': an action is F, B, I, W, R or U and a number, as F0.3: stage and microbatch");
  EXPECT_EQ(why("s0 F3-1"), "mine.txt:1: 'F3-1': a range counts up, as F0-3");
  EXPECT_EQ(why("s0 F99999999999"), "mine.txt:1: a number is too large");
  EXPECT_EQ(why("\n\nx0 F0"),
            "mine.txt:3: 'x0': a line begins with 's' and a stage, 'd' and a device, 'schedule', 'sum', 'tied', 'free' "
            "or 'rings'");
  EXPECT_EQ(why("d1 F0.0"), "mine.txt:1: 'd1': the next device is d0");
  EXPECT_EQ(why("sum (0"), "mine.txt:1: the sum '(0' has a bracket that is not closed at character 3");
  EXPECT_EQ(why("tied w 0,3"),
            "mine.txt:1: a tied weight is 'tied', its name, its stages, and perhaps a tree of its uses");
  EXPECT_EQ(why("tied w 0 (0 1"), "mine.txt:1: the sum '(0 1' has a bracket that is not closed at character 5");
  EXPECT_EQ(why("free 3"), "mine.txt:1: 'free' has pairs of slots behind it, as 4,7");
  EXPECT_EQ(why("rings 3,"), "mine.txt:1: 'rings' has pairs of slots behind it, as 4,7");
  EXPECT_EQ(why("s0 F0 B0\nfree 1,1 2,2 3,3"),
            "mine.txt:2: schedule 'mine.txt' has 1 stages, and rings are given for 3");
  EXPECT_EQ(why(""), "mine.txt:1: schedule 'mine.txt' needs at least 1 stage and 1 microbatch, not 0 and 0");
  EXPECT_EQ(why("schedule broken\ns0 F0-2 B0 B2"), "mine.txt:2: schedule 'broken' lacks B(0,1)");
  EXPECT_EQ(why("s0 F0 B0\n\ns1 F0 B0 F0"), "mine.txt:3: schedule 'mine.txt' lists F(1,0) twice");
  EXPECT_EQ(
      why("# crossed\ns0 F0 B0 F1 B1\ns1 F0 F1 B0 B1"),
      "mine.txt:2: schedule 'mine.txt' cannot finish: B(0,0) waits for B(1,0) waits for F(1,1) (earlier on device "
      "1) waits for F(0,1) waits for B(0,0) (earlier on device 0)");
  EXPECT_EQ(why("s0 F0 B0\nsum (0 0)"),
            "mine.txt:2: schedule 'mine.txt' cannot add its gradients: the sum (0 0) counts microbatch 0 twice");
  EXPECT_THROW(load_schedule("/nowhere/mine.txt"), std::runtime_error);
}

TEST(ScheduleText, FromAFile) {
  const test::TemporaryDirectory directory;
  const std::string path = directory / "mine.txt";
  std::ofstream(path) << to_text(zbv(4, 5), true);
  EXPECT_EQ(load_schedule(path), zbv(4, 5));
  EXPECT_THROW(load_schedule(directory / "."), std::runtime_error);
}

/// What has no end is not read to it.
TEST(ScheduleText, FromADeviceWithoutAnEnd) {
  try {
    (void)load_schedule("/dev/zero");
    ADD_FAILURE() << "it was read";
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "/dev/zero: larger than 256 MiB: this is no schedule");
  }
}

/// Any bytes are a schedule or one line; and a schedule that was read is written and read again as it is.
TEST(ScheduleText, NoTextDoesHarm) {
  std::mt19937 random(5);
  const std::string starts[] = {
      to_text(zbv(4, 3), true) + "sum (0 1 2)\ntied w 0 3 (0 1)\n",
      to_text(with_updates(with_recompute(dynamic_v()(4, 3), {true, false, false, true})), true),
      to_text(one_f_one_b(2, 6), true) + "sum ((0 1) (2 3) (4 5))\nrings 7,9\n",
      to_text(make_schedule("dynamic:2,3", 3, 4), true)};
  const std::string letters = "FBIWRU0123456789 .-,()sdfresumfretied\n#\t\xff";
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    SCOPED_TRACE("seed 5, round " + std::to_string(round));
    std::string text = starts[round % 4];
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      if (random() % 3 == 0) {
        text.erase(at, random() % 9);
      } else if (random() % 4 == 0) {
        text.insert(at, text.substr(random() % text.size(), random() % 20));
      } else {
        text[at] = letters[random() % letters.size()];
      }
      if (text.empty()) text = " ";
    }
    try {
      const Schedule read = parse_schedule(text, "mine.txt");
      ++accepted;
      EXPECT_EQ(parse_schedule(to_text(read, true)), read) << text;
    } catch (const std::invalid_argument& e) {
      const std::string said = e.what();
      EXPECT_EQ(said.find('\n'), std::string::npos) << said;
      EXPECT_TRUE(said.starts_with("mine.txt:") && said.find_first_of("123456789") == 9) << said;
      EXPECT_LE(said.size(), 200U) << said;
    }
  }
  EXPECT_GT(accepted, 500);
}

}  // namespace
}  // namespace sluice::parallel
