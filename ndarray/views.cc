// Views by indices, and those that turn, cut and fold axes. Nothing here touches elements.
#include <algorithm>

#include "sluice/ndarray/nd_array.h"

namespace sluice {
namespace {

int checked_axis(int axis, int rank, const char* who, const Dims& shape, const std::source_location& where) {
  const int positive = axis < 0 ? axis + rank : axis;
  if (positive < 0 || positive >= rank) {
    throw ArrayError(who, where, sluice::to_string(shape) + ": no axis " + std::to_string(axis));
  }
  return positive;
}

}  // namespace

NDArray NDArray::index_view(std::span<const Index> index, Where where) const {
  present("index", where);
  const auto fail = [&](const std::string& why) {
    throw ArrayError("index", where, sluice::to_string(shape_) + ": " + why);
  };
  int taken = 0, added = 0, dropped = 0, ellipses = 0;
  for (const Index& ix : index) {
    added += ix.kind == Index::Kind::new_axis;
    ellipses += ix.kind == Index::Kind::the_rest;
    dropped += ix.kind == Index::Kind::position;
  }
  taken = static_cast<int>(index.size()) - added - ellipses;
  if (taken > rank()) fail(std::to_string(taken) + " indices");
  if (ellipses > 1) fail("more than one ellipsis");
  if (rank() - dropped + added > kMaxRank) fail("a view of more than " + std::to_string(kMaxRank) + " axes");
  NDArray view(array_, {}, {}, offset_);
  int i = 0;
  const auto keep = [&](int axes) {
    for (; axes > 0; --axes, ++i) {
      view.shape_.push_back(shape_[i]);
      view.strides_.push_back(strides_[i]);
    }
  };
  for (const Index& ix : index) {
    if (ix.kind == Index::Kind::new_axis) {
      view.shape_.push_back(1);
      view.strides_.push_back(0);
      continue;
    }
    if (ix.kind == Index::Kind::the_rest) {
      keep(rank() - taken);
      continue;
    }
    if (ix.kind == Index::Kind::whole) {
      keep(1);
      continue;
    }
    const std::int64_t n = shape_[i];
    if (ix.kind == Index::Kind::position) {
      const std::int64_t at = ix.position < 0 ? ix.position + n : ix.position;
      if (at < 0 || at >= n) fail("index " + std::to_string(ix.position) + " on axis " + std::to_string(i));
      view.offset_ += at * strides_[i];
      ++i;
      continue;
    }
    const std::int64_t step = ix.range.step;
    if (step == 0) fail("a slice with step 0");
    const auto clamp = [&](std::optional<std::int64_t> bound, std::int64_t missing) {
      if (!bound) return missing;
      const std::int64_t at = *bound < 0 ? *bound + n : *bound;
      return step > 0 ? std::clamp<std::int64_t>(at, 0, n) : std::clamp<std::int64_t>(at, -1, n - 1);
    };
    const std::int64_t begin = clamp(ix.range.begin, step > 0 ? 0 : n - 1);
    const std::int64_t end = clamp(ix.range.end, step > 0 ? n : -1);
    const std::int64_t span = step > 0 ? end - begin : begin - end;
    const std::uint64_t pace = step > 0 ? static_cast<std::uint64_t>(step) : 0 - static_cast<std::uint64_t>(step);
    const std::int64_t length =
        span <= 0 ? 0 : static_cast<std::int64_t>(static_cast<std::uint64_t>(span - 1) / pace) + 1;
    view.shape_.push_back(length);
    view.strides_.push_back(length > 1 ? strides_[i] * step : strides_[i]);  // any step is one over one element
    if (length > 0) view.offset_ += begin * strides_[i];
    ++i;
  }
  keep(rank() - i);
  return view;
}

NDArray NDArray::squeeze(Where where) const {
  present("squeeze", where);
  NDArray view(array_, {}, {}, offset_);
  for (int i = 0; i < rank(); ++i) {
    if (shape_[i] == 1) continue;
    view.shape_.push_back(shape_[i]);
    view.strides_.push_back(strides_[i]);
  }
  return view;
}

NDArray NDArray::swapaxes(int a, int b, Where where) const {
  present("swapaxes", where);
  a = checked_axis(a, rank(), "swapaxes", shape_, where);
  b = checked_axis(b, rank(), "swapaxes", shape_, where);
  NDArray view = *this;
  std::swap(view.shape_[a], view.shape_[b]);
  std::swap(view.strides_[a], view.strides_[b]);
  return view;
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

NDArray NDArray::flip(const Axes& axes, Where where) const {
  present("flip", where);
  Dims list = axes.list;
  for (int i = 0; axes.every && i < rank(); ++i) list.push_back(i);
  NDArray view = *this;
  std::uint32_t seen = 0;
  if (list.too_long()) {
    throw ArrayError("flip", where, sluice::to_string(shape_) + ": axes " + sluice::to_string(list));
  }
  for (const std::int64_t axis : list) {
    if (axis < -kMaxRank || axis >= kMaxRank) {
      throw ArrayError("flip", where, sluice::to_string(shape_) + ": no axis " + std::to_string(axis));
    }
    const int at = checked_axis(static_cast<int>(axis), rank(), "flip", shape_, where);
    if ((seen >> at & 1U) != 0) {
      throw ArrayError("flip", where, sluice::to_string(shape_) + ": axis " + std::to_string(axis) + " twice");
    }
    seen |= 1U << at;
    if (shape_[at] < 2) continue;  // any step is one over one element
    if (count() > 0) view.offset_ += (shape_[at] - 1) * strides_[at];
    view.strides_[at] = -strides_[at];
  }
  return view;
}

NDArray NDArray::diagonal(std::int64_t offset, int a, int b, Where where) const {
  present("diagonal", where);
  a = checked_axis(a, rank(), "diagonal", shape_, where);
  b = checked_axis(b, rank(), "diagonal", shape_, where);
  if (a == b) throw ArrayError("diagonal", where, sluice::to_string(shape_) + ": one axis twice");
  const std::int64_t rows = shape_[a], columns = shape_[b];
  std::int64_t n = 0;
  if (offset > -rows && offset < columns) {
    n = offset < 0 ? std::min(rows + offset, columns) : std::min(rows, columns - offset);
  }
  NDArray view(array_, {}, {}, offset_);
  for (int i = 0; i < rank(); ++i) {
    if (i == a || i == b) continue;
    view.shape_.push_back(shape_[i]);
    view.strides_.push_back(strides_[i]);
  }
  view.shape_.push_back(n);
  view.strides_.push_back(strides_[a] + strides_[b]);
  if (n > 0 && count() > 0) view.offset_ += offset < 0 ? -offset * strides_[a] : offset * strides_[b];
  return view;
}

NDArray NDArray::unfold(int axis, std::int64_t size, std::int64_t step, Where where) const {
  present("unfold", where);
  axis = checked_axis(axis, rank(), "unfold", shape_, where);
  const auto fail = [&](const std::string& why) {
    throw ArrayError("unfold", where, sluice::to_string(shape_) + ": " + why);
  };
  if (size < 0 || size > shape_[axis]) {
    fail("windows of " + std::to_string(size) + " elements on axis " + std::to_string(axis));
  }
  if (step < 1) fail("a step of " + std::to_string(step));
  if (rank() == kMaxRank) fail("a view of more than " + std::to_string(kMaxRank) + " axes");
  NDArray view = *this;
  view.shape_[axis] = (shape_[axis] - size) / step + 1;
  if (view.shape_[axis] > 1) view.strides_[axis] = strides_[axis] * step;
  view.shape_.push_back(size);
  view.strides_.push_back(strides_[axis]);
  check_view_shape("unfold", view.shape_, array_->dtype(), where);
  return view;
}

}  // namespace sluice
