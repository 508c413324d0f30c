// infer(): what it says of a call is what the call gives, or throws.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "../support/devices.h"
#include "../support/net_of.h"
#include "ops_table.h"
#include "sluice/ndarray/operation_record.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

std::string text_of(const std::vector<Spec>& specs) {
  std::string text;
  for (const Spec& spec : specs) text += to_string(spec) + "; ";
  return text;
}

/// A row's call without its arrays.
struct Asked {
  const Operator* row = nullptr;
  std::vector<Spec> inputs, outputs;
  Attributes attributes;
  bool updates = false;  ///< it changes what it is given
};

Asked asked(const OperationRecord& record) {
  Asked call;
  call.row = static_cast<const Operator*>(record.row);
  call.attributes = record.attributes;
  for (const OperandRecord& x : record.input_operands()) call.inputs.push_back({x.shape, x.dtype, x.device});
  for (const OperandRecord& y : record.output_operands()) {
    call.outputs.push_back({y.shape, y.dtype, y.device});
    call.updates = call.updates || y.use == OperandRecord::Use::updates;
  }
  return call;
}

/// Adds the rows that were called to `calls`, each different call once.
void collect(const std::vector<OperationRecord>& records, std::set<std::string>& known, std::vector<Asked>& calls) {
  for (const OperationRecord& record : records) {
    if (!record.row) continue;
    Asked call = asked(record);
    OperationRecord bare = record;
    bare.operands.clear();
    bare.where = {};
    bare.tag = 0;
    bare.layer = "";
    if (known.insert(to_string(bare) + text_of(call.inputs) + "-> " + text_of(call.outputs)).second) {
      calls.push_back(std::move(call));
    }
  }
}

/// What the table's cases call, forward, backward and backward again.
const std::vector<Asked>& calls_of_the_table() {
  static const std::vector<Asked> all = [] {
    std::set<std::string> known;
    std::vector<Asked> calls;
    for (const OperatorCase& c : operator_cases()) {
      Arrays x;
      for (const NDArray& input : make_inputs(c, c.by_lapack ? DType::f64 : DType::f32)) {
        x.push_back(c.gradient ? input.with_grad() : input);
      }
      const RecordScope scope;
      const NDArray y = c.call(x);
      if (c.gradient && y.requires_grad()) {
        const Arrays first = grad(sum(y), x, {.create_graph = c.second_order});
        for (const NDArray& g : first) {
          if (c.second_order && g.defined() && g.requires_grad()) grad(sum(square(g)), x, {.retain = true});
        }
      }
      collect(scope.records(), known, calls);
    }
    default_engine().wait_all();
    return calls;
  }();
  return all;
}

/// The specs, or the error's words.
std::string answer(const std::function<std::vector<Spec>()>& ask) {
  try {
    return text_of(ask());
  } catch (const ArrayError& error) {
    return error.what();
  }
}

std::string inferred(const Asked& call, Place on, std::source_location where = std::source_location::current()) {
  return answer([&] { return infer(*call.row, call.inputs, call.attributes, on, where); });
}

/// What the call itself gives. It is cancelled before it runs: rows that only the library calls trust their callers,
/// and their kernels must not see such shapes.
std::string called(const Asked& call, Place on, std::source_location where) {
  return answer([&] {
    const NoGrad no_grad;
    Arrays arrays;
    std::vector<const NDArray*> inputs;
    for (const Spec& spec : call.inputs) {
      const DeviceScope scope(spec.device);
      arrays.push_back(zeros(spec.shape, spec.dtype));
    }
    for (const NDArray& x : arrays) inputs.push_back(&x);
    std::vector<Spec> made;
    CancelScope cancelled;
    cancelled.cancel();
    const CancelScope::Guard guard(cancelled);
    for (const NDArray& y : apply_all(*call.row, inputs, call.attributes, {.where = where, .on = on})) {
      made.push_back(y.spec());
      EXPECT_THROW(y.wait(), Error);
    }
    return made;
  });
}

/// Rows that move arrays are told where their outputs live.
Place place_of(const Asked& call) {
  const Device there = call.outputs[0].device;
  for (const Spec& x : call.inputs) {
    if (!(x.device == there)) return there;
  }
  return call.inputs.empty() ? Place(there) : Place();
}

TEST(Infer, GivesWhatTheTablesCallsGave) {
  std::set<const Operator*> rows;
  for (const Asked& call : calls_of_the_table()) {
    EXPECT_EQ(inferred(call, place_of(call)), text_of(call.outputs))
        << call.row->name << " of " << text_of(call.inputs);
    rows.insert(call.row);
  }
  RecordProperty("calls", static_cast<int>(calls_of_the_table().size()));
  RecordProperty("rows", static_cast<int>(rows.size()));
  EXPECT_GT(rows.size(), 170U);
}

