// What a record says of single operations: windows, packing, copies of held values, ops of a program's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "ndarray_test_support.h"
#include "sluice/engine/layer.h"
#include "sluice/engine/loops.h"
#include "sluice/ndarray/operation_record.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;
using Kind = StepRecord::Kind;
using Use = OperandRecord::Use;

std::vector<Kind> kinds_of(const OperationRecord& record) {
  std::vector<Kind> list;
  for (const StepRecord& step : record.steps) list.push_back(step.kind);
  return list;
}

TEST(OperationRecord, WindowsSayWhichElementsOfWhichVersion) {
  TestEngine engine(1);
  const NDArray x = zeros({4, 6});
  const RecordScope scope;
  const TagScope tag(9);
  const LayerScope layer("encoder");
  const NDArray y = x.transpose().narrow(0, 2, 4) + 1;
  x(1).fill(3);
  ASSERT_EQ(scope.records().size(), 2U);
  const OperationRecord &add = scope.records()[0], &fill = scope.records()[1];
  const OperandRecord& window = add.operands[0];
  EXPECT_EQ(add.kind(), "row");
  EXPECT_STREQ(add.row->name, "add_scalar");
  EXPECT_EQ(window.shape, (Dims{2, 4}));
  EXPECT_EQ(window.strides, (Dims{1, 6}));
  EXPECT_EQ(window.offset, 2);
  EXPECT_EQ(window.dtype, DType::f32);
  EXPECT_EQ(window.device, test::device(0));
  EXPECT_EQ(fill.output_operands()[0].version, window.version) << "x, in place";
  EXPECT_EQ(fill.output_operands()[0].offset, 6);
  EXPECT_NE(add.output_operands()[0].version, window.version);
  EXPECT_EQ(add.tag, 9U);
  EXPECT_STREQ(add.layer, "encoder");
  EXPECT_TRUE(to_string(add).ends_with(" in encoder"));
  EXPECT_EQ(add.lane, LaneKind::compute);
  EXPECT_THAT(to_string(add), HasSubstr("add_scalar(value=1 left=false) reads v"));
  EXPECT_THAT(to_string(add), HasSubstr("f32 (2, 4) strides (1, 6) offset 2; makes v"));
  EXPECT_THAT(to_string(add), HasSubstr("; tag 9; "));
}

TEST(OperationRecord, PackingIsAStep) {
  TestEngine engine(1);
  const NDArray x = zeros({4, 6});
  const RecordScope scope;
  softmax(x.transpose());
  const OperationRecord& record = scope.records()[0];
  EXPECT_TRUE(record.operands[0].packed);
  EXPECT_EQ(kinds_of(record), (std::vector{Kind::pack, Kind::kernel}));
  x.narrow(1, 0, 2) += x.narrow(1, 1, 3);  // overlaps, and is not the same window
  EXPECT_TRUE(scope.records()[1].operands[1].packed || scope.records()[1].operands[0].packed);
  EXPECT_THAT(to_string(scope.records()[1]), HasSubstr("; steps: pack operand "));
}

TEST(OperationRecord, ACopyOfAHeldValueIsAnOperation) {
  TestEngine engine(1);
  const NDArray x = zeros({4});
  const NDArray held = x.detach();
  const RecordScope scope;
  x.fill(2);
  ASSERT_EQ(scope.records().size(), 2U);
  const OperationRecord& copy = scope.records()[0];
  EXPECT_EQ(copy.kind(), "copy on write");
  ASSERT_EQ(kinds_of(copy), (std::vector{Kind::preserve}));
  EXPECT_EQ(copy.steps[0].bytes, 16U);
  EXPECT_TRUE(copy.operands[0].made);
  EXPECT_EQ(copy.steps[0].to, copy.operands[0].version[0]);
  EXPECT_NE(copy.steps[0].from, copy.steps[0].to);
  EXPECT_EQ(scope.records()[1].operands[0].version, copy.operands[0].version) << "fill writes the new version";
  EXPECT_FALSE(scope.records()[1].operands[0].made);
  EXPECT_EQ(copy.where.line(), scope.records()[1].where.line());
  EXPECT_THAT(to_string(copy), HasSubstr("; steps: copy 16 bytes of v"));
}

TEST(OperationRecord, AnOpOfTheProgramIsOpaque) {
  for (const EngineMode mode : {EngineMode::threaded, EngineMode::serial}) {
    TestEngine engine(1, 1, mode);
    const NDArray x = zeros({4}), y = zeros({4});
    {
      const RecordScope scope;
      push_op([](ArrayContext& c) { zeros({c.output().count()}); }, {x}, {y}, {.priority = 5, .name = "mine"});
      EXPECT_THROW(x + zeros({3}), ArrayError);
      engine.engine.wait_all();
      ASSERT_EQ(scope.records().size(), 2U) << "what bodies push is not noted, nor what throws";
      const OperationRecord& mine = scope.records()[0];
      EXPECT_EQ(mine.kind(), "opaque");
      EXPECT_EQ(mine.name, "mine");
      EXPECT_EQ(mine.row, nullptr);
      EXPECT_FALSE(mine.attributes);
      EXPECT_EQ(mine.priority, 5);
      EXPECT_EQ(mine.operands[0].use, Use::reads);
      EXPECT_EQ(mine.operands[1].use, Use::writes);
      EXPECT_EQ(scope.records()[1].name, "fill") << "zeros({3})";
    }
    EXPECT_EQ(current_scope().records, nullptr);
  }
}

TEST(OperationRecord, ThreadsThatHelpWithALoopNoteNothing) {
  TestEngine engine(2);
  const NDArray x = zeros({4}), y = zeros({4});
  std::atomic<std::size_t> noted{0}, own{0};
  for (int round = 0; round < 20; ++round) {
    push_op(
        [&](ArrayContext&) {
          const RecordScope scope;
          const auto caller = std::this_thread::get_id();
          parallel_for(64, 1, [&](std::int64_t, std::int64_t) {
            x.copy();
            if (std::this_thread::get_id() == caller) ++own;
          });
          noted += scope.records().size();
        },
        {}, {y}, {.name = "mine"});
    y.wait();
  }
  EXPECT_EQ(noted.load(), own.load());
}

TEST(OperationRecord, TheInnermostScopeOfTheThreadNotes) {
  TestEngine engine(1);
  const NDArray x = zeros({4});
  const RecordScope outer;
  x.fill(1);
  {
    const RecordScope inner;
    x.fill(2);
    x.fill(3);
    EXPECT_EQ(inner.records().size(), 2U);
  }
  x.fill(4);
  EXPECT_EQ(outer.records().size(), 2U);
}

}  // namespace
}  // namespace sluice::testing
