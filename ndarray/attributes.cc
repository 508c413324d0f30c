#include "sluice/ndarray/attributes.h"

#include <charconv>
#include <string>

#include "sluice/engine/errors.h"

namespace sluice {
namespace {

std::string text(bool value) { return value ? "true" : "false"; }
std::string text(std::int64_t value) { return std::to_string(value); }
std::string text(std::uint64_t value) { return std::to_string(value); }
/// The shortest text that reads back as the same number.
std::string text(double value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}
std::string text(DType value) { return std::string(name_of(value)); }
std::string text(Device value) { return to_string(value); }
std::string text(const Scalar& value) { return value.is_integer ? text(value.integer) : text(value.real); }
std::string text(const Dims& value) { return to_string(value); }

}  // namespace

std::string to_string(const FieldValue& value) {
  return std::visit([](const auto& v) { return text(v); }, value);
}

Attributes Attributes::with(std::string_view name, const FieldValue& value) const {
  for (const AttributeField& f : fields()) {
    if (name != f.name) continue;
    try {
      return table_->with(data(), f, value);
    } catch (const std::bad_variant_access&) {
      throw UsageError("the attribute '" + std::string(name) + "' is " + to_string(f.get(data())) +
                       ", of another type than " + to_string(value));
    }
  }
  throw UsageError("there is no attribute '" + std::string(name) + "'");
}

}  // namespace sluice
