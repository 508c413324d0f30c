// Trees of additions: as text, checked, and how many sums wait.
#include "sluice/schedule/sum_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <stdexcept>

namespace sluice::parallel {
namespace {

std::string why(const auto& f) {
  try {
    f();
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
  return "accepted";
}

int peak(const SumTree& tree, const std::vector<int>& arrival) {
  PartialSums sums(tree, static_cast<int>(arrival.size()));
  int most = 0;
  for (const int k : arrival) most = std::max(most, sums.arrive(k));
  return most;
}

TEST(SumTree, AsText) {
  EXPECT_EQ(to_text(sum_in_order(4)), "(0 1 2 3)");
  EXPECT_EQ(to_text(sum_by_halves(4)), "((0 1) (2 3))");
  EXPECT_EQ(to_text(sum_by_halves(5)), "((0 1 2) (3 4))");
  EXPECT_EQ(to_text(sum_in_order(1)), "0");
  for (const char* text : {"0", "(0 1)", "((0 1) (2 3))", "((0 1) (2 3) 4)", "(0 (1 (2 3)))", "(3 2 1 0)"}) {
    EXPECT_EQ(to_text(sum_tree(text)), text);
  }
  EXPECT_EQ(to_text(sum_tree(" ( (0 1)  2 )")), "(0 1 2)") << "brackets on the left change nothing";
  EXPECT_TRUE(is_in_order(sum_tree("((0 1) 2)")));
  EXPECT_TRUE(is_in_order({}));
  EXPECT_FALSE(is_in_order(sum_tree("(0 (1 2))")));
  EXPECT_FALSE(is_in_order(sum_tree("(1 0)")));
}

TEST(SumTree, WhatIsNone) {
  const auto text = [](const char* t) { return why([&] { sum_tree(t); }); };
  EXPECT_EQ(text("(0 1"), "the sum '(0 1' has a bracket that is not closed at character 5");
  EXPECT_EQ(text("(0 x)"), "the sum '(0 x)' has neither a microbatch nor a bracket at character 4");
  EXPECT_EQ(text("0 1"), "the sum '0 1' has more after its end at character 3");
  EXPECT_EQ(text("()"), "the sum '()' has brackets with nothing in them at character 2");
  EXPECT_EQ(text("(-1)"), "the sum '(-1)' has neither a microbatch nor a bracket at character 2");
  EXPECT_EQ(text("(99999999999)"), "the sum '(99999999999)' has neither a microbatch nor a bracket at character 2");
  EXPECT_NE(text(std::string(100'000, '(').c_str()), "accepted");
  const auto checked = [](const SumTree& t, int m) { return why([&] { check(t, m); }); };
  EXPECT_EQ(checked(sum_tree("(0 1)"), 3), "the sum (0 1) never counts microbatch 2");
  EXPECT_EQ(checked(sum_tree("(0 2)"), 2), "the sum (0 2) counts microbatch 2 of 2");
  EXPECT_EQ(checked({{0, 1}}, 2), "the sum (no tree) is 2 sums");
  EXPECT_EQ(checked({{0, SumTree::kAdd}}, 1), "the sum (no tree) adds what is not there");
  EXPECT_EQ(checked({}, 7), "accepted");
}

TEST(SumTree, HowManySumsWait) {
  std::vector<int> up(8);
  std::iota(up.begin(), up.end(), 0);
  std::vector<int> down(up.rbegin(), up.rend());
  EXPECT_EQ(peak({}, up), 1);
  EXPECT_EQ(peak({}, down), 7);
  EXPECT_EQ(peak(sum_by_halves(8), up), 3) << "one of each height";
  EXPECT_EQ(peak(sum_by_halves(8), down), 3);
  EXPECT_EQ(peak(sum_in_order(1), {0}), 1);
  // Whatever the order, one sum is left.
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::ranges::shuffle(up, random);
    PartialSums sums(sum_by_halves(8), 8);
    int left = 0;
    for (const int k : up) left = sums.arrive(k);
    EXPECT_EQ(left, 1);
  }
}

}  // namespace
}  // namespace sluice::parallel
