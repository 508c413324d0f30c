#include "sluice/ndarray/operation_record.h"

#include "sluice/engine/layer.h"
#include "sluice/ndarray/array_call.h"

namespace sluice {
namespace {

std::vector<std::uint32_t> numbers_of(const Version& version) {
  std::vector<std::uint32_t> numbers;
  version.each_variable([&](const Variable& v) { numbers.push_back(v.get()->number); });
  return numbers;
}

std::uint32_t number_of(const Version& version) { return version.variable().get()->number; }

OperandRecord operand_of(const ArrayPush& push, const ArrayCall& call, std::size_t i) {
  const Resolved& resolved = call.operands[i];
  const TensorView window = call.window(i);
  OperandRecord operand;
  if (i >= call.inputs) {
    const bool updates = push.updates.contains(i - call.inputs);
    operand.use = updates ? OperandRecord::Use::updates : OperandRecord::Use::writes;
    operand.made = push.fresh || resolved.moved;
  }
  operand.packed = resolved.pack;
  operand.version = numbers_of(*resolved.version);
  operand.device = resolved.version->buffer().device();
  operand.dtype = resolved.dtype;
  operand.shape = window.shape;
  operand.strides = window.strides;
  operand.offset = resolved.offset;
  return operand;
}

std::vector<StepRecord> steps_of(const ArrayCall& call) {
  std::vector<StepRecord> steps;
  if (call.preserves) {
    for (const Preserve& p : *call.preserves) {
      steps.push_back({.kind = StepRecord::Kind::preserve,
                       .from = number_of(*p.from),
                       .to = number_of(*p.to),
                       .begin = p.begin,
                       .bytes = p.bytes});
    }
  }
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    const Resolved& operand = call.operands[i];
    if (operand.pack && (i < call.inputs || operand.preload)) {
      steps.push_back({.kind = StepRecord::Kind::pack, .operand = i});
    }
  }
  if (call.body) steps.push_back({.kind = StepRecord::Kind::kernel});
  for (std::size_t i = call.inputs; i < call.operands.size(); ++i) {
    if (call.operands[i].pack) steps.push_back({.kind = StepRecord::Kind::unpack, .operand = i});
  }
  return steps;
}

std::string name_of_version(const std::vector<std::uint32_t>& numbers) {
  std::string text;
  for (std::uint32_t n : numbers) text += (text.empty() ? "v" : "+v") + std::to_string(n);
  return text;
}

std::string text_of(const OperandRecord& x, Device here) {
  std::string text = name_of_version(x.version) + " " + std::string(name_of(x.dtype)) + " " + to_string(x.shape);
  if (!is_row_major(x.shape, x.strides)) text += " strides " + to_string(x.strides);
  if (x.offset != 0) text += " offset " + std::to_string(x.offset);
  if (!(x.device == here)) text += " on " + to_string(x.device);
  return text;
}

std::string text_of(const StepRecord& step) {
  switch (step.kind) {
    case StepRecord::Kind::preserve:
      return "copy " + std::to_string(step.bytes) + " bytes of v" + std::to_string(step.from) + " to v" +
             std::to_string(step.to);
    case StepRecord::Kind::pack:
      return "pack operand " + std::to_string(step.operand);
    case StepRecord::Kind::kernel:
      return "kernel";
    case StepRecord::Kind::unpack:
      return "unpack operand " + std::to_string(step.operand);
  }
  return "";
}

const char* verb_of(const OperandRecord& operand) {
  switch (operand.use) {
    case OperandRecord::Use::reads:
      return "reads";
    case OperandRecord::Use::writes:
      return operand.made ? "makes" : "writes";
    case OperandRecord::Use::updates:
      return operand.made ? "moves and updates" : "updates";
  }
  return "";
}

}  // namespace

OperationRecord record_of(const ArrayPush& push, const char* name, const PushOptions& options, const ArrayCall& call) {
  const ScopeState& scope = current_scope();
  OperationRecord record;
  record.name = name;
  record.row = push.options.op;  // options.op may be named for errors
  record.body = call.body;
  if (options.op) record.attributes = call.attributes;  // the closure of an opaque op holds what only the program knows
  record.inputs = call.inputs;
  record.operands.reserve(call.operands.size());
  for (std::size_t i = 0; i < call.operands.size(); ++i) record.operands.push_back(operand_of(push, call, i));
  record.steps = steps_of(call);
  record.device = options.on.device;
  record.lane = options.on.lane;
  record.priority = options.priority;
  record.tag = scope.tag;
  record.flags = scope.flags;
  record.layer = detail::path_of(scope.layer);
  record.where = push.where;
  return record;
}

std::optional<FieldValue> OperationRecord::slot(std::string_view slot) const {
  for (const AttributeField& field : attributes.fields()) {
    if (field.slot && slot == field.name) return field.get(attributes.data());
  }
  return {};
}

std::string to_string(const OperationRecord& record) {
  std::string text = record.name;
  if (!record.row && record.body) text += " (opaque)";
  if (!record.attributes.fields().empty()) {
    text += "(";
    const char* space = "";
    for (const AttributeField& field : record.attributes.fields()) {
      text += std::string(space) + field.name + "=" + to_string(field.get(record.attributes.data()));
      space = " ";
    }
    text += ")";
  }
  std::string_view verb;
  for (const OperandRecord& operand : record.operands) {
    const std::string_view own = verb_of(operand);
    text += own == verb ? ", " : (verb.empty() ? " " : "; ") + std::string(own) + " ";
    verb = own;
    text += text_of(operand, record.device);
  }
  text += "; on " + to_string(record.device);
  static constexpr const char* lanes[] = {"", " copy_in", " copy_out", " copy_peer", " io"};
  text += lanes[static_cast<std::size_t>(record.lane)];
  if (record.tag != 0) text += "; tag " + std::to_string(record.tag);
  if (record.steps.size() > 1 || !record.body) {
    text += "; steps: ";
    const char* comma = "";
    for (const StepRecord& step : record.steps) {
      text += comma + text_of(step);
      comma = ", ";
    }
  }
  text += "; " + to_string(record.where);
  return *record.layer ? text + " in " + record.layer : text;
}

}  // namespace sluice
