#include "sluice/ndarray/call_value.h"

#include <string_view>

#include "sluice/engine/errors.h"
#include "sluice/engine/operation.h"
#include "sluice/ndarray/tensor_view.h"

namespace sluice {
namespace {

bool same_place(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && a.column() == b.column() && std::string_view(a.file_name()) == b.file_name();
}

std::string text_of(const Spec& spec, Device here) {
  std::string text = to_string(spec.shape) + " " + std::string(name_of(spec.dtype));
  return spec.device == here ? text : text + " on " + to_string(spec.device);
}

std::string text_of(const CallValue::Operand& x, Device here) {
  std::string text = text_of(x.spec, here);
  if (!is_row_major(x.spec.shape, x.strides)) text += " strides " + to_string(x.strides);
  return x.offset == 0 ? text : text + " offset " + std::to_string(x.offset);
}

}  // namespace

bool operator==(const CallValue& a, const CallValue& b) {
  return a.row == b.row && a.attributes == b.attributes && a.inputs == b.inputs && a.targets == b.targets &&
         a.results == b.results && same_place(a.where, b.where) && a.layer == b.layer;
}

std::string to_string(const CallValue& call) {
  const Device here = call.results.empty() ? Device{} : call.results[0].device;
  std::string text = call.row->name;
  if (!call.attributes.fields().empty()) {
    text += "(";
    const char* space = "";
    for (const AttributeField& field : call.attributes.fields()) {
      text += std::string(space) + field.name + "=" + to_string(field.get(call.attributes.data()));
      space = " ";
    }
    text += ")";
  }
  const char* before = " of ";
  for (const CallValue::Operand& x : call.inputs) {
    text += before + text_of(x, here);
    before = ", ";
  }
  for (const CallValue::Operand& y : call.targets) text += (y.updated ? " updates " : " into ") + text_of(y, here);
  before = " gives ";
  for (const Spec& y : call.results) {
    if (!call.targets.empty()) break;
    text += before + text_of(y, here);
    before = ", ";
  }
  text += " on " + to_string(here) + "; " + to_string(call.where);
  return call.layer.empty() ? text : text + " in " + call.layer;
}

}  // namespace sluice
