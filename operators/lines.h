// What scans, sorts and searches along an axis share in all backends: where the lines of elements lie, the order of
// elements, and the scans' functors. A functor is what the operator is; the tests judge it by formulas of their own.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "sluice/ndarray/attribute_fields.h"
#include "sluice/ndarray/dims.h"
#include "sluice/ndarray/dtype.h"
#include "sluice/operators/functors.h"

namespace sluice {

/// For operators along one axis.
struct LineAttributes {
  int axis = 0;
  bool reverse = false;   ///< scans: from the last element to the first. sort: descending. searchsorted: right side
  std::int64_t size = 0;  ///< sort: so many first elements; add_along_axis: the size of the result's axis; bincount
  static constexpr auto fields() {
    return std::array{field<&LineAttributes::axis>("axis"), field<&LineAttributes::reverse>("reverse"),
                      field<&LineAttributes::size>("size")};
  }
  friend bool operator==(const LineAttributes&, const LineAttributes&) = default;
};

/// The lines along an axis of a contiguous array: element k of line l is at first(l) + k * inner.
struct Lines {
  std::int64_t count = 1, n = 1, inner = 1;

  /// A scalar is one line of one element.
  static Lines of(const Dims& shape, int axis) {
    Lines lines;
    for (int i = 0; i < shape.rank(); ++i) {
      if (i == axis) {
        lines.n = shape[i];
      } else {
        lines.count *= shape[i];
        if (i > axis) lines.inner *= shape[i];
      }
    }
    return lines;
  }
  SLUICE_HD std::int64_t first(std::int64_t line) const { return line / inner * n * inner + line % inner; }
};

/// An element as it is compared: f16 and bf16 as f32, bool as u8.
template <class T>
SLUICE_HD auto key_of_element(T x) {
  if constexpr (std::is_same_v<T, bool>) {
    return static_cast<std::uint8_t>(x);
  } else {
    return static_cast<compute_of<T>>(x);
  }
}
/// The strict order of sorts: NaN comes last, also where they descend.
template <class K>
SLUICE_HD bool comes_before(K a, K b, bool descending) {
  if (a != a) return false;
  if (b != b) return true;
  return descending ? b < a : a < b;
}

/// The number of elements of an ascending line that come before `value`, with `right` those equal to it too.
template <class T, class K>
SLUICE_HD std::int64_t place_in_order(const T* line, std::int64_t n, K value, bool right) {
  std::int64_t begin = 0, end = n;
  while (begin < end) {
    const std::int64_t middle = begin + (end - begin) / 2;
    const K key = key_of_element(line[middle]);
    if (right ? !comes_before(value, key, false) : comes_before(key, value, false)) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

/// Scans. A policy has: Item, the result over some elements; load(a, b, place), the item of one element of the inputs
/// (b is there with two of them); join(earlier, later); value(item), and place(item) with two outputs. `splits`: a line
/// may be scanned in pieces, whose items are joined. Where that may overflow and the scan in order does not, it is
/// false.
namespace scans {

/// Totals are kept in 64 bits.
template <class T>
using Wide = std::conditional_t<is_floating(dtype_of<T>), double, std::int64_t>;
/// Elements that a piece has, if a backend chooses nothing else for a line's length. The pieces depend on nothing else,
/// and so do the results' bits.
inline constexpr std::int64_t kPiece = 4096;

template <class T>
struct OfOne {
  using Item = Wide<T>;
  static constexpr bool two_inputs = false, two_outputs = false;
  SLUICE_HD static Item load(T a, T, std::int64_t) { return static_cast<Item>(static_cast<compute_of<T>>(a)); }
  SLUICE_HD static Item value(Item item) { return item; }
};
template <class T>
struct CumSum : OfOne<T> {
  static constexpr bool splits = true;
  SLUICE_HD static Wide<T> join(Wide<T> a, Wide<T> b) { return functors::plus(a, b); }
};
template <class T>
struct CumProd : OfOne<T> {
  static constexpr bool splits = false;  // the product of a piece may be infinite where a zero comes before it
  SLUICE_HD static Wide<T> join(Wide<T> a, Wide<T> b) { return functors::times(a, b); }
};
template <class T>
struct LogCumSumExp : OfOne<T> {
  static constexpr bool splits = true;
  SLUICE_HD static Wide<T> join(Wide<T> a, Wide<T> b) { return functors::log_add(a, b); }
};

/// The first largest (or smallest) element so far and its place; NaN counts as largest (smallest).
template <class T, bool smallest>
struct CumBest {
  struct alignas(16) Item {  // without gaps, so that copies of it copy nothing that was not written
    Wide<T> value;
    std::int64_t place;
  };
  static constexpr bool two_inputs = false, two_outputs = true, splits = true;
  SLUICE_HD static Item load(T a, T, std::int64_t place) {
    return {static_cast<Wide<T>>(static_cast<compute_of<T>>(a)), place};
  }
  SLUICE_HD static Item join(const Item& a, const Item& b) {
    if (a.value != a.value) return a;
    return b.value != b.value || (smallest ? b.value < a.value : b.value > a.value) ? b : a;
  }
  SLUICE_HD static Wide<T> value(const Item& item) { return item.value; }
  SLUICE_HD static std::int64_t place(const Item& item) { return item.place; }
};
template <class T>
using CumMax = CumBest<T, false>;
template <class T>
using CumMin = CumBest<T, true>;

/// y[k] = a[k] y[k - 1] + b[k].
template <class T>
struct Linear {
  struct alignas(16) Item {
    Wide<T> factor, value;
  };
  static constexpr bool two_inputs = true, two_outputs = false;
  static constexpr bool splits = false;  // the product of a piece's factors may be infinite where they meet a zero
  SLUICE_HD static Item load(T a, T b, std::int64_t) {
    return {static_cast<Wide<T>>(static_cast<compute_of<T>>(a)), static_cast<Wide<T>>(static_cast<compute_of<T>>(b))};
  }
  SLUICE_HD static Item join(const Item& a, const Item& b) {
    return {b.factor, functors::plus(functors::times(b.factor, a.value), b.value)};
  }
  SLUICE_HD static Wide<T> value(const Item& item) { return item.value; }
};

/// A total as an element; a double goes to f16 and bf16 by way of f32.
template <class T>
SLUICE_HD T element_of_total(Wide<T> total) {
  return static_cast<T>(static_cast<compute_of<T>>(total));
}

/// A scan's operands. Elements are counted in the scan's direction.
template <template <class> class Policy, class T>
struct Operands {
  using P = Policy<T>;
  using Item = typename P::Item;
  T* y;
  std::int64_t* places;  ///< null without a second output
  const T* a;
  const T* b;  ///< null without a second input
  Lines lines;
  bool reverse;
  std::int64_t piece_size = kPiece;

  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(a);
    if (places != nullptr) visit(places);
    if (b != nullptr) visit(b);
  }
  /// Visits the items over the elements before and with each one of [begin, end), joined with `before` if that is not
  /// null. Returns the last.
  template <class Visit>
  SLUICE_HD Item pass(std::int64_t line, std::int64_t begin, std::int64_t end, const Item* before, Visit visit) const {
    const std::int64_t first = lines.first(line);
    Item item{};
    bool has = before != nullptr;
    if (has) item = *before;
    for (std::int64_t k = begin; k < end; ++k) {
      const std::int64_t place = reverse ? lines.n - 1 - k : k, at = first + place * lines.inner;
      const Item next = P::load(a[at], b != nullptr ? b[at] : a[at], place);
      item = has ? P::join(item, next) : next;
      has = true;
      visit(at, item);
    }
    return item;
  }
  SLUICE_HD Item total(std::int64_t line, std::int64_t begin, std::int64_t end) const {
    return pass(line, begin, end, nullptr, [](std::int64_t, const Item&) {});
  }
  SLUICE_HD void write(std::int64_t line, std::int64_t begin, std::int64_t end, const Item* before) const {
    pass(line, begin, end, before, [this](std::int64_t at, const Item& item) {
      y[at] = element_of_total<T>(P::value(item));
      if constexpr (P::two_outputs) places[at] = P::place(item);
    });
  }
  SLUICE_HD std::int64_t pieces() const { return P::splits ? (lines.n + piece_size - 1) / piece_size : 1; }
  SLUICE_HD std::int64_t begin(std::int64_t piece) const { return piece * piece_size; }
  SLUICE_HD std::int64_t end(std::int64_t piece) const {
    return piece + 1 == pieces() ? lines.n : (piece + 1) * piece_size;
  }
};

template <template <class> class Policy, class T, class Context>
Operands<Policy, T> operands_of(const Context& c) {
  using P = Policy<T>;
  const auto& a = c.template attributes<LineAttributes>();
  Operands<Policy, T> o{};
  o.y = c.output(0).template as<T>();
  if constexpr (P::two_outputs) o.places = c.output(1).template as<std::int64_t>();
  o.a = c.input(0).template as<T>();
  if constexpr (P::two_inputs) o.b = c.input(1).template as<T>();
  o.lines = Lines::of(c.input(0).shape, a.axis);
  o.reverse = a.reverse;
  return o;
}

}  // namespace scans
}  // namespace sluice
