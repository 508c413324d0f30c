// GradientUndo: leaves have the gradients of before.
#include <gtest/gtest.h>

#include "sluice/autograd/autograd.h"
#include "sluice/autograd/gradient_undo.h"
#include "sluice/autograd/kept_memory.h"
#include "sluice/operators/operators.h"

namespace sluice {
namespace {

NDArray leaf_of(float value) { return full({2}, value).with_grad(); }
void add(const NDArray& leaf, float slope) { sum(leaf * slope).backward(); }
float gradient(const NDArray& leaf) { return leaf.grad().defined() ? leaf.grad().to_vector<float>().at(0) : 0; }

TEST(GradientUndo, GivesBackWhatWasThere) {
  const NDArray none = leaf_of(1), some = leaf_of(1), given = leaf_of(1), dropped = leaf_of(1), untouched = leaf_of(1);
  for (const NDArray& x : {some, given, dropped, untouched}) add(x, 2);
  {
    const GradientUndo undo;
    for (const NDArray& x : {none, some, given, dropped}) add(x, 5);
    add(some, 7);
    given.set_grad(full({2}, 11));
    dropped.zero_grad();
    EXPECT_EQ(gradient(none), 5);
    EXPECT_EQ(gradient(some), 14);
    EXPECT_EQ(gradient(given), 11);
  }
  EXPECT_FALSE(none.grad().defined());
  for (const NDArray& x : {some, given, dropped, untouched}) EXPECT_EQ(gradient(x), 2);
  add(some, 3);
  EXPECT_EQ(gradient(some), 5);
}

TEST(GradientUndo, ForgetsWhatStays) {
  const NDArray one = leaf_of(1), other = leaf_of(1), view = one.narrow(0, 0, 1);
  {
    GradientUndo undo;
    undo.forget(NDArray());
    undo.forget(one);  // not noted yet
    add(one, 2);
    add(other, 2);
    undo.forget(view);
    undo.forget(one + 1);  // no leaf
  }
  EXPECT_EQ(gradient(one), 2);
  EXPECT_FALSE(other.grad().defined());
  {
    GradientUndo undo;
    add(one, 2);
    add(other, 2);
    undo.forget();
  }
  EXPECT_EQ(gradient(one), 4);
  EXPECT_EQ(gradient(other), 2);
}

TEST(GradientUndo, OfTwoTheInnerOneGoesFirst) {
  const NDArray one = leaf_of(1), other = leaf_of(1);
  {
    const GradientUndo outer;
    add(one, 2);
    {
      const GradientUndo inner;
      add(one, 3);
      add(other, 3);
      const NDArray fresh = leaf_of(1);
      add(fresh, 3);
      EXPECT_EQ(gradient(fresh), 3);
    }
    EXPECT_EQ(gradient(one), 2);
    EXPECT_FALSE(other.grad().defined());
    {
      GradientUndo inner;
      add(other, 4);
      inner.forget();
    }
    EXPECT_EQ(gradient(other), 4);
  }
  EXPECT_FALSE(one.grad().defined());
  EXPECT_FALSE(other.grad().defined());
}

/// What was there is not copied, and whoever holds it sees what it was.
TEST(GradientUndo, KeepsTheMemoryThatWasThere) {
  const NDArray x = leaf_of(1);
  add(x, 2);
  const KeptMemory before = memory_of(x.grad());
  {
    const GradientUndo undo;
    add(x, 3);
    EXPECT_NE(memory_of(x.grad()).id, before.id);
  }
  EXPECT_EQ(memory_of(x.grad()).id, before.id);
  EXPECT_EQ(gradient(x), 2);
}

/// A dry run gives back what it changes, and tells nobody.
TEST(GradientUndo, IsNotOfDryRuns) {
  const NDArray x = leaf_of(1);
  add(x, 2);
  GradientUndo undo;
  (void)shapes_of([&] {
    sum(x * 3).backward();
    return x.grad();
  });
  EXPECT_EQ(gradient(x), 2);
  undo.forget();
}

}  // namespace
}  // namespace sluice
