// Programs for the rules 10 to 13 of docs/semantics.md: parts, assignment, host and foreign access, shapes that depend
// on values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "../support/temporary_directory.h"
#include "semantics_programs.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

// ---- 10: parts

TEST(Semantics10Parts, TheWholeAndItsPartsKeepTheOrderOfTheirWrites) {
  on_each_engine([](Engine&) {
    const std::int64_t sizes[] = {1, 2, 1};
    Partitioned p = partitioned(sizes, {}, DType::f32, cpu(0));
    p.whole.fill(1);
    Late late({2}, 1);
    p.parts[1] += late.array;  // the whole waits for it
    p.parts[2] += 2;           // 1, 2 2, 3
    p.whole *= 10;
    p.parts[0] += p.parts[2];
    p.whole(slice(1, 3)) += 1;
    p.parts[1](1) = 0;
    late.held.release();
    EXPECT_EQ(floats(p.whole), (Floats{40, 21, 0, 30}));
  });
}

TEST(Semantics10Parts, SnapshotsOfPartAndWholeSurviveWritesToEither) {
  on_each_engine([](Engine&) {
    const std::int64_t sizes[] = {2, 2};
    const Partitioned p = partitioned(sizes, {}, DType::f32, cpu(0));
    p.whole.assign(arange(0, 4, 1, DType::f32));
    const NDArray part = p.parts[1].detach();
    p.whole.fill(8);
    const NDArray whole = p.whole.detach();
    p.parts[0].fill(9);
    EXPECT_EQ(floats(part), (Floats{2, 3}));
    EXPECT_EQ(floats(whole), (Floats{8, 8, 8, 8}));
    EXPECT_EQ(floats(p.whole), (Floats{9, 9, 8, 8}));
  });
}

TEST(Semantics10Parts, APoisonedPartPoisonsTheWholeAndNotItsNeighbour) {
  on_each_engine([](Engine&) {
    const std::int64_t sizes[] = {2, 2};
    const Partitioned p = partitioned(sizes, {}, DType::f32, cpu(0));
    p.whole.fill(1);
    poison(p.parts[0]);
    EXPECT_THROW(p.whole.wait(), Error);
    EXPECT_EQ(floats(p.parts[1]), (Floats{1, 1}));
    p.parts[0].fill(2);
    EXPECT_EQ(floats(p.whole), (Floats{2, 2, 1, 1}));
  });
}

// ---- 11: assignment

TEST(Semantics11Assignment, AViewWritesThroughAndANameRebinds) {
  on_each_engine([](Engine&) {
    NDArray x = from({1.0F, 2.0F, 3.0F, 4.0F}, {2, 2});
    NDArray v = x(0);
    v = x(1);  // v names row 1 now, and nothing is written
    v *= 10;
    EXPECT_EQ(floats(x), (Floats{1, 2, 30, 40}));
    x(0) = v;
    v.fill(0);
    EXPECT_EQ(floats(x), (Floats{30, 40, 0, 0}));
    NDArray copy = x;
    copy = zeros({2, 2});
    EXPECT_EQ(floats(x), (Floats{30, 40, 0, 0}));
  });
}

TEST(Semantics11Assignment, ValuesAreTakenWhereTheAssignmentStands) {
  on_each_engine([](Engine&) {
    NDArray x = from({1.0F, 2.0F}, {2});
    Borrow held = hold(x);
    const NDArray first = x(0).copy();
    x(0) = x(1);
    x(1) = first;  // a swap
    x(1) = x(1);
    held.release();
    EXPECT_EQ(floats(x), (Floats{2, 1}));
  });
}

TEST(Semantics11Assignment, ALeafIsRefusedAndUnchangedOutsideOfNoGrad) {
  on_each_engine([](Engine&) {
    const NDArray w = from({1.0F, 2.0F}, {2}).with_grad();
    NDArray view = w(slice(0, 1));
    EXPECT_THROW(view += 1, ArrayError);
    EXPECT_THROW(w(0) = 3, ArrayError);
    EXPECT_THROW(w.assign(zeros({2})), ArrayError);
    EXPECT_EQ(floats(w), (Floats{1, 2}));
    const NDArray loss = sum(w * w);
    {
      const NoGrad scope;
      w.fill(10);
    }
    loss.backward();
    EXPECT_EQ(floats(w), (Floats{10, 10}));
    EXPECT_EQ(floats(w.grad()), (Floats{2, 4}));  // of the values that the loss saw
  });
}

