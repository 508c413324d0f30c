// Programs for the rules 7 to 9 of docs/semantics.md: versions, writes, overlap.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "semantics_programs.h"

namespace sluice::testing {
namespace {

using ::testing::Each;

// ---- 7: array, version, buffer

TEST(Semantics07Versions, AWriteToAViewLeavesTheSavedValue) {
  on_each_engine([](Engine&) {
    const NDArray a = from({1.0F, 2.0F, 3.0F, 4.0F}, {2, 2}).with_grad();
    NDArray h = a * 3;
    const NDArray loss = sum(h * h);
    Borrow held = hold(h);  // so that the write is pushed while the reader is in flight
    NDArray column = h.transpose()(1);
    column.fill(0);
    held.release();
    EXPECT_EQ(floats(h), (Floats{3, 0, 9, 0}));
    loss.backward();
    EXPECT_EQ(floats(a.grad()), (Floats{18, 36, 54, 72}));  // 18 a
  });
}

TEST(Semantics07Versions, EachSnapshotKeepsTheValueOfItsTime) {
  on_each_engine([](Engine&) {
    NDArray x = zeros({3});
    std::vector<NDArray> kept;
    for (int i = 0; i < 20; ++i) {
      kept.push_back(x.detach());
      x += i;
    }
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(floats(kept[static_cast<std::size_t>(i)]), Floats(3, static_cast<float>(i * (i - 1) / 2))) << i;
    }
    EXPECT_EQ(floats(x), Floats(3, 190.0F));
  });
}

TEST(Semantics07Versions, AnOlderViewSeesTheNewVersion) {
  on_each_engine([](Engine&) {
    NDArray x = from({1.0F, 2.0F, 3.0F, 4.0F}, {2, 2});
    const NDArray column = x.transpose()(1), backwards = x.flatten().flip();
    const NDArray kept = x.detach(), kept_column = kept(all, 1);
    x *= 10;  // the snapshot holds the value: x and its views move to another buffer together
    EXPECT_EQ(floats(column), (Floats{20, 40}));
    EXPECT_EQ(floats(backwards), (Floats{40, 30, 20, 10}));
    EXPECT_EQ(floats(kept_column), (Floats{2, 4}));
  });
}

TEST(Semantics07Versions, AReaderThatHasNotRunYetSeesTheValueOfItsPush) {
  for (const bool snapshot : {false, true}) {
    on_each_engine([snapshot](Engine&) {
      const NDArray x = from({1.0F, 2.0F}, {2});
      Late late({2}, 5);
      const NDArray y = x + late.array;
      const NDArray kept = snapshot ? x.detach() : NDArray();
      x.fill(9);
      const NDArray z = x + late.array;
      late.held.release();
      EXPECT_EQ(floats(y), (Floats{6, 7}));
      EXPECT_EQ(floats(z), (Floats{14, 14}));
    });
  }
}

TEST(Semantics07Versions, ABodyOfOnesOwnSeesTheValueOfItsPush) {
  on_each_engine([](Engine&) {
    const NDArray x = from({1.0F, 2.0F}, {2}), y = zeros({2});
    Late late({2}, 1);
    push_op(
        [](ArrayContext& c) {
          for (int i = 0; i < 2; ++i) {
            c.output().as<float>()[i] = c.input(0).as<float>()[i] + c.input(1).as<float>()[i];
          }
        },
        {x, late.array}, {y});
    const NDArray kept = x.detach();
    x.fill(100);
    late.held.release();
    EXPECT_EQ(floats(y), (Floats{2, 3}));
    EXPECT_EQ(floats(kept), (Floats{1, 2}));
  });
}

TEST(Semantics07Versions, AWriteToASnapshotLeavesTheArray) {
  on_each_engine([](Engine&) {
    NDArray x = from({1.0F, 2.0F, 3.0F}, {3});
    NDArray first = x.detach(), second = first.detach();
    first(0) = 10;
    second(slice_from(1)) *= 2;
    x(2) = 30;
    EXPECT_EQ(floats(x), (Floats{1, 2, 30}));
    EXPECT_EQ(floats(first), (Floats{10, 2, 3}));
    EXPECT_EQ(floats(second), (Floats{1, 4, 6}));
  });
}

TEST(Semantics07Versions, ALoopInPlaceHasTheGradientOfTheProduct) {
  on_each_engine([](Engine&) {
    const NDArray a = from({1.0F, 2.0F}, {2}).with_grad(), w = from({3.0F}, {1}).with_grad();
    NDArray h = a * w;
    for (int i = 0; i < 3; ++i) h *= w;  // each product keeps h as it was before
    sum(h).backward();
    EXPECT_EQ(floats(h), (Floats{81, 162}));
    EXPECT_EQ(floats(a.grad()), (Floats{81, 81}));  // w^4
    EXPECT_EQ(floats(w.grad()), Floats{324});       // 4 w^3 (a0 + a1)
  });
}

// ---- 8: write needs all of the buffer

TEST(Semantics08Writes, AnOpThatOverwritesAColumnKeepsTheRest) {
  on_each_engine([](Engine&) {
    const NDArray x = from({1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F}, {2, 3});
    const NDArray kept = x.detach();
    push_value({x(all, 1)}, 7);  // a write of all of the view is an update of the array
    EXPECT_EQ(floats(x), (Floats{1, 7, 3, 4, 7, 6}));
    EXPECT_EQ(floats(kept), (Floats{1, 2, 3, 4, 5, 6}));
  });
}

TEST(Semantics08Writes, AReversedViewOfAllIsAWholeWriteAndTwoHalvesAreNot) {
  on_each_engine([](Engine&) {
    const NDArray x = failed({4});
    x(slice(0, 2)).fill(1);
    x(slice(2, 4)).fill(1);
    EXPECT_THROW(x.wait(), Error);
    x(reversed()).assign(from({1.0F, 2.0F, 3.0F, 4.0F}, {4}));
    EXPECT_EQ(floats(x), (Floats{4, 3, 2, 1}));
  });
}

TEST(Semantics08Writes, AWholeViewOfASliceIsNoWholeWrite) {
  on_each_engine([](Engine&) {
    const NDArray x = failed({2, 2});
    NDArray row = x(0);
    row.reshape({2, 1}).fill(5);  // all of the handle, half of the buffer
    EXPECT_THROW(row.wait(), Error);
    EXPECT_THROW(x(1).wait(), Error);
    x.fill(5);
    EXPECT_EQ(floats(row), (Floats{5, 5}));
  });
}

// ---- 9: overlap inside one op

TEST(Semantics09Overlap, AShiftedSumReadsFirst) {
  on_each_engine([](Engine&) {
    constexpr std::int64_t kCount = 20'000;  // long enough for loops of several threads
    NDArray x = ones({kCount}), y = ones({kCount});
    x(slice_from(1)) += x(slice(0, kCount - 1));
    y(slice(0, kCount - 1)) += y(slice_from(1));
    Floats wanted(kCount, 2);
    wanted[0] = 1;
    EXPECT_EQ(floats(x), wanted);
    EXPECT_EQ(floats(y.flip()), wanted);
  });
}

TEST(Semantics09Overlap, ATransposeOntoItself) {
  on_each_engine([](Engine&) {
    NDArray m = arange(0, 100 * 100, 1, DType::f32).reshape({100, 100});
    const NDArray sums = m + m.transpose();  // of what the next line changes
    m += m.transpose();
    EXPECT_EQ(floats(m), floats(sums));
    EXPECT_EQ(m(3, 7).item<float>(), 307.0F + 703.0F);
    EXPECT_EQ(m(7, 3).item<float>(), 307.0F + 703.0F);
    m.assign(arange(0, 100 * 100, 1, DType::f32).reshape({100, 100}).transpose());
    m.assign(m.transpose());
    Floats wanted(100 * 100);
    std::iota(wanted.begin(), wanted.end(), 0.0F);
    EXPECT_EQ(floats(m), wanted);
  });
}

TEST(Semantics09Overlap, AnArrayPlusItsReversalIsConstant) {
  on_each_engine([](Engine&) {
    NDArray x = arange(0, 1001, 1, DType::f32);
    x += x(reversed());
    EXPECT_THAT(floats(x), Each(1000.0F));
  });
}

TEST(Semantics09Overlap, AnArrayOverItsOwnElement) {
  on_each_engine([](Engine&) {
    NDArray x = from({2.0F, 4.0F, 6.0F}, {3});
    x /= x(0);
    EXPECT_EQ(floats(x), (Floats{1, 2, 3}));
    NDArray m = from({1.0F, 2.0F, 3.0F, 4.0F}, {2, 2});
    m += m(0);  // row 0 changes, and is added to row 1 as it was
    EXPECT_EQ(floats(m), (Floats{2, 4, 4, 6}));
  });
}

TEST(Semantics09Overlap, ACopyBetweenOverlappingRowsWithGradients) {
  on_each_engine([](Engine&) {
    const NDArray a = from({1.0F, 2.0F, 3.0F}, {3}).with_grad();
    NDArray x = a * 1;
    x(slice_from(1)) = x(slice(0, 2));  // (a0, a0, a1)
    sum(x * from({1.0F, 10.0F, 100.0F}, {3})).backward();
    EXPECT_EQ(floats(x), (Floats{1, 1, 2}));
    EXPECT_EQ(floats(a.grad()), (Floats{11, 100, 0}));
  });
}

TEST(Semantics09Overlap, ARowOfManyTensorsReadsThemAllFirst) {
  on_each_engine([](Engine&) {
    NDArray x = from({1.0F, 2.0F, 4.0F}, {3});
    accumulate(x, {x, x});  // the terms are x as it was
    EXPECT_EQ(floats(x), (Floats{3, 6, 12}));
    accumulate(x, {x(reversed()), x});
    EXPECT_EQ(floats(x), (Floats{18, 18, 27}));
    NDArray w = from({1.0F, 2.0F, 4.0F}, {3}), v = zeros({3});
    sgd_step(w, v, w(reversed()), 1, 0.5, 0);
    EXPECT_EQ(floats(w), (Floats{-3, 0, 3}));
    EXPECT_EQ(floats(v), (Floats{4, 2, 1}));
    sgd_step(w, v, v, 1, 0.5, 0);  // v = 0.5 v + v
    EXPECT_EQ(floats(v), (Floats{6, 3, 1.5}));
    EXPECT_EQ(floats(w), (Floats{-9, -3, 1.5}));
  });
}

TEST(Semantics09Overlap, RowsOfAnArrayPutIntoItself) {
  on_each_engine([](Engine&) {
    NDArray x = from({1.0F, 2.0F, 3.0F}, {3});
    const NDArray from_rows = from<std::int64_t>({0, 1, 2}, {3}), to_rows = from<std::int64_t>({1, 2, 0}, {3});
    const NDArray same = from<std::int64_t>({0, 0, 2}, {3});
    x(to_rows) = x(from_rows);
    EXPECT_EQ(floats(x), (Floats{3, 1, 2}));
    x(to_rows) = x;
    EXPECT_EQ(floats(x), (Floats{2, 3, 1}));
    x(same) += x;  // element 0 gets two of the old elements
    EXPECT_EQ(floats(x), (Floats{7, 3, 2}));
  });
}

TEST(Semantics09Overlap, OutputsThatOverlapThrowAndChangeNothing) {
  on_each_engine([](Engine&) {
    const NDArray x = arange(0, 4, 1, DType::f32);
    EXPECT_THROW(x.unfold(0, 2, 1).fill(9), ArrayError);
    EXPECT_THROW(x.unsqueeze(0).broadcast_to({3, 4}).fill(9), ArrayError);
    EXPECT_THROW(push_value({x(slice(0, 3)), x(slice(2, 4))}, 9), ArrayError);
    EXPECT_EQ(floats(x), (Floats{0, 1, 2, 3}));
  });
}

}  // namespace
}  // namespace sluice::testing