/// The call with one thing changed: a size, a rank, a dtype, the number of inputs.
std::vector<Asked> changed(const Asked& call) {
  std::vector<Asked> list;
  const auto with = [&](std::size_t i, auto change) {
    list.push_back(call);
    change(list.back().inputs[i]);
  };
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    for (int axis = 0; axis < call.inputs[i].shape.rank(); ++axis) {
      with(i, [&](Spec& x) { ++x.shape[axis]; });
      with(i, [&](Spec& x) { x.shape[axis] = 0; });
      with(i, [&](Spec& x) { x.shape[axis] = 1; });
    }
    if (call.inputs[i].shape.rank() < kMaxRank) with(i, [](Spec& x) { x.shape.push_back(2); });
    with(i, [](Spec& x) {
      Dims fewer;
      for (int axis = 1; axis < x.shape.rank(); ++axis) fewer.push_back(x.shape[axis]);
      x.shape = fewer;
    });
    for (const DType dtype : {DType::f16, DType::f64, DType::i64, DType::i32, DType::boolean}) {
      with(i, [&](Spec& x) { x.dtype = dtype; });
    }
  }
  if (!call.inputs.empty()) {
    list.push_back(call);
    list.back().inputs.pop_back();
    list.push_back(call);
    list.back().inputs.push_back(call.inputs.back());
  }
  return list;
}

TEST(Infer, ThrowsWhatTheCallThrows) {
  int compared = 0, refused = 0;
  std::map<const Operator*, int> calls;
  const auto where = std::source_location::current();
  for (const Asked& call : calls_of_the_table()) {
    if (call.updates) continue;  // without its targets this is another call
    if (++calls[call.row] > 4) continue;
    const Place on = place_of(call);
    for (const Asked& other : changed(call)) {
      const std::string got = inferred(other, on, where), wanted = called(other, on, where);
      if (wanted.find("no kernel for") != std::string::npos) continue;
      ++compared;
      if (wanted.starts_with("[")) ++refused;
      ASSERT_EQ(got, wanted) << call.row->name << " of " << text_of(other.inputs);
    }
    default_engine().wait_all();
  }
  RecordProperty("compared", compared);
  RecordProperty("refused", refused);
  std::printf("%d calls of %zu rows, %d of them refused\n", compared, calls.size(), refused);
  EXPECT_GT(refused, 1000);
  EXPECT_GT(compared - refused, 1000);
}

TEST(Infer, OfAListOfOperands) {
  constexpr int kTensors = 1000;
  Arrays weights;
  for (int i = 0; i < kTensors; ++i) weights.push_back(ones({1 + i % 7, 3}).with_grad());
  for (const NDArray& w : weights) sum(w).backward();
  const auto net = test::net_of(weights);
  nn::Optimizer adam(net, nn::Adam{});
  std::vector<OperationRecord> records;
  {
    const RecordScope scope;
    adam.step();
    records = scope.records();
  }
  std::set<std::string> known;
  std::vector<Asked> calls;
  collect(records, known, calls);
  std::size_t most = 0;
  for (const Asked& call : calls) {
    most = std::max(most, call.inputs.size());
    EXPECT_EQ(inferred(call, place_of(call)), text_of(call.outputs)) << call.row->name;
  }
  EXPECT_GE(most, std::size_t{kTensors});
  default_engine().wait_all();
}

TEST(Infer, DevicesGoWithTheInputsOrTheScope) {
  const Operator& add = Registry::instance().get("add");
  const Device here = cpu(0), there{DeviceKind::null, 3};
  const std::vector<Spec> apart{{{2}, DType::f32, here}, {{2}, DType::f32, there}};
  EXPECT_THAT(answer([&] { return infer(add, apart); }), HasSubstr("arrays on cpu(0) and null(3); use to(device)"));
  EXPECT_EQ(infer(add, std::vector<Spec>{{{2}, DType::f64, there}, {{5, 1}, DType::f64, there}}),
            (std::vector<Spec>{{{5, 2}, DType::f64, there}}));
  // Nothing asks whether there is such a device.
  EXPECT_EQ(infer(add, apart, {}, there)[0].device, there);
  EXPECT_EQ(ones({2, 3}).spec(), (Spec{{2, 3}, DType::f32, cpu(0)}));
  EXPECT_EQ(to_string(Spec{{64, 10}, DType::f16, cpu(0)}), "(64, 10) f16 on cpu(0)");
  EXPECT_THROW(NDArray().spec(), ArrayError);
}

}  // namespace
}  // namespace sluice::testing
