// Recovery (SEMANTICS.md, 14): after an overwrite that was skipped, and of arrays with several variables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ndarray_test_support.h"

namespace sluice::testing {
namespace {

using Floats = std::vector<float>;

NDArray poisoned(const Dims& shape) {
  const NDArray bad = ones(shape);
  poison(bad);
  EXPECT_THROW(bad.wait(), Error);  // what a device finds late would meet a write under way
  return bad;
}

TEST(Recover, ASkippedOverwriteIsIntactWhetherASnapshotIsHeldOrNot) {
  for (EngineMode mode : {EngineMode::threaded, EngineMode::serial}) {
    if (test::device_kind() == DeviceKind::sim && mode == EngineMode::serial) continue;
    TestEngine test(2, 1, mode);
    for (bool held : {false, true}) {
      const NDArray x = from({1.0F, 2.0F}, {2}), bad = poisoned({2});
      const NDArray kept = held ? x.detach() : NDArray();
      x.assign(bad);  // skipped
      EXPECT_THROW(x.wait(), Error);
      test.engine.recover(x);
      EXPECT_EQ(x.to_vector<float>(), (Floats{1, 2})) << "held: " << held;
      x.fill(5);
      EXPECT_EQ(x.to_vector<float>(), (Floats{5, 5}));
      if (held) {
        EXPECT_EQ(kept.to_vector<float>(), (Floats{1, 2}));
      }
    }
    // An overwrite heals what is held as well.
    const NDArray x = poisoned({2}), kept = x.detach();
    x.fill(3);
    EXPECT_EQ(x.to_vector<float>(), (Floats{3, 3}));
    EXPECT_THROW(kept.wait(), Error);
    // The tape holds a value too.
    NDArray w = from({1.0F, 2.0F}, {2}).with_grad();
    NDArray y = w * 2;
    const NDArray loss = sum(square(y)), bad = poisoned({2});
    y *= bad;
    EXPECT_THROW(y.wait(), Error);
    test.engine.recover(y);
    EXPECT_EQ(y.to_vector<float>(), (Floats{2, 4}));
    loss.backward();
    EXPECT_EQ(w.grad().to_vector<float>(), (Floats{8, 16}));
  }
}

TEST(Recover, AllPartsOfAWhole) {
  TestEngine test(2);
  const std::int64_t sizes[] = {1, 2, 1};
  const Partitioned p = partitioned(sizes, {}, DType::f32, test::device(0));
  p.whole.assign(arange(0, 4, 1, DType::f32));
  p.whole.assign(poisoned({4}));
  for (const NDArray& part : p.parts) EXPECT_THROW(part.wait(), Error);
  test.engine.recover(p.whole);
  EXPECT_EQ(p.whole.to_vector<float>(), (Floats{0, 1, 2, 3}));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NO_THROW(p.parts[i].wait()) << i;
}

TEST(Recover, AllThatAnImportOverlaps) {
  TestEngine test(2);
  const DeviceScope scope(cpu(0));
  float memory[4] = {1, 2, 3, 4};
  const auto import = [&memory](int first, std::int64_t n) {
    return from_memory(memory + first, nullptr, {n}, DType::f32, cpu(0));
  };
  const NDArray low = import(0, 2), high = import(2, 2), joined = import(0, 4);
  joined.assign(poisoned({4}));
  EXPECT_THROW(low.wait(), Error);
  EXPECT_THROW(high.wait(), Error);
  test.engine.recover(joined);
  EXPECT_EQ(joined.to_vector<float>(), (Floats{1, 2, 3, 4}));
  EXPECT_EQ(low.to_vector<float>(), (Floats{1, 2}));
  EXPECT_EQ(high.to_vector<float>(), (Floats{3, 4}));
}

TEST(Recorded, WritesToPartsAreRefusedAndReadsAreNot) {
  TestEngine test(2);
  const std::int64_t sizes[] = {2, 2};
  const Partitioned p = partitioned(sizes, {}, DType::f32, test::device(0));
  p.whole.fill(2);
  const NDArray a = ones({2}).with_grad();
  EXPECT_THROW(p.parts[0].assign(a), ArrayError);
  EXPECT_THROW(p.whole(slice(0, 2)).assign(a), ArrayError);
  {
    const NoGrad scope;
    p.parts[0].assign(a);
  }
  sum(a * p.parts[1]).backward();
  EXPECT_EQ(a.grad().to_vector<float>(), (Floats{2, 2}));
}

}  // namespace
}  // namespace sluice::testing
