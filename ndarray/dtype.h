// Element types: what an array's elements are, their sizes and names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

/// Element types. Arithmetic runs in f32, f64, i32 and i64; the others are stored, moved, saved and loaded.
enum class DType : std::uint8_t { f32, f64, f16, bf16, i8, u8, i32, i64, boolean };

inline constexpr int kDTypeCount = 9;

/// Bytes of one element.
constexpr std::size_t size_of(DType t) {
  constexpr std::size_t sizes[kDTypeCount] = {4, 8, 2, 2, 1, 1, 4, 8, 1};
  return sizes[static_cast<int>(t)];
}

/// "f32", "f64", "f16", "bf16", "i8", "u8", "i32", "i64", "bool".
constexpr std::string_view name_of(DType t) {
  constexpr std::string_view names[kDTypeCount] = {"f32", "f64", "f16", "bf16", "i8", "u8", "i32", "i64", "bool"};
  return names[static_cast<int>(t)];
}

constexpr bool is_floating(DType t) { return t <= DType::bf16; }
constexpr bool is_integer(DType t) { return t >= DType::i8 && t <= DType::i64; }

/// The DType of a C++ type. There is none for f16 and bf16: the types of half.h hold their bits for conversions, and
/// programs reach such elements with to_bytes, or with to(DType::f32).
template <class T>
struct dtype_of_t;
template <>
struct dtype_of_t<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct dtype_of_t<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct dtype_of_t<std::int8_t> {
  static constexpr DType value = DType::i8;
};
template <>
struct dtype_of_t<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct dtype_of_t<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct dtype_of_t<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct dtype_of_t<bool> {
  static constexpr DType value = DType::boolean;
};
template <class T>
inline constexpr DType dtype_of = dtype_of_t<T>::value;

}  // namespace sluice
