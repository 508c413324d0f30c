// Views: arithmetic on shapes, strides and offsets. Nothing here touches elements.
#include <algorithm>
#include <vector>

#include "sluice/ndarray/view_call.h"

namespace sluice {
namespace {

int checked_axis(int axis, int rank, const char* who, const Dims& shape, const std::source_location& where) {
  const int positive = axis < 0 ? axis + rank : axis;
  if (positive < 0 || positive >= rank) {
    throw ArrayError(who, where, sluice::to_string(shape) + ": no axis " + std::to_string(axis));
  }
  return positive;
}

/// Windows that only memory has are none of an owner's array.
void refuse_owned(const NDArray& x, const char* who, const std::source_location& where) {
  const Array& array = *x.array();
  if (array.kind() == Array::Kind::owned) detail::check_memory(array, who, where);
}

/// Whether there may be someone to tell of a view. It is asked before the rest, so that a view that nobody is told of
/// costs what it cost without.
bool told() noexcept { return detail::views_are_told.load(std::memory_order_relaxed); }

}  // namespace

/// The functions for views, with and without telling interpreters and owners (view_call.h).
struct Views {
  using Where = std::source_location;

  template <bool kTold>
  [[gnu::always_inline]] static NDArray narrow(const NDArray& x, int axis, std::int64_t begin, std::int64_t end,
                                               Where where) {
    x.present("narrow", where);
    axis = checked_axis(axis, x.rank(), "narrow", x.shape_, where);
    if (begin < 0 || end < begin || end > x.shape_[axis]) {
      throw ArrayError("narrow", where,
                       sluice::to_string(x.shape_) + ": [" + std::to_string(begin) + ", " + std::to_string(end) +
                           ") on axis " + std::to_string(axis));
    }
    NDArray view = x;
    view.shape_[axis] = end - begin;
    if (end > begin) view.offset_ += begin * x.strides_[axis];
    if constexpr (kTold) {
      std::vector<Cut> cuts(static_cast<std::size_t>(x.rank()));
      cuts[static_cast<std::size_t>(axis)].begin = begin;
      detail::tell_view(view, x, ViewKind::slice, where, {}, cuts);
    }
    return view;
  }

  template <bool kTold>
  [[gnu::always_inline]] static NDArray permute(const NDArray& x, const Dims& axes, Where where) {
    x.present("permute", where);
    const auto fail = [&] {
      throw ArrayError("permute", where,
                       sluice::to_string(x.shape_) + ": axes " + sluice::to_string(axes) + "; wanted is each of its " +
                           std::to_string(x.rank()) + " axes once");
    };
    if (axes.rank() != x.rank()) fail();
    NDArray view(x.array_, {}, {}, x.offset_);
    std::uint32_t seen = 0;
    for (std::int64_t a : axes) {
      if (a < 0) a += x.rank();
      if (a < 0 || a >= x.rank() || (seen >> a & 1U) != 0) fail();
      seen |= 1U << a;
      view.shape_.push_back(x.shape_[static_cast<int>(a)]);
      view.strides_.push_back(x.strides_[static_cast<int>(a)]);
    }
    if constexpr (kTold) detail::tell_view(view, x, ViewKind::permute, where, axes);
    return view;
  }

  template <bool kTold>
  [[gnu::always_inline]] static NDArray broadcast_to(const NDArray& x, const Dims& shape, Where where) {
    x.present("broadcast_to", where);
    const auto fail = [&] {
      throw ArrayError("broadcast_to", where,
                       sluice::to_string(x.shape_) + " does not broadcast to " + sluice::to_string(shape));
    };
    if (shape.rank() < x.rank()) fail();
    check_view_shape("broadcast_to", shape, x.dtype(), where);
    NDArray view(x.array_, shape, {}, x.offset_);
    const int added = shape.rank() - x.rank();
    for (int i = 0; i < shape.rank(); ++i) {
      if (i < added || (x.shape_[i - added] == 1 && shape[i] != 1)) {
        view.strides_.push_back(0);
      } else {
        if (x.shape_[i - added] != shape[i]) fail();
        view.strides_.push_back(x.strides_[i - added]);
      }
    }
    if constexpr (kTold) detail::tell_view(view, x, ViewKind::broadcast_to, where);
    return view;
  }

