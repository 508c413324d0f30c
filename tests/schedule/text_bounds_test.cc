// Texts from outside: what reading one may take, and what is said of it, however large the numbers in it are.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>

#include "schedules.h"
#include "sluice/engine/detail/sanitizers.h"
#include "sluice/schedule/schedule_text.h"

namespace {

// Of this thread, by operator new; under sanitizers, whose own stays in place, nothing.
thread_local std::size_t held = 0, most_held = 0;

}  // namespace

#if !defined(SLUICE_ASAN) && !defined(SLUICE_TSAN)

// Not inlined, so that the compiler does not mistake malloc and free for a mismatched pair.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (!memory) throw std::bad_alloc();
  held += ::malloc_usable_size(memory);
  most_held = std::max(most_held, held);
  return memory;
}
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return ::operator new(bytes); }
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  held -= ::malloc_usable_size(memory);
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory) noexcept { ::operator delete(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { ::operator delete(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { ::operator delete(memory); }

#endif

namespace sluice::parallel {
namespace {

/// The most bytes that a call holds at once, beside what was there.
std::size_t bytes_for(const std::function<void()>& call) {
  const std::size_t before = held;
  most_held = before;
  call();
  return most_held - before;
}

/// What is said of the text, or "accepted". It must be one short line with a place, and take no more memory than the
/// header says.
std::string why(const std::string& text, const std::string& file = "mine.txt") {
  std::string said = "accepted";
  const std::size_t bytes = bytes_for([&] {
    try {
      parse_schedule(text, file);
    } catch (const std::invalid_argument& e) {
      said = e.what();
    }
  });
  EXPECT_LE(bytes, 200 * (text.size() + (std::size_t{1} << 17))) << said;
  if (said == "accepted") return said;
  EXPECT_LE(said.size(), 200U) << said;
  EXPECT_EQ(said.find_first_of("\n\r\t\x1b"), std::string::npos) << said;
  EXPECT_TRUE(said.starts_with(file.size() > 80 ? "..." + file.substr(file.size() - 77) + ":" : file + ":")) << said;
  return said;
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(TextBounds, NumbersAreBoundedBeforeAnythingIsMadeOfThem) {
  EXPECT_EQ(why("s357913940 F0 B0"), "mine.txt:1: a number is too large");
  EXPECT_EQ(why("s2147483647 F0 B0"), "mine.txt:1: a number is too large");
  EXPECT_EQ(why("s99999999999 F0 B0"), "mine.txt:1: a number is too large");
  EXPECT_EQ(why("d0 F2147483647.2147483647"), "mine.txt:1: a number is too large");
  EXPECT_EQ(why("\ns0 U2147483647"), "mine.txt:2: a number is too large");
  EXPECT_EQ(why("s0 F0 B0\nfree 2147483648,1"), "mine.txt:2: a number is too large");
  EXPECT_EQ(why("s0 F0 B0\ntied w 0 99999999999"), "mine.txt:2: a number is too large");
  EXPECT_EQ(why("s0 F0 B0\ns999999 F0 B0"), "mine.txt:2: 'F0': a text of 22 bytes may have at most 65541 stages");
  EXPECT_EQ(why("s0 F0-999999 B0-999999"),
            "mine.txt:1: 'F0-999999': a text of 22 bytes may have at most 65541 microbatches");
  EXPECT_EQ(why("s0 F0-65000\nd1 F1.0-65000 F2.0-65000"),
            "mine.txt:2: 'F2.0-65000': a text of 36 bytes may have at most 131090 actions");
  EXPECT_EQ(why("s0 F65000 B0\ns65000 F0 B0"),
            "mine.txt:2: 65001 stages and 65001 microbatches: a text of 25 bytes may have at most 131084 actions");
  EXPECT_EQ(why("s0 " + repeated("F0-999999 ", 60)),
            "mine.txt:1: 'F0-999999': a text of 603 bytes may have at most 65686 microbatches");
  EXPECT_EQ(why("s0 " + repeated("F0-60000 ", 60)),
            "mine.txt:1: 'F0-60000': a text of 543 bytes may have at most 131343 actions");
  EXPECT_EQ(why("s60000 F0 B0\nfree 1,1"), "mine.txt:2: schedule 'mine.txt' lacks F(0,0)");
  EXPECT_EQ(why("s0 F0 B0\nsum (0 2147483647)"),
            "mine.txt:2: schedule 'mine.txt' cannot add its gradients: the sum (0 2147483647) counts microbatch "
            "2147483647 of 1");
}

/// The uses of tied weights are counted for each microbatch: a step waits for all of them.
TEST(TextBounds, TiedWeights) {
  const std::string lists = "s0 F0-9999 B0-9999 U\ns1 F0-9999 B0-9999 U\n";
  EXPECT_EQ(why(lists + "tied w 0 1\n"), "accepted");
  EXPECT_EQ(why(lists + repeated("tied w 0 1\n", 7)),
            "mine.txt:9: a text of 119 bytes may have at most 131131 uses of tied weights in all its microbatches");
  EXPECT_EQ(why("s0 F0 B0\ntied w 0\ntied v 7"),
            "mine.txt:3: schedule 'mine.txt' has a tied weight 'v' in stage 7, but only 1 stages");
  EXPECT_EQ(
      why("s0 F0 B0\ntied w 0 (0 0)"),
      "mine.txt:2: schedule 'mine.txt' cannot add the gradients of the tied weight 'w': the sum (0 0) counts use 0 "
      "twice");
}

/// What takes the most memory for its length.
TEST(TextBounds, StepsThatWaitForAll) {
  const std::string lists = "s0 F0-32767 B0-32767 U\ns1 F0-32767 B0-32767 U\n";
  EXPECT_EQ(why("s0 F0-32768 B0-32768 U\ns1 F0-32768 B0-32768 U"), "accepted");
  EXPECT_NE(why(lists + "rings 5,5"), "accepted") << "they would hold each other up";
  EXPECT_EQ(why(lists + "tied v 0 1\ntied w 0 1"), "accepted");
  std::string wide;
  for (int s = 0; s < 64; ++s) wide += "s" + std::to_string(s) + " F0-1024 B0-1024 U\n";
  for (const char* const name : {"v", "w"}) {
    wide += std::string("tied ") + name;
    for (int s = 0; s < 64; ++s) wide += " " + std::to_string(s);
    wide += "\n";
  }
  (void)why(wide + "rings 5,5");
}

/// Each step looks at the weights of its own stage alone.
TEST(TextBounds, ManyWeightsOfManyStages) {
  std::string text;
  for (int s = 0; s < 40'000; ++s) text += "s" + std::to_string(s) + " F0 B0 U\n";
  for (int s = 0; s < 40'000; ++s) text += "tied " + std::to_string(s) + " " + std::to_string(s) + "\n";
  EXPECT_EQ(why(text), "accepted");
}

TEST(TextBounds, WhatIsSaidIsShortAndHasALine) {
  EXPECT_EQ(why("s0 F0 B0\nrings 1,1 2,2"), "mine.txt:2: schedule 'mine.txt' has 1 stages, and rings are given for 2");
  EXPECT_EQ(why("s0 F0-1 B0-1\nsum (1 0)\nfree"),
            "mine.txt:2: schedule 'mine.txt' has a free order, which adds gradients in index order, and not by (1 0)");
  EXPECT_EQ(why("s0 F0 B0\ns2 F0 B0\n\n"), "mine.txt:3: schedule 'mine.txt' lacks F(1,0)") << "in no line: the last";
  const std::string long_word(100'000, 'x');
  EXPECT_EQ(why(long_word),
            "mine.txt:1: 'xxxxxxxxxxxxxxxxxxxxx...': a line begins with 's' and a stage, 'd' and a "
            "device, 'schedule', 'sum', 'tied', 'free' or 'rings'");
  EXPECT_EQ(why("s0 F" + long_word),
            "mine.txt:1: 'Fxxxxxxxxxxxxxxxxxxxx...': an action is F, B, I, W, R or U and a number");
  EXPECT_EQ(why("schedule " + long_word + "\ns0 F0"),
            "mine.txt:2: schedule 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...' lacks B(0,0)");
  EXPECT_EQ(why("schedule a\x1b[2J\rb\ns0 F0"), "mine.txt:2: schedule 'a?[2J?b' lacks B(0,0)");
  EXPECT_EQ(why("schedule " + repeated("\u00e9", 50) + "\ns0 F0"),
            "mine.txt:2: schedule '" + repeated("\u00e9", 18) + "...' lacks B(0,0)")
      << "no character is cut";
  EXPECT_EQ(why("s0 F0 B0\ntied " + long_word + " 1"),
            "mine.txt:2: schedule 'mine.txt' has a tied weight 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...' in stage 1, "
            "but only 1 stages");
  why("s0 F", "/tmp/" + repeated("a long path/", 100));
  const std::string crossed = "schedule " + long_word + "\ns0 F0 B0 F1 B1\ns1 F0 F1 B0 B1";
  EXPECT_TRUE(why(crossed, std::string(60, 'a')).ends_with("..."));
}

TEST(TextBounds, SumsAreNamedByTheirBeginning) {
  std::string numbers = "(0";
  for (int k = 1; k < 100'000; ++k) numbers += " " + std::to_string(k);
  EXPECT_EQ(why("s0 F0 B0\nsum " + numbers),
            "mine.txt:2: the sum '(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 1...' has a bracket that is not closed at "
            "character 588891");
  EXPECT_EQ(
      why("s0 F0 B0\nsum " + numbers + ")"),
      "mine.txt:2: schedule 'mine.txt' cannot add its gradients: the sum (0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 1... "
      "counts microbatch 1 of 1, as its number 2 from the left");
  EXPECT_EQ(
      why("s0 F0-99999 B0-99999" + std::string(300'000, ' ') + "\nsum " + numbers + " 7)"),
      "mine.txt:2: schedule 'mine.txt' cannot add its gradients: the sum (0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 1... "
      "counts microbatch 7 twice, as its number 100001 from the left");
  EXPECT_EQ(why("s0 F0 B0\nsum " + repeated("(0 ", 200'000) + "x"),
            "mine.txt:2: the sum '(0 (0 (0 (0 (0 (0 (0 (0 (0 (0 (0 (0 (...' has neither a microbatch nor a bracket at "
            "character 600001");
}

/// As many as fit of everything that takes memory or could take a time that grows faster than the text.
TEST(TextBounds, ManyOfAKind) {
  constexpr int kTimes = 100'000;
  const std::string lists = "s0 F0 B0\n";
  EXPECT_TRUE(why(repeated("s0\n", kTimes)).ends_with("needs at least 1 stage and 1 microbatch, not 0 and 0"));
  EXPECT_EQ(why(lists + repeated("s0\n", kTimes)), "accepted");
  EXPECT_EQ(why(lists + repeated("\n", kTimes)), "accepted");
  EXPECT_EQ(why(lists + repeated("schedule x\n", kTimes)), "accepted");
  EXPECT_EQ(why(lists + repeated("sum 0\n", kTimes)), "accepted");
  EXPECT_EQ(why(lists + "rings" + repeated(" 1,1", kTimes)),
            "mine.txt:2: schedule 'mine.txt' has 1 stages, and rings are given for 100000");
  EXPECT_EQ(why(lists + repeated("tied w\n", kTimes)),
            "mine.txt:2: schedule 'mine.txt' has a tied weight 'w' without stages");
  EXPECT_EQ(why(lists + repeated("tied w 0\n", kTimes)),
            "mine.txt:3: schedule 'mine.txt' counts the gradient of the tied weight 'w' twice: it is listed twice");
  std::string word = "s0 ", list = "d0", ties = "tied w";
  for (int k = 0; k < kTimes; ++k) {
    const std::string number = std::to_string(k);
    word += "F" + number + "B" + number;
    list += " F" + number + ".0 B" + number + ".0";
    ties += " " + number;
  }
  EXPECT_EQ(why(word), "accepted") << "one word";
  EXPECT_EQ(why(word + "U"), "accepted");
  EXPECT_TRUE(why(list).find("cannot finish") != std::string::npos);
  EXPECT_TRUE(why("free\n" + list + "\n" + ties + "\n") == "accepted");
}

/// Brackets on the right are as deep as the sum is long: as text and back in a time that grows with it.
TEST(TextBounds, DeepSums) {
  constexpr int kNumbers = 300'000;
  std::string text;
  for (int k = 0; k < kNumbers - 1; ++k) text += "(" + std::to_string(k) + " ";
  text += std::to_string(kNumbers - 1) + std::string(kNumbers - 1, ')');
  SumTree tree;
  EXPECT_LE(bytes_for([&] { tree = sum_tree(text); }), 20 * text.size());
  EXPECT_LE(bytes_for([&] { EXPECT_EQ(to_text(tree), text); }), 20 * text.size());
  EXPECT_NO_THROW(check(tree, kNumbers));
}

/// What to_text writes is read, whatever its size; and within the bound.
TEST(TextBounds, RingsOfAnySize) {
  const Schedule rings = make_schedule("dynamic:20000000,20000000", 4, 8);
  EXPECT_EQ(parse_schedule(to_text(rings, true)), rings);
}

TEST(TextBounds, LargeSchedulesAreWrittenAndRead) {
  Schedule tied = with_updates(make_schedule("gpipe", 64, 1000));
  tied.tied = {{"0.weight", {0, 63}}};
  Schedule many = with_updates(make_schedule("gpipe", 64, 512));
  for (int w = 0; w < 200; ++w) many.tied.push_back({std::to_string(w) + ".weight", {0, 63}});
  for (const Schedule& schedule :
       {make_schedule("interleaved:2", 128, 1024), make_schedule("1f1b", 64, 1000), make_schedule("zbv", 32, 512),
        with_recompute(make_schedule("gpipe", 64, 1000), std::vector<bool>(64, true)),
        make_schedule("gpipe", 4, 100'000), make_schedule("dynamic", 64, 2000), make_schedule("gpipe", 100'000, 1),
        tied, many}) {
    SCOPED_TRACE(describe(schedule));
    std::string text = to_text(schedule, true);
    EXPECT_TRUE(parse_schedule(text) == schedule);
    EXPECT_EQ(why(text), "accepted");
  }
  // In ranges where these are few enough, and in no ranges beyond.
  EXPECT_LT(to_text(make_schedule("gpipe", 64, 1000)).size(), 2000U);
  EXPECT_EQ(to_text(make_schedule("gpipe", 64, 2000)).find('-'), std::string::npos);
}

}  // namespace
}  // namespace sluice::parallel