// ---- 12: host and foreign access

TEST(Semantics12Access, ABorrowTakesItsPlaceBetweenTheOps) {
  on_each_engine([](Engine&) {
    NDArray x = ones({3});
    x += 1;
    NDArray before = x * 10, after;
    {
      auto elements = x.borrow<float>();
      EXPECT_EQ(elements[2], 2);
      after = x * 100;  // behind the borrow
      x += 1;
      elements[0] = 7;
      elements[1] = 8;
    }
    EXPECT_EQ(floats(before), (Floats{20, 20, 20}));
    EXPECT_EQ(floats(after), (Floats{700, 800, 200}));
    EXPECT_EQ(floats(x), (Floats{8, 9, 3}));
  });
}

TEST(Semantics12Access, ABorrowToWriteLeavesWhatTheTapeHolds) {
  on_each_engine([](Engine&) {
    const NDArray a = from({1.0F, 2.0F}, {2}).with_grad();
    const NDArray h = a * 3, loss = sum(h * h);
    h.borrow<float>()[0] = 1000;
    loss.backward();
    EXPECT_EQ(floats(h), (Floats{1000, 6}));
    EXPECT_EQ(floats(a.grad()), (Floats{18, 36}));
  });
}

TEST(Semantics12Access, AnExportIsASnapshot) {
  on_each_engine([](Engine&) {
    NDArray x = from({1.0F, 2.0F, 3.0F}, {3});
    dlpack::ManagedTensorVersioned* const tensor = to_dlpack(x(slice_from(1)));
    x.fill(9);
    x += 1;
    x.wait();
    const auto* const seen =
        reinterpret_cast<const float*>(static_cast<const std::byte*>(tensor->tensor.data) + tensor->tensor.byte_offset);
    EXPECT_EQ(seen[0], 2);
    EXPECT_EQ(seen[1], 3);
    tensor->deleter(tensor);
    EXPECT_EQ(floats(x), (Floats{10, 10, 10}));
  });
}

TEST(Semantics12Access, ImportsThatOverlapAreViewsOfOneMemory) {
  on_each_engine([](Engine&) {
    std::array<float, 6> memory{1, 1, 1, 1, 1, 1};
    NDArray a = from_memory(memory.data(), nullptr, {4}, DType::f32, cpu(0));
    NDArray b = from_memory(memory.data() + 2, nullptr, {4}, DType::f32, cpu(0));
    const NDArray kept = b.detach();
    Late late({4}, 1);
    a += late.array;  // what overlaps it waits too
    b *= 10;
    a += 1;
    late.held.release();
    EXPECT_EQ(floats(a), (Floats{3, 3, 21, 21}));
    EXPECT_EQ(floats(b), (Floats{21, 21, 10, 10}));
    EXPECT_EQ(floats(kept), (Floats{1, 1, 1, 1}));
    EXPECT_EQ(memory, (std::array<float, 6>{3, 3, 21, 21, 10, 10}));
  });
}

TEST(Semantics12Access, MappedWeightsCopyAtTheirFirstWrite) {
  on_each_engine([](Engine&) {
    const test::TemporaryDirectory directory;
    const auto path = directory / "weights.safetensors";
    save_arrays(path, {{"w", from({1.0F, 2.0F, 3.0F, 4.0F}, {2, 2})}});
    const MappedArrays file(path);
    NDArray w = file.array("w");
    const NDArray row = w(1), kept = w.detach();
    w(1, 0) = 30;
    EXPECT_EQ(floats(row), (Floats{30, 4}));
    EXPECT_EQ(floats(kept), (Floats{1, 2, 3, 4}));
    EXPECT_EQ(floats(file.array("w")), (Floats{1, 2, 3, 4}));
    EXPECT_EQ(floats(load_arrays(path).arrays.at("w")), (Floats{1, 2, 3, 4}));
  });
}

// ---- 13: shapes that depend on values