  template <bool kTold>
  [[gnu::always_inline]] static NDArray squeeze_one(const NDArray& x, int axis, Where where) {
    x.present("squeeze", where);
    axis = checked_axis(axis, x.rank(), "squeeze", x.shape_, where);
    if (x.shape_[axis] != 1) {
      throw ArrayError("squeeze", where,
                       sluice::to_string(x.shape_) + ": axis " + std::to_string(axis) + " is not of size 1");
    }
    NDArray view(x.array_, {}, {}, x.offset_);
    for (int i = 0; i < x.rank(); ++i) {
      if (i == axis) continue;
      view.shape_.push_back(x.shape_[i]);
      view.strides_.push_back(x.strides_[i]);
    }
    if constexpr (kTold) detail::tell_view(view, x, ViewKind::reshape, where);
    return view;
  }

  template <bool kTold>
  [[gnu::always_inline]] static NDArray squeeze(const NDArray& x, Where where) {
    x.present("squeeze", where);
    NDArray view(x.array_, {}, {}, x.offset_);
    for (int i = 0; i < x.rank(); ++i) {
      if (x.shape_[i] == 1) continue;
      view.shape_.push_back(x.shape_[i]);
      view.strides_.push_back(x.strides_[i]);
    }
    if constexpr (kTold) detail::tell_view(view, x, ViewKind::reshape, where);
    return view;
  }

  template <bool kTold>
  [[gnu::always_inline]] static NDArray unsqueeze(const NDArray& x, int axis, Where where) {
    x.present("unsqueeze", where);
    axis = checked_axis(axis, x.rank() + 1, "unsqueeze", x.shape_, where);
    if (x.rank() == kMaxRank) {
      throw ArrayError("unsqueeze", where,
                       sluice::to_string(x.shape_) + ": a view of more than " + std::to_string(kMaxRank) + " axes");
    }
    NDArray view(x.array_, {}, {}, x.offset_);
    for (int i = 0; i <= x.rank(); ++i) {
      if (i == axis) {
        view.shape_.push_back(1);
        view.strides_.push_back(0);
      }
      if (i == x.rank()) break;
      view.shape_.push_back(x.shape_[i]);
      view.strides_.push_back(x.strides_[i]);
    }
    if constexpr (kTold) detail::tell_view(view, x, ViewKind::reshape, where);
    return view;
  }

  template <bool kTold>
  [[gnu::always_inline]] static NDArray swapaxes(const NDArray& x, int a, int b, Where where) {
    x.present("swapaxes", where);
    a = checked_axis(a, x.rank(), "swapaxes", x.shape_, where);
    b = checked_axis(b, x.rank(), "swapaxes", x.shape_, where);
    NDArray view = x;
    std::swap(view.shape_[a], view.shape_[b]);
    std::swap(view.strides_[a], view.strides_[b]);
    if constexpr (kTold) {
      Dims axes;
      for (int i = 0; i < x.rank(); ++i) axes.push_back(i == a ? b : i == b ? a : i);
      detail::tell_view(view, x, ViewKind::permute, where, axes);
    }
    return view;
  }

  template <bool kTold>
  [[gnu::always_inline]] static NDArray flip(const NDArray& x, const Axes& axes, Where where) {
    x.present("flip", where);
    Dims list = axes.list;
    for (int i = 0; axes.every && i < x.rank(); ++i) list.push_back(i);
    NDArray view = x;
    std::uint32_t seen = 0;
    if (list.too_long()) {
      throw ArrayError("flip", where, sluice::to_string(x.shape_) + ": axes " + sluice::to_string(list));
    }
    for (const std::int64_t axis : list) {
      if (axis < -kMaxRank || axis >= kMaxRank) {
        throw ArrayError("flip", where, sluice::to_string(x.shape_) + ": no axis " + std::to_string(axis));
      }
      const int at = checked_axis(static_cast<int>(axis), x.rank(), "flip", x.shape_, where);
      if ((seen >> at & 1U) != 0) {
        throw ArrayError("flip", where, sluice::to_string(x.shape_) + ": axis " + std::to_string(axis) + " twice");
      }
      seen |= 1U << at;
      if (x.shape_[at] < 2) continue;  // any step is one over one element
      if (x.count() > 0) view.offset_ += (x.shape_[at] - 1) * x.strides_[at];
      view.strides_[at] = -x.strides_[at];
    }
    if constexpr (kTold) {
      std::vector<Cut> cuts(static_cast<std::size_t>(x.rank()));
      for (int i = 0; i < x.rank(); ++i) {
        if ((seen >> i & 1U) != 0 && x.shape_[i] > 1) cuts[static_cast<std::size_t>(i)] = {x.shape_[i] - 1, -1};
      }
      detail::tell_view(view, x, ViewKind::slice, where, {}, cuts);
    }
    return view;
  }

