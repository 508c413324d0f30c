// The rules of docs/semantics.md about values: 7 to 12, and 14, 15, 18 as far as arrays go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "ndarray_test_support.h"

namespace sluice::testing {
namespace {

using Floats = std::vector<float>;

// ---- 7: array, version, buffer

TEST(Rule7, TheProgramThatOthersRefuseIsRight) {
  for (EngineMode mode : {EngineMode::threaded, EngineMode::serial}) {
    TestEngine test(2, 1, mode);
    const NDArray a = from({0.0F, 1.0F, 2.0F, 3.0F}, {2, 2}).with_grad();
    NDArray x = exp(a);
    const NDArray l = sum(x * x);
    NDArray v = x(0);
    v.fill(0);
    const Floats now = x.to_vector<float>();
    EXPECT_EQ(now[0], 0);
    EXPECT_EQ(now[1], 0);
    EXPECT_FLOAT_EQ(now[2], std::exp(2.0F));
    l.backward();
    const Floats g = a.grad().to_vector<float>();
    for (std::size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(g[i], 2 * std::exp(2.0F * static_cast<float>(i))) << i;
  }
}

TEST(Rule7, ASnapshotKeepsItsValueForAllViews) {
  TestEngine test(2);
  NDArray x = from({1.0F, 2.0F, 3.0F, 4.0F}, {2, 2});
  const NDArray view = x(all, 1), kept = x.detach();
  x += 10;
  EXPECT_EQ(x.to_vector<float>(), (Floats{11, 12, 13, 14}));
  EXPECT_EQ(view.to_vector<float>(), (Floats{12, 14}));  // the view follows the array
  EXPECT_EQ(kept.to_vector<float>(), (Floats{1, 2, 3, 4}));
}

TEST(Rule7, AWriteCopiesOnlyWhereTheValueIsHeld) {
  TestEngine test(2);
  NDArray x = ones({64});
  x.wait();
  const auto buffer_of = [](const NDArray& a) { return &a.array()->version()->buffer(); };
  const Buffer* before = buffer_of(x);
  const Gate gate(x);  // a reader in flight causes waiting, not a copy
  x += 1;
  EXPECT_EQ(buffer_of(x), before);
  {
    const NDArray kept = x.detach();
    x += 1;
    EXPECT_NE(buffer_of(x), before);
  }
  before = buffer_of(x);
  x += 1;
  EXPECT_EQ(buffer_of(x), before);
}

TEST(Rule7, ABodyWorksOnTheVersionsResolvedForIt) {
  TestEngine test(2);
  NDArray x = ones({4});
  Gate gate(x);
  NDArray y = empty({4});
  push_op(test::copy_body, {x}, {y});
  const NDArray kept = x.detach();
  x.fill(7);
  gate.open();
  EXPECT_EQ(y.to_vector<float>(), Floats(4, 1.0F));
}

TEST(Rule7, TwoThreadsPushingOnSharedArraysSeeWholeOperations) {
  TestEngine test(2);
  const NDArray x = zeros({1000}), y = zeros({1000});
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 1; i <= 300; ++i) {
      const NDArray kept = x.detach();  // so that writes move to new versions
      const float value = static_cast<float>(i);
      push_value({x, y}, value);
    }
    stop = true;
  });
  while (!stop) {
    const NDArray difference = x - y;
    EXPECT_EQ(sum(abs(difference)).item<float>(), 0);
  }
  writer.join();
}