TEST(Semantics13Shapes, AMaskedAssignmentDoesNotWait) {
  on_each_engine([](Engine& engine) {
    NDArray x = from({1.0F, 2.0F, 3.0F, 4.0F}, {4});
    Late late({4}, 2.5F);
    const NDArray kept = x.detach(), mask = x > late.array;
    x(mask) = 0;   // a wait would never end: `late` is held by this thread
    x(mask) += 5;  // the mask is the one that was computed, not x > 2.5 of now
    EXPECT_FALSE(engine.wait_for(x, std::chrono::nanoseconds(0)));
    late.held.release();
    EXPECT_EQ(floats(x), (Floats{1, 2, 5, 5}));
    EXPECT_EQ(floats(kept), (Floats{1, 2, 3, 4}));
  });
}

TEST(Semantics13Shapes, WhatWaitsSeesTheValueOfItsPlace) {
  on_each_engine([](Engine&) {
    NDArray x = zeros({4});
    x(slice_from(2)) = 3;
    const NDArray places = nonzero(x), chosen = masked_select(x, x > 1);
    const Unique values = unique(x);
    x.fill(7);
    EXPECT_EQ(places.to_vector<std::int64_t>(), (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(floats(chosen), (Floats{3, 3}));
    EXPECT_EQ(floats(values.values), (Floats{0, 3}));
    EXPECT_EQ(values.counts.to_vector<std::int64_t>(), (std::vector<std::int64_t>{2, 2}));
  });
}

TEST(Semantics13Shapes, WhatWaitsThrowsThePoisonOfItsInputs) {
  on_each_engine([](Engine&) {
    const NDArray bad = failed({3}), good = ones({3});
    const auto root_of = [](const auto& call) -> std::string {
      try {
        call();
      } catch (const Error& e) {
        return e.root().operation;
      }
      return "no error";
    };
    EXPECT_EQ(root_of([&] { nonzero(bad); }), "spoil");
    EXPECT_EQ(root_of([&] { unique(bad * 2); }), "spoil");
    EXPECT_EQ(root_of([&] { masked_select(good, bad > 0); }), "spoil");
    EXPECT_EQ(root_of([&] { bincount(bad.to(DType::i64)); }), "spoil");
    EXPECT_EQ(floats(masked_select(good, good > 0)), (Floats{1, 1, 1}));
  });
}

TEST(Semantics13Shapes, AFormWithASizePadsAndDoesNotWait) {
  on_each_engine([](Engine& engine) {
    const NDArray x = from({2.0F, 5.0F, 3.0F, 5.0F}, {4}).with_grad();
    Late late({4}, 2.5F);
    const NDArray mask = x > late.array;  // late: a wait would never end
    const NDArray places = nonzero(mask, {.size = 4, .fill = -1}),
                  chosen = masked_select(x, mask, {.size = 4, .fill = 9});
    const Unique values = unique(chosen, {.size = 4});
    sum(chosen * chosen).backward();
    EXPECT_FALSE(engine.wait_for(chosen, std::chrono::nanoseconds(0)));
    late.held.release();
    EXPECT_EQ(places.to_vector<std::int64_t>(), (std::vector<std::int64_t>{1, 2, 3, -1}));
    EXPECT_EQ(floats(chosen), (Floats{5, 3, 5, 9}));
    EXPECT_EQ(floats(values.values), (Floats{3, 5, 9, 3}));
    EXPECT_EQ(values.counts.to_vector<std::int64_t>(), (std::vector<std::int64_t>{1, 2, 1, 0}));
    EXPECT_EQ(floats(x.grad()), (Floats{0, 10, 6, 10}));
  });
}

TEST(Semantics13Shapes, WhatWaitsIsRefusedInACapture) {
  on_each_engine([](Engine& engine) {
    const NDArray x = from({0.0F, 3.0F}, {2});
    const NDArray mask = x > 1;
    EXPECT_THROW(engine.capture([&] { nonzero(x); }), UsageError);
    EXPECT_THROW(engine.capture([&] { masked_select(x, mask); }), UsageError);
    EXPECT_THROW(engine.capture([&] { unique(x); }), UsageError);
    EXPECT_EQ(nonzero(x).to_vector<std::int64_t>(), std::vector<std::int64_t>{1});  // nothing is left behind
  });
}

}  // namespace
}  // namespace sluice::testing