  template <bool kTold>
  [[gnu::always_inline]] static NDArray reshape(const NDArray& x, const Dims& wanted, Where where) {
    x.present("reshape", where);
    const auto fail = [&](const char* why = "the numbers of elements differ") {
      throw ArrayError("reshape", where, sluice::to_string(x.shape_) + " to " + sluice::to_string(wanted) + ": " + why);
    };
    if (wanted.too_long()) fail(("an array has at most " + std::to_string(kMaxRank) + " axes").c_str());
    Dims shape = wanted;
    int open = -1;
    std::int64_t known = 1;
    for (int i = 0; i < shape.rank(); ++i) {
      if (shape[i] == -1 && open < 0) {
        open = i;
      } else {
        if (shape[i] == -1) fail("at most one size may be -1, which stands for what is left");
        if (shape[i] < 0) fail("a negative size");
        if (__builtin_mul_overflow(known, shape[i], &known)) fail();
      }
    }
    if (open >= 0) {
      if (known == 0 || x.count() % known != 0) fail();
      shape[open] = x.count() / known;
    }
    check_view_shape("reshape", shape, x.dtype(), where);
    if (shape.count() != x.count()) fail();
    if (x.is_contiguous()) {
      NDArray view(x.array_, shape, row_major(shape), x.offset_);
      if constexpr (kTold) detail::tell_view(view, x, ViewKind::reshape, where);
      return view;
    }
    // Axes that step evenly join; each group of old axes must then split into new ones of the same count.
    Dims strides = row_major(shape);
    int from = 0, to = 0;
    while (from < x.rank() || to < shape.rank()) {
      std::int64_t have = from < x.rank() ? x.shape_[from] : 1, want = to < shape.rank() ? shape[to] : 1;
      int from_end = std::min(from + 1, x.rank()), to_end = std::min(to + 1, shape.rank());
      while (have != want) {
        if (have < want) {
          if (from_end >= x.rank()) break;
          have *= x.shape_[from_end++];
        } else {
          if (to_end >= shape.rank()) break;
          want *= shape[to_end++];
        }
      }
      if (have != want) return x.contiguous(where).reshape(shape, where);
      std::int64_t step = 0;
      for (int i = from_end - 1, last = -1; i >= from; --i) {  // the old axes must be one even run
        if (x.shape_[i] == 1) continue;
        if (last >= 0 && x.strides_[i] != x.strides_[last] * x.shape_[last])
          return x.contiguous(where).reshape(shape, where);
        if (last < 0) step = x.strides_[i];
        last = i;
      }
      for (int i = to_end - 1; i >= to; --i) {
        strides[i] = step;
        step *= shape[i];
      }
      from = from_end;
      to = to_end;
    }
    NDArray view(x.array_, shape, strides, x.offset_);
    if constexpr (kTold) detail::tell_view(view, x, ViewKind::reshape, where);
    return view;
  }

