// The record of a training step: from it one reads, without running anything, which rows were applied, with which
// attributes and slots, on which versions.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "nn_support.h"
#include "sluice/ndarray/operation_record.h"
#include "sluice/operators/attributes.h"

namespace sluice {
namespace {

using test::made_up;
using test::TestEngine;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Records = std::vector<OperationRecord>;
using Use = OperandRecord::Use;

std::vector<std::string> names(const Records& records) {
  std::vector<std::string> list;
  for (const OperationRecord& r : records) list.push_back(r.name);
  return list;
}

Records named(const Records& records, std::string_view name) {
  Records found;
  std::copy_if(records.begin(), records.end(), std::back_inserter(found),
               [&](const auto& r) { return r.name == name; });
  return found;
}

/// A network of two layers, whose second has no activation.
struct Net {
  nn::Linear up{.in = 6, .out = 5, .relu = true}, down{5, 3};
  NDArray operator()(const NDArray& x) const { return down(up(x)); }
};

void print(const Records& records) {
  for (const OperationRecord& r : records) std::printf("%s\n", to_string(r).c_str());
}

/// Two steps with different learning rates, both in flight before either has run.
template <class Rule>
Records two_queued_steps(const Rule& rule) {
  Net net;
  nn::initialise(net, 4);
  nn::Optimizer opt(net, rule);
  const NDArray x = made_up({8, 6}, 10, DType::f32);
  const NDArray y = from(std::vector<std::int64_t>{0, 1, 2, 0, 1, 2, 0, 1}, {8});
  x.engine().wait_all();
  Records records;
  {
    const NDArray weight = net.up.weight;
    Borrow hold = weight.engine().borrow(update(weight));  // nothing that needs the first layer's weight runs
    {
      const RecordScope scope;
      for (const double part : {1.0, 0.25}) {
        opt.rule<Rule>().lr = part * rule.lr(0);
        cross_entropy(net(x), y).backward();
        opt.step();
      }
      records = scope.records();
    }
    hold.release();
  }
  x.engine().wait_all();
  print(records);
  return records;
}

/// The rows of two steps of a net of two layers, from the youngest gradient to the oldest. The first step makes the
/// arrays that the rule keeps.
std::vector<std::string> rows_of_two_steps(const char* row, std::size_t kept) {
  std::vector<std::string> list{"linear_relu", "linear", "cross_entropy", "fill",      "cross_entropy_grad",
                                "matmul",      "matmul", "sum",           "relu_grad", "matmul",
                                "sum"};
  std::vector<std::string> both = list;
  both.insert(both.end(), kept, "fill");
  for (int step = 0; step < 2; ++step) {
    if (step == 1) both.insert(both.end(), list.begin(), list.end());
    if (test::on_streams()) both.push_back("gate");
    both.push_back(row);
  }
  return both;
}

/// Which earlier op wrote what an operand shows; -1: none of them.
int writer_of(const Records& records, std::size_t reader, const OperandRecord& operand) {
  for (std::size_t i = reader; i-- > 0;) {
    for (const OperandRecord& y : records[i].output_operands()) {
      if (y.version == operand.version) return static_cast<int>(i);
    }
  }
  return -1;
}

double number(const std::optional<FieldValue>& value) { return value ? std::get<double>(*value) : NAN; }

TEST(Record, TwoQueuedStepsOfSgdHaveTheirLearningRatesInSlots) {
  TestEngine engine;
  const Records records = two_queued_steps(nn::Sgd{.lr = 0.1});
  ASSERT_EQ(names(records), rows_of_two_steps("sgd_step", 0));
  const std::size_t half = records.size() / 2;
  EXPECT_EQ(number(records[half - 1].slot("lr")), 0.1);
  EXPECT_EQ(number(records.back().slot("lr")), 0.025);
  EXPECT_FALSE(records.back().slot("momentum")) << "a constant";
  EXPECT_EQ(number(records.back().attributes.field("momentum")), 0);
  EXPECT_EQ(records[0].attributes.field("relu"), FieldValue(true));
  EXPECT_EQ(number(records[2].slot("scale")), 0.125);

  // Where the steps' gradients come from, and who reads the weights that they change.
  const OperationRecord& step = records[half - 1];
  const std::size_t parameters = step.output_operands().size();
  ASSERT_EQ(parameters, 4U);
  const int makers[] = {9, 10, 6, 7};  // of the two weights' and biases' gradients
  for (std::size_t i = 0; i < parameters; ++i) {
    const OperandRecord &gradient = step.operands[i], &value = step.output_operands()[i];
    EXPECT_EQ(gradient.use, Use::reads);
    EXPECT_EQ(value.use, Use::updates);
    EXPECT_FALSE(value.made) << "in place";
    EXPECT_EQ(gradient.shape, value.shape);
    EXPECT_EQ(writer_of(records, half - 1, gradient), makers[i]);
    EXPECT_EQ(records.back().output_operands()[i].version, value.version);
  }
  const OperationRecord& forward = records[half];
  EXPECT_EQ(writer_of(records, half, forward.operands[0]), -1) << "the batch";
  EXPECT_EQ(writer_of(records, half, forward.operands[1]), static_cast<int>(half - 1)) << "the first step's weight";
  EXPECT_EQ(forward.operands[2].shape, (Dims{5}));
  EXPECT_TRUE(forward.output_operands()[0].made);

  // A gradient's ops name the line of the program whose gradient they are.
  EXPECT_EQ(records[8].where.line(), records[0].where.line());
  EXPECT_NE(records[0].where.line(), step.where.line());
  EXPECT_EQ(step.device, test::device(0));
  const std::string line = to_string(step);
  EXPECT_THAT(line, HasSubstr("sgd_step(lr=0.1 momentum=0 weight_decay=0) reads v"));
  EXPECT_THAT(line, HasSubstr("f32 (5, 6), v"));
  EXPECT_THAT(line, HasSubstr("; updates v"));
  EXPECT_THAT(line, HasSubstr("record_test.cc:" + std::to_string(step.where.line())));
}

TEST(Record, TwoQueuedStepsOfAdamHaveTheirLearningRatesInSlots) {
  TestEngine engine;
  const Records records = two_queued_steps(nn::Adam{.lr = 0.01});
  ASSERT_EQ(names(records), rows_of_two_steps("adam_step", 12));
  const Records steps = named(records, "adam_step");
  EXPECT_EQ(number(steps[0].slot("lr")), 0.01);
  EXPECT_EQ(number(steps[1].slot("lr")), 0.0025);
  EXPECT_EQ(steps[0].slot("step"), FieldValue(std::int64_t{0})) << "arrays count the steps";
  ASSERT_EQ(steps[0].output_operands().size(), 16U) << "of each parameter: itself, two moments, a counter";
  EXPECT_EQ(steps[0].output_operands()[3].dtype, DType::i64);
}

TEST(Record, RandomRowsHaveTheNumberOfTheirDrawInASlot) {
  TestEngine engine;
  RandomStream stream(7);
  const RecordScope scope;
  uniform({3}, stream);
  normal({3}, stream);
  ASSERT_THAT(names(scope.records()), ElementsAre("uniform", "normal"));
  EXPECT_EQ(scope.records()[0].slot("draw"), FieldValue(std::uint64_t{0}));
  EXPECT_EQ(scope.records()[1].slot("draw"), FieldValue(std::uint64_t{1}));
  EXPECT_EQ(scope.records()[1].attributes.field("seed"), FieldValue(std::uint64_t{7}));
}

TEST(Record, ASlotIsReplacedWithoutKnowingTheStruct) {
  const Attributes sgd = SgdAttributes{0.1, 0.9, 0.01};
  const Attributes other = sgd.with("lr", 0.5);
  EXPECT_EQ(other.get<SgdAttributes>(), (SgdAttributes{0.5, 0.9, 0.01}));
  EXPECT_EQ(sgd.get<SgdAttributes>().lr, 0.1);
  const Attributes adam = AdamStep{.lr = 0.1};  // too large to lie in place
  EXPECT_EQ(adam.with("step", std::int64_t{4}).get<AdamStep>(), (AdamStep{.lr = 0.1, .step = 4}));
  EXPECT_THROW(sgd.with("speed", 0.5), UsageError);
  EXPECT_THROW(sgd.with("lr", std::int64_t{1}), UsageError);
  EXPECT_THROW(Attributes().with("lr", 0.5), UsageError);
}

}  // namespace
}  // namespace sluice
