// Slices: the index arguments of x(...).
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <source_location>

#include "sluice/ndarray/dims.h"

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
class NDArray;
struct Operand;
struct Axes;
struct ReduceOptions;

/// The whole axis. all(x, axes, options) is an operator: operators/reduction.h has it.
inline constexpr struct All {
  NDArray operator()(const Operand& x) const;
  NDArray operator()(const Operand& x, const Axes& axes) const;
  NDArray operator()(const Operand& x, const Axes& axes, const ReduceOptions& options) const;
} all{};
/// A new axis of size 1, at this place of the indices.
inline constexpr struct NewAxis {
} newaxis{};
/// As many `all` as the indices beside it leave axes. At most one among the indices.
inline constexpr struct Ellipsis {
} ellipsis{};

/// The axes of an operator that works along some: one, or several, as 0 or {0, -1}, where negative axes count from the
/// last; `all`; or none, {}.
struct Axes {
  bool every = false;
  Dims list;
  Axes(All) : every(true) {}  // NOLINT: made by conversion
  template <std::integral T>
  requires(!std::same_as<T, bool>) Axes(T axis) {  // NOLINT
    list.push_back(static_cast<std::int64_t>(axis));
  }
  Axes(std::initializer_list<std::int64_t> axes) : list(axes) {}  // NOLINT
  Axes(const Dims& axes) : list(axes) {}                          // NOLINT
};

/// One index of x(...): a position (drops the axis), a Slice, `all`, `newaxis` or `ellipsis`; and the place of the
/// call, for errors.
struct Index {
  using Where = std::source_location;
  enum class Kind : std::uint8_t { whole, position, range, new_axis, the_rest } kind = Kind::whole;
  std::int64_t position = 0;
  Slice range{};
  Where where;
  template <std::integral T>
  requires(!std::same_as<T, bool>) Index(T i, Where w = Where::current())  // NOLINT: made by conversion
      : kind(Kind::position), position(static_cast<std::int64_t>(i)), where(w) {}
  Index(Slice s, Where w = Where::current()) : kind(Kind::range), range(s), where(w) {}  // NOLINT
  Index(All, Where w = Where::current()) : where(w) {}                                   // NOLINT
  Index(NewAxis, Where w = Where::current()) : kind(Kind::new_axis), where(w) {}         // NOLINT
  Index(Ellipsis, Where w = Where::current()) : kind(Kind::the_rest), where(w) {}        // NOLINT
};

}  // namespace sluice