  template <bool kTold>
  [[gnu::always_inline]] static NDArray strided(const NDArray& x, const Dims& shape, const Dims& strides,
                                                std::int64_t offset, Where where) {
    const Array& array = x.present("strided", where);
    if constexpr (kTold) refuse_owned(x, "strided", where);
    check_view_shape("strided", shape, array.dtype(), where);
    const std::int64_t first = array.base_offset(), end = first + array.shape().count();
    const bool none = shape.count() == 0;
    std::int64_t low = none ? first : offset, high = low;
    bool countable = shape.rank() == strides.rank() && !strides.too_long();
    for (int i = 0; !none && countable && i < shape.rank(); ++i) {
      std::int64_t reach = 0;
      countable = !__builtin_mul_overflow(shape[i] - 1, strides[i], &reach) &&
                  !(reach < 0 ? __builtin_add_overflow(low, reach, &low) : __builtin_add_overflow(high, reach, &high));
    }
    if (!countable || (!none && (low < first || high >= end))) {
      throw ArrayError("strided", where,
                       sluice::to_string(shape) + " with strides " + sluice::to_string(strides) + " from " +
                           std::to_string(offset) + " leaves the array of " + sluice::to_string(array.shape()));
    }
    NDArray view(x.array_, shape, strides, none ? first : offset);
    if constexpr (kTold) detail::tell_view(view, x, ViewKind::window, where);
    return view;
  }

  template <bool kTold>
  [[gnu::always_inline]] static NDArray diagonal(const NDArray& x, std::int64_t offset, int a, int b, Where where) {
    x.present("diagonal", where);
    if constexpr (kTold) refuse_owned(x, "diagonal", where);
    a = checked_axis(a, x.rank(), "diagonal", x.shape_, where);
    b = checked_axis(b, x.rank(), "diagonal", x.shape_, where);
    if (a == b) throw ArrayError("diagonal", where, sluice::to_string(x.shape_) + ": one axis twice");
    const std::int64_t rows = x.shape_[a], columns = x.shape_[b];
    std::int64_t n = 0;
    if (offset > -rows && offset < columns) {
      n = offset < 0 ? std::min(rows + offset, columns) : std::min(rows, columns - offset);
    }
    NDArray view(x.array_, {}, {}, x.offset_);
    for (int i = 0; i < x.rank(); ++i) {
      if (i == a || i == b) continue;
      view.shape_.push_back(x.shape_[i]);
      view.strides_.push_back(x.strides_[i]);
    }
    view.shape_.push_back(n);
    view.strides_.push_back(x.strides_[a] + x.strides_[b]);
    if (n > 0 && x.count() > 0) view.offset_ += offset < 0 ? -offset * x.strides_[a] : offset * x.strides_[b];
    if constexpr (kTold) detail::tell_view(view, x, ViewKind::window, where);
    return view;
  }

