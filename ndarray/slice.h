// Slices: the index arguments of x(...).
#pragma once

#include <cstdint>
#include <optional>

namespace sluice {

/// Elements begin, begin + step, ... before end, as NumPy's begin:end:step: negative bounds count from the end, bounds
/// beyond the axis are cut, a missing bound is the end of the axis. step is not 0.
struct Slice {
  std::optional<std::int64_t> begin;
  std::optional<std::int64_t> end;
  std::int64_t step = 1;
};

inline Slice slice(std::int64_t begin, std::int64_t end, std::int64_t step = 1) { return {begin, end, step}; }
/// From `begin` to the end of the axis.
inline Slice slice_from(std::int64_t begin, std::int64_t step = 1) { return {begin, std::nullopt, step}; }
/// The axis backwards.
inline Slice reversed() { return {std::nullopt, std::nullopt, -1}; }
/// The whole axis.
inline constexpr struct All {
} all{};

/// One index of x(...): a position (drops the axis), a Slice, or `all`.
struct Index {
  enum class Kind : std::uint8_t { whole, position, range } kind = Kind::whole;
  std::int64_t position = 0;
  Slice range{};
  Index(int i) : kind(Kind::position), position(i) {}           // NOLINT(google-explicit-constructor)
  Index(std::int64_t i) : kind(Kind::position), position(i) {}  // NOLINT(google-explicit-constructor)
  Index(Slice s) : kind(Kind::range), range(s) {}               // NOLINT(google-explicit-constructor)
  Index(All) {}                                                 // NOLINT(google-explicit-constructor)
};

}  // namespace sluice
