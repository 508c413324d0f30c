// Element types. One table says which there are, and everything else about them is made from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <type_traits>

#include "sluice/ndarray/half.h"

namespace sluice {

/// The table of element types: X(name in DType, C++ type of an element, name in texts, kind, the type in which kernels
/// compute). The last is std::nullopt for bool, which has no arithmetic: it is stored, moved, compared, converted,
/// saved and loaded.
#define SLUICE_DTYPES(X)                           \
  X(f32, float, "f32", floating, DType::f32)       \
  X(f64, double, "f64", floating, DType::f64)      \
  X(f16, Float16, "f16", floating, DType::f32)     \
  X(bf16, BFloat16, "bf16", floating, DType::f32)  \
  X(i8, std::int8_t, "i8", integer, DType::i8)     \
  X(u8, std::uint8_t, "u8", integer, DType::u8)    \
  X(i32, std::int32_t, "i32", integer, DType::i32) \
  X(i64, std::int64_t, "i64", integer, DType::i64) \
  X(boolean, bool, "bool", boolean, std::nullopt)

#define SLUICE_DTYPE_NAME(name, ...) name,
enum class DType : std::uint8_t { SLUICE_DTYPES(SLUICE_DTYPE_NAME) };
#undef SLUICE_DTYPE_NAME

enum class DTypeKind : std::uint8_t { floating, integer, boolean };

/// A line of the table.
struct DTypeInfo {
  std::string_view name;  ///< "f32", "bf16", "bool", ...
  std::size_t size;       ///< bytes of one element
  DTypeKind kind;
  std::optional<DType> compute;  ///< the type of intermediate results; empty if there is no arithmetic
};

#define SLUICE_DTYPE_INFO(name, type, text, kind, compute) {text, sizeof(type), DTypeKind::kind, compute},
inline constexpr DTypeInfo kDTypes[] = {SLUICE_DTYPES(SLUICE_DTYPE_INFO)};
#undef SLUICE_DTYPE_INFO
inline constexpr int kDTypeCount = static_cast<int>(sizeof(kDTypes) / sizeof(kDTypes[0]));

constexpr const DTypeInfo& info_of(DType t) { return kDTypes[static_cast<int>(t)]; }
/// Bytes of one element.
constexpr std::size_t size_of(DType t) { return info_of(t).size; }
constexpr std::string_view name_of(DType t) { return info_of(t).name; }
constexpr bool is_floating(DType t) { return info_of(t).kind == DTypeKind::floating; }
constexpr bool is_integer(DType t) { return info_of(t).kind == DTypeKind::integer; }
/// True for integers and bool.
constexpr bool has_bits(DType t) { return !is_floating(t); }
constexpr bool has_arithmetic(DType t) { return info_of(t).compute.has_value(); }
/// True if kernels compute in the type itself: for f32 f64 i8 u8 i32 i64.
constexpr bool computes_in_itself(DType t) { return info_of(t).compute == t; }
/// True where sums and products of many elements fit as a rule: for all with arithmetic but i8 and u8.
constexpr bool has_sums(DType t) { return has_arithmetic(t) && (is_floating(t) || size_of(t) >= 4); }

/// The largest finite number of a floating dtype.
constexpr double largest_number(DType t) {
  switch (t) {
    case DType::f16:
      return 65504;
    case DType::bf16:
      return 0x1.fep127;
    case DType::f32:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::max();
  }
}

/// The dtype in which operators on arrays of both compute. A floating dtype beats integers and bool; of two floating
/// ones, or of two integers, the wider wins; i8 with u8 gives i32; bool gives way to all. Empty for f16 with bf16: none
/// of them holds the other.
constexpr std::optional<DType> promote(DType a, DType b) {
  if (a == b) return a;
  const auto rank = [](DType t) { return is_floating(t) ? 2 : is_integer(t) ? 1 : 0; };
  if (rank(a) != rank(b)) return rank(a) > rank(b) ? a : b;
  if (size_of(a) != size_of(b)) return size_of(a) > size_of(b) ? a : b;
  if (is_floating(a)) return std::nullopt;
  return DType::i32;
}

/// The DType of a C++ type.
template <class T>
struct dtype_of_t;
/// The C++ type of an element of a DType.
template <DType t>
struct element_of_t;
#define SLUICE_DTYPE_TYPES(name, type, ...)     \
  template <>                                   \
  struct dtype_of_t<type> {                     \
    static constexpr DType value = DType::name; \
  };                                            \
  template <>                                   \
  struct element_of_t<DType::name> {            \
    using type_ = type;                         \
  };
SLUICE_DTYPES(SLUICE_DTYPE_TYPES)
#undef SLUICE_DTYPE_TYPES
template <class T>
inline constexpr DType dtype_of = dtype_of_t<T>::value;
template <DType t>
using element_of = typename element_of_t<t>::type_;

/// The C++ type in which kernels compute with elements of type T: float for Float16 and BFloat16, else T itself.
template <class T>
using compute_of = element_of<info_of(dtype_of<T>).compute.value_or(dtype_of<T>)>;

/// Calls f.template operator()<T>() with the C++ type T of a dtype.
template <class F>
void with_type(DType dtype, F f) {
  switch (dtype) {
#define SLUICE_DTYPE_CASE(name, type, ...) \
  case DType::name:                        \
    return f.template operator()<type>();
    SLUICE_DTYPES(SLUICE_DTYPE_CASE)
#undef SLUICE_DTYPE_CASE
  }
}

}  // namespace sluice