TEST(Rule7, WritesOfTwoThreadsToAHeldValueAreAllThere) {
  TestEngine test(2);
  NDArray x = zeros({1000});
  std::vector<std::thread> writers;
  for (int t = 0; t < 2; ++t) {
    writers.emplace_back([&x] {
      NDArray mine = x;
      for (int i = 0; i < 300; ++i) {
        const NDArray kept = mine.detach();  // the write moves to a new version, with the old elements
        mine += 1;
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(-max(-x).item<float>(), 600);
  EXPECT_EQ(max(x).item<float>(), 600);
}

// ---- 8: write needs all of the buffer

TEST(Rule8, ASliceAssignmentKeepsTheRest) {
  TestEngine test(2);
  NDArray x = arange(0, 6, 1, DType::f32);
  const NDArray kept = x.detach();
  x(slice(1, 3)) = from({-1.0F, -2.0F}, {2});
  EXPECT_EQ(x.to_vector<float>(), (Floats{0, -1, -2, 3, 4, 5}));
  EXPECT_EQ(kept.to_vector<float>(), (Floats{0, 1, 2, 3, 4, 5}));
}

TEST(Rule8, AWriteOfAllHealsAndASliceDoesNot) {
  TestEngine test(2);
  NDArray x = ones({4});
  poison(x);
  EXPECT_THROW(x.wait(), Error);
  x(slice(0, 2)) = 3;
  EXPECT_THROW(x.wait(), Error);
  x.fill(3);
  EXPECT_EQ(x.to_vector<float>(), Floats(4, 3.0F));
  poison(x);
  x.reshape({2, 2}).transpose().assign(from({1.0F, 2.0F, 3.0F, 4.0F}, {2, 2}));  // any view of all of it
  EXPECT_EQ(x.to_vector<float>(), (Floats{1, 3, 2, 4}));
}

// ---- 9: overlap

TEST(Rule9, InputsAreReadBeforeOutputsAreWritten) {
  TestEngine test(2);
  NDArray x = arange(0, 6, 1, DType::f32);
  x(slice_from(1)) += x(slice(0, 5));
  EXPECT_EQ(x.to_vector<float>(), (Floats{0, 1, 3, 5, 7, 9}));
  x(slice(0, 5)).assign(x(slice_from(1)));
  EXPECT_EQ(x.to_vector<float>(), (Floats{1, 3, 5, 7, 9, 9}));
  NDArray m = arange(0, 9, 1, DType::f32).reshape({3, 3});
  m.assign(m.transpose());
  EXPECT_EQ(m.to_vector<float>(), (Floats{0, 3, 6, 1, 4, 7, 2, 5, 8}));
  m += m;  // coincides: in place
  EXPECT_EQ(m.to_vector<float>(), (Floats{0, 6, 12, 2, 8, 14, 4, 10, 16}));
  m.assign(matmul(m, m));
  m(0).assign(m(all, 0));
}

/// An op of the program's own may write the window that it reads, in another order.
TEST(Rule9, AnOpThatWritesItsInputReadsItAsItWas) {
  TestEngine test(2);
  const NDArray x = arange(0, 4, 1, DType::f32).to(cpu(0));
  push_op(
      [](ArrayContext& c) {
        for (std::int64_t i = 0; i < 4; ++i) c.output().as<float>()[i] = c.input(0).as<float>()[3 - i];
      },
      {x}, {x});
  EXPECT_EQ(x.to_vector<float>(), (Floats{3, 2, 1, 0}));
}

TEST(Rule9, OutputsThatOverlapThrowAtTheCall) {
  TestEngine test(2);
  const NDArray x = zeros({4}), row = zeros({1, 4});
  EXPECT_THROW(row.broadcast_to({3, 4}).fill(1), ArrayError);
  EXPECT_THROW(x.strided({3, 2}, {1, 1}, 0).fill(1), ArrayError);
  EXPECT_THROW(push_op([](ArrayContext&) {}, {}, {x(slice(0, 3)), x(slice(2, 4))}), ArrayError);
  EXPECT_NO_THROW(push_op([](ArrayContext&) {}, {}, {x(slice(0, 2)), x(slice(2, 4))}));
}

// ---- 10: parts

TEST(Rule10, PartsRunAtOnceAndTheWholeWaitsForAll) {
  TestEngine test(2);
  const std::int64_t sizes[] = {2, 3};
  const Partitioned p = partitioned(sizes, {2}, DType::f32, test::device(0));
  // The first part is held back; the second goes on.
  push_value({p.parts[0]}, 1);
  Gate held(p.parts[0]);
  p.parts[0].fill(2);
  p.parts[1].fill(5);
  EXPECT_EQ(p.parts[1].to_vector<float>(), Floats(6, 5.0F));
  held.open();
  EXPECT_EQ(p.whole.to_vector<float>(), (Floats{2, 2, 2, 2, 5, 5, 5, 5, 5, 5}));
  NDArray whole = p.whole;
  whole *= 2;
  EXPECT_EQ(p.parts[0].to_vector<float>(), Floats(4, 4.0F));
}

TEST(Rule10, TheEngineWaitsForAllOfTheWholeAndTellsTheErrorOfAny) {
  TestEngine test(2);
  const std::int64_t sizes[] = {2, 2};
  const Partitioned p = partitioned(sizes, {}, DType::f32, test::device(0));
  for (const NDArray& part : p.parts) part.fill(1);
  Engine& engine = p.whole.engine();
  engine.wait(p.whole);
  {
    const Gate held(p.parts[1]);
    p.parts[1].fill(2);
    EXPECT_FALSE(engine.wait_for(p.whole, std::chrono::milliseconds(1)));
    EXPECT_TRUE(engine.wait_for(p.parts[0], std::chrono::hours(1)));
  }
  EXPECT_TRUE(engine.wait_for(p.whole, std::chrono::hours(1)));
  EXPECT_EQ(engine.error(p.whole), nullptr);
  poison(p.parts[1]);
  EXPECT_THROW(engine.wait(p.whole), Error);
  EXPECT_NE(engine.error(p.whole), nullptr);
  EXPECT_EQ(engine.error(p.parts[0]), nullptr);
}

TEST(Rule10, AHeldValueOfAPartitionedBufferIsCopiedAway) {
  TestEngine test(2);
  const std::int64_t sizes[] = {2, 2};
  const Partitioned p = partitioned(sizes, {}, DType::f32, test::device(0));
  p.whole.assign(arange(0, 4, 1, DType::f32));
  const NDArray kept_whole = p.whole.detach(), kept_part = p.parts[1].detach();
  const Buffer* buffer = &p.whole.array()->version()->buffer();
  p.parts[1].fill(9);
  EXPECT_EQ(&p.parts[1].array()->version()->buffer(), buffer);  // never moves
  EXPECT_EQ(p.whole.to_vector<float>(), (Floats{0, 1, 9, 9}));
  EXPECT_EQ(kept_whole.to_vector<float>(), (Floats{0, 1, 2, 3}));
  EXPECT_EQ(kept_part.to_vector<float>(), (Floats{2, 3}));
  // And with a tape.
  const NDArray w = p.parts[0].with_grad();
  const NDArray l = sum(square(w));
  {
    const NoGrad scope;
    w.fill(100);
  }
  l.backward();
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{0, 2}));
}

/// The only value that is held lies behind another output of the op.
TEST(Rule10, AHeldPartBehindAnotherOutputIsCopiedAway) {
  TestEngine test(2);
  const std::int64_t sizes[] = {2, 2};
  const Partitioned p = partitioned(sizes, {}, DType::f32, test::device(0));
  p.whole.assign(arange(0, 4, 1, DType::f32));
  const NDArray kept = p.parts[1].detach();
  push_value(p.parts, 9);
  EXPECT_EQ(p.whole.to_vector<float>(), Floats(4, 9.0F));
  EXPECT_EQ(kept.to_vector<float>(), (Floats{2, 3}));
}

// ---- 11: assignment

TEST(Rule11, AViewWritesThroughAndANameRebinds) {
  TestEngine test(2);
  NDArray x = zeros({2, 2});
  const NDArray y = ones({2});
  x(0) = y;
  EXPECT_EQ(x.to_vector<float>(), (Floats{1, 1, 0, 0}));
  x(1, 1) = 5;
  EXPECT_EQ(x.to_vector<float>(), (Floats{1, 1, 0, 5}));
  NDArray v = x(0);
  v = y;  // names y now
  v.fill(8);
  EXPECT_EQ(x.to_vector<float>(), (Floats{1, 1, 0, 5}));
  EXPECT_EQ(y.to_vector<float>(), (Floats{8, 8}));
  NDArray u = x(1);
  u.assign(y);
  EXPECT_EQ(x.to_vector<float>(), (Floats{1, 1, 8, 8}));
  x(all, 0) = x(all, 1) + 1;
  EXPECT_EQ(x.to_vector<float>(), (Floats{2, 1, 9, 8}));
}

TEST(Rule11, LeavesAreWrittenInNoGradOnly) {
  TestEngine test(2);
  NDArray w = ones({2}).with_grad();
  EXPECT_THROW(w += 1, ArrayError);
  EXPECT_THROW(w(0) = 3, ArrayError);
  EXPECT_THROW(w.fill(0), ArrayError);
  {
    const NoGrad scope;
    w += 1;
  }
  EXPECT_EQ(w.to_vector<float>(), (Floats{2, 2}));
  EXPECT_TRUE(w.requires_grad());
}

// ---- 12: host access

TEST(Rule12, ABorrowHoldsTheArray) {
  TestEngine test(2);
  const DeviceScope scope(cpu(0));
  NDArray x = zeros({4});
  {
    auto elements = x.borrow<float>();
    x += 1;  // waits for the borrow
    std::iota(elements.begin(), elements.end(), 10.0F);
    EXPECT_FALSE(test.engine.wait_for(x, std::chrono::milliseconds(20)));
  }
  EXPECT_EQ(x.to_vector<float>(), (Floats{11, 12, 13, 14}));
  {
    const auto one = x.borrow<const float>(), two = x.borrow<const float>();  // readers share
    EXPECT_EQ(one[0], two[0]);
    EXPECT_EQ((x + 0).to_vector<float>()[3], 14);
  }
  const NDArray kept = x.detach();
  x.borrow<float>()[0] = 0;
  EXPECT_EQ(kept.to_vector<float>()[0], 11);
  EXPECT_EQ(x.to_vector<float>()[0], 0);
  EXPECT_THROW(x.borrow<double>(), ArrayError);
  EXPECT_THROW(x(slice(0, 4, 2)).borrow<float>(), ArrayError);
}

TEST(Rule12, WaitMeansReadableNow) {
  TestEngine test(2);
  std::atomic<bool> ran{false};
  const NDArray x = zeros({1});
  push_op(
      [&ran](ArrayContext& c) {
        if (c.device().kind == DeviceKind::gpu) {
          c.provider().fill(c.output().data, std::byte{0x3f}, sizeof(float), &c.stream());
        } else {
          *c.output().as<std::uint32_t>() = 0x3f3f3f3f;
        }
        ran = true;
      },
      {}, {x});
  x.wait();
  EXPECT_TRUE(ran);
  EXPECT_EQ(x.item<float>(), std::bit_cast<float>(0x3f3f3f3f));
}

// ---- 14, 15: errors

TEST(Rule14, PoisonSpreadsThroughOperatorsWithItsRoot) {
  TestEngine test(2);
  const NDArray x = ones({2});
  poison(x);
  const NDArray y = sum(x * 2);
  for (int i = 0; i < 2; ++i) {
    try {
      y.item<float>();
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.root().operation, "spoil");
      EXPECT_THAT(e.what(), ::testing::HasSubstr("spoilt"));
    }
  }
  EXPECT_THROW(x.to_string(), Error);
}

TEST(Rule14, IntactPoisonRecoversAndTornDoesNot) {
  TestEngine test(2);
  NDArray w = ones({2}), bad = ones({2});
  poison(bad);
  EXPECT_THROW(bad.wait(), Error);  // what a device finds late may meet a write under way
  w += bad;                         // skipped: w is whole
  EXPECT_THROW(w.wait(), Error);
  test.engine.recover(w);
  EXPECT_EQ(w.to_vector<float>(), (Floats{1, 1}));
  test.engine.recover(bad);
  EXPECT_THROW(bad.wait(), Error);
  const NDArray never = bad + 1;  // never had a value
  test.engine.recover(never);
  EXPECT_THROW(never.wait(), Error);
}

TEST(Rule14, ACancelledWriteToAHeldValueIsIntact) {
  TestEngine test(2);
  const NDArray x = from<float>({1, 2}, {2}), held = x.detach();
  CancelScope scope;
  scope.cancel();
  {
    const CancelScope::Guard guard(scope);
    x.assign(from<float>({3, 4}, {2}));  // goes to another version, which would have no value without a copy
  }
  EXPECT_THROW(x.wait(), Error);
  EXPECT_EQ(held.to_vector<float>(), (Floats{1, 2}));
  test.engine.recover(x);
  EXPECT_EQ(x.to_vector<float>(), (Floats{1, 2}));
}

TEST(Rule14, OutOfMemoryBeforeTheBodyIsIntact) {
  TestEngine test(1);
  const DeviceScope scope(cpu(0));
  NDArray x = ones({1000});
  x.wait();
  MemoryPool& pool = memory_pool(cpu(0));
  pool.trim();
  pool.set_limit(1);
  NDArray y = x + 1;
  EXPECT_THROW(y.wait(), Error);
  x += y;
  EXPECT_THROW(x.wait(), Error);
  pool.set_limit(0);
  test.engine.recover(x);
  EXPECT_EQ(x.to_vector<float>()[0], 1);
}

TEST(Rule15, ABadBatchDoesNotKillTheWeights) {
  TestEngine test(2);
  NDArray w = ones({3}).with_grad(), v = zeros({3});
  const auto step = [&](const NDArray& batch) {
    w.zero_grad();
    sum(w * batch).backward();
    sgd_step(w, v, w.grad(), 0.5, 0.9, 0);
  };
  const NDArray bad = ones({3});
  poison(bad);
  EXPECT_THROW(bad.wait(), Error);  // found late it wants a gate: nn/optim/optimizer.h
  step(bad);
  EXPECT_THROW(w.wait(), Error);
  test.engine.recover(w);
  test.engine.recover(v);
  EXPECT_EQ(w.to_vector<float>(), Floats(3, 1.0F));
  step(ones({3}));
  EXPECT_EQ(w.to_vector<float>(), Floats(3, 0.5F));
}

// ---- memory

TEST(Memory, StorageComesWhenTheOpRunsAndGoesAfterTheLastReader) {
  TestEngine test(1);
  MemoryPool& pool = memory_pool(cpu(0));
  const NDArray x = ones({1 << 16});
  x.wait();
  test.engine.wait_all();
  const std::size_t before = pool.stats().in_use;
  pool.reset_peak();
  NDArray y = x;
  for (int i = 0; i < 50; ++i) y = y + 1;
  y.wait();
  test.engine.wait_all();
  EXPECT_LE(pool.stats().in_use, before + 2 * MemoryPool::class_size(4 << 16));
  EXPECT_LE(pool.stats().peak, before + 4 * MemoryPool::class_size(4 << 16));
}

}  // namespace
}  // namespace sluice::testing
