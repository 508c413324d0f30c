// The named fields of an attribute struct, by which a reader of records prints an operator's attributes, and finds its
// slots, without knowing the struct.
//
//   struct SgdAttributes {
//     double lr = 0, momentum = 0;
//     static constexpr auto fields() {
//       return std::array{slot<&SgdAttributes::lr>("lr"), field<&SgdAttributes::momentum>("momentum")};
//     }
//     ...
//   };
//
// A *slot* is an attribute that changes from call to call in a training program: a learning rate, the number of a draw.
// Its value is fixed at the push. All other attributes are constants of the program.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>

#include "sluice/engine/device.h"
#include "sluice/ndarray/dims.h"
#include "sluice/ndarray/dtype.h"
#include "sluice/ndarray/scalar.h"

namespace sluice {

class Attributes;

/// The value of a field. Integers are std::int64_t or std::uint64_t, whatever their size in the struct.
using FieldValue = std::variant<bool, std::int64_t, std::uint64_t, double, DType, Device, Scalar, Dims>;
/// "0.1", "f32", "(3, 4)", ...
std::string to_string(const FieldValue& value);

/// A field of an attribute struct. Plain data, read-only.
struct AttributeField {
  const char* name;
  bool slot;  ///< its value may differ from call to call; else it is a constant of the program
  FieldValue (*get)(const void* attributes);
  /// Sets the field of a struct. Throws std::bad_variant_access for a value of another type.
  void (*set)(void* attributes, const FieldValue& value);
};

namespace detail {
template <class T>
struct MemberOf;
template <class A, class T>
struct MemberOf<T A::*> {
  using Struct = A;
  using Type = T;
};
/// The alternative of FieldValue that holds a T.
template <class T>
using FieldType =
    std::conditional_t<std::is_same_v<T, bool> || !std::is_arithmetic_v<T>, T,
                       std::conditional_t<std::is_floating_point_v<T>, double,
                                          std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>>;

template <auto member>
constexpr AttributeField named(const char* name, bool slot) {
  using A = typename MemberOf<decltype(member)>::Struct;
  using T = typename MemberOf<decltype(member)>::Type;
  return {name, slot,
          [](const void* attributes) {
            return FieldValue(static_cast<FieldType<T>>(static_cast<const A*>(attributes)->*member));
          },
          [](void* attributes, const FieldValue& value) {
            static_cast<A*>(attributes)->*member = static_cast<T>(std::get<FieldType<T>>(value));
          }};
}
}  // namespace detail

/// A constant.
template <auto member>
constexpr AttributeField field(const char* name) {
  return detail::named<member>(name, false);
}
/// A slot.
template <auto member>
constexpr AttributeField slot(const char* name) {
  return detail::named<member>(name, true);
}

}  // namespace sluice