  template <bool kTold>
  [[gnu::always_inline]] static NDArray unfold(const NDArray& x, int axis, std::int64_t size, std::int64_t step,
                                               Where where) {
    x.present("unfold", where);
    if constexpr (kTold) refuse_owned(x, "unfold", where);
    axis = checked_axis(axis, x.rank(), "unfold", x.shape_, where);
    const auto fail = [&](const std::string& why) {
      throw ArrayError("unfold", where, sluice::to_string(x.shape_) + ": " + why);
    };
    if (size < 0 || size > x.shape_[axis]) {
      fail("windows of " + std::to_string(size) + " elements on axis " + std::to_string(axis));
    }
    if (step < 1) fail("a step of " + std::to_string(step));
    if (x.rank() == kMaxRank) fail("a view of more than " + std::to_string(kMaxRank) + " axes");
    NDArray view = x;
    view.shape_[axis] = (x.shape_[axis] - size) / step + 1;
    if (view.shape_[axis] > 1) view.strides_[axis] = x.strides_[axis] * step;
    view.shape_.push_back(size);
    view.strides_.push_back(x.strides_[axis]);
    check_view_shape("unfold", view.shape_, x.array_->dtype(), where);
    if constexpr (kTold) detail::tell_view(view, x, ViewKind::window, where);
    return view;
  }
};

namespace {
/// The same functions, told of. They stand apart, so that they cost the others no register.
template <auto kView, class... A>
[[gnu::noinline, gnu::cold]] NDArray apart(const NDArray& x, A... arguments) {
  return kView(x, arguments...);
}
}  // namespace

NDArray NDArray::narrow(int axis, std::int64_t begin, std::int64_t end, Where where) const {
  if (told()) [[unlikely]]
    return apart<&Views::narrow<true>>(*this, axis, begin, end, where);
  return Views::narrow<false>(*this, axis, begin, end, where);
}

NDArray NDArray::permute(const Dims& axes, Where where) const {
  if (told()) [[unlikely]]
    return apart<&Views::permute<true>>(*this, axes, where);
  return Views::permute<false>(*this, axes, where);
}

NDArray NDArray::broadcast_to(const Dims& shape, Where where) const {
  if (told()) [[unlikely]]
    return apart<&Views::broadcast_to<true>>(*this, shape, where);
  return Views::broadcast_to<false>(*this, shape, where);
}

NDArray NDArray::squeeze(int axis, Where where) const {
  if (told()) [[unlikely]]
    return apart<&Views::squeeze_one<true>>(*this, axis, where);
  return Views::squeeze_one<false>(*this, axis, where);
}

NDArray NDArray::squeeze(Where where) const {
  if (told()) [[unlikely]]
    return apart<&Views::squeeze<true>>(*this, where);
  return Views::squeeze<false>(*this, where);
}

NDArray NDArray::unsqueeze(int axis, Where where) const {
  if (told()) [[unlikely]]
    return apart<&Views::unsqueeze<true>>(*this, axis, where);
  return Views::unsqueeze<false>(*this, axis, where);
}

NDArray NDArray::swapaxes(int a, int b, Where where) const {
  if (told()) [[unlikely]]
    return apart<&Views::swapaxes<true>>(*this, a, b, where);
  return Views::swapaxes<false>(*this, a, b, where);
}

NDArray NDArray::flip(const Axes& axes, Where where) const {
  if (told()) [[unlikely]]
    return apart<&Views::flip<true>>(*this, axes, where);
  return Views::flip<false>(*this, axes, where);
}

NDArray NDArray::reshape(const Dims& wanted, Where where) const {
  if (told()) [[unlikely]]
    return apart<&Views::reshape<true>>(*this, wanted, where);
  return Views::reshape<false>(*this, wanted, where);
}

NDArray NDArray::strided(const Dims& shape, const Dims& strides, std::int64_t offset, Where where) const {
  if (told()) [[unlikely]]
    return apart<&Views::strided<true>>(*this, shape, strides, offset, where);
  return Views::strided<false>(*this, shape, strides, offset, where);
}

NDArray NDArray::diagonal(std::int64_t offset, int a, int b, Where where) const {
  if (told()) [[unlikely]]
    return apart<&Views::diagonal<true>>(*this, offset, a, b, where);
  return Views::diagonal<false>(*this, offset, a, b, where);
}

NDArray NDArray::unfold(int axis, std::int64_t size, std::int64_t step, Where where) const {
  if (told()) [[unlikely]]
    return apart<&Views::unfold<true>>(*this, axis, size, step, where);
  return Views::unfold<false>(*this, axis, size, step, where);
}

NDArray NDArray::transpose(Where where) const {
  present("transpose", where);
  Dims axes;
  for (int i = rank() - 1; i >= 0; --i) axes.push_back(i);
  return permute(axes, where);
}

NDArray NDArray::movedim(int from, int to, Where where) const {
  present("movedim", where);
  from = checked_axis(from, rank(), "movedim", shape_, where);
  to = checked_axis(to, rank(), "movedim", shape_, where);
  NDArray view = *this;
  for (; from < to; ++from) view = view.swapaxes(from, from + 1, where);
  for (; from > to; --from) view = view.swapaxes(from, from - 1, where);
  return view;
}

NDArray NDArray::flatten(int axis, Where where) const {
  present("flatten", where);
  if (rank() == 0) return reshape({1}, where);
  axis = checked_axis(axis, rank(), "flatten", shape_, where);
  Dims shape;
  std::int64_t rest = 1;
  for (int i = 0; i < rank(); ++i) {
    if (i < axis) {
      shape.push_back(shape_[i]);
    } else {
      rest *= shape_[i];
    }
  }
  shape.push_back(rest);
  return reshape(shape, where);
}

}  // namespace sluice
