// Views by indices. Nothing here touches elements.
#include <algorithm>
#include <vector>

#include "sluice/ndarray/view_call.h"

namespace sluice {
namespace {

struct Elements {
  std::int64_t begin, step, length;
};

/// Which elements of an axis of n a slice has.
[[gnu::always_inline]] inline Elements elements_of(const Slice& range, std::int64_t n) {
  const std::int64_t step = range.step;
  const auto clamp = [&](std::optional<std::int64_t> bound, std::int64_t missing) {
    if (!bound) return missing;
    const std::int64_t at = *bound < 0 ? *bound + n : *bound;
    return step > 0 ? std::clamp<std::int64_t>(at, 0, n) : std::clamp<std::int64_t>(at, -1, n - 1);
  };
  const std::int64_t begin = clamp(range.begin, step > 0 ? 0 : n - 1);
  const std::int64_t end = clamp(range.end, step > 0 ? n : -1);
  const std::int64_t span = step > 0 ? end - begin : begin - end;
  const std::uint64_t pace = step > 0 ? static_cast<std::uint64_t>(step) : 0 - static_cast<std::uint64_t>(step);
  const std::int64_t length =
      span <= 0 ? 0 : static_cast<std::int64_t>(static_cast<std::uint64_t>(span - 1) / pace) + 1;
  return {begin, step, length};
}

/// An index that was checked, as views: what it cuts, and then the axes that it drops or adds.
void tell_index(NDArray& view, const NDArray& of, std::span<const Index> index, const std::source_location& where) {
  std::vector<Cut> cuts;
  Dims shape, strides;
  const auto cut = [&](Cut made, std::int64_t size) {
    const std::int64_t stride = of.strides()[static_cast<int>(cuts.size())];
    cuts.push_back({size > 0 ? made.begin : 0, size > 1 ? made.step : 1});
    shape.push_back(size);
    strides.push_back(size > 1 ? stride * made.step : stride);
  };
  const auto keep = [&](int axes) {
    for (; axes > 0; --axes) cut({}, of.shape()[static_cast<int>(cuts.size())]);
  };
  int taken = 0;
  for (const Index& ix : index) taken += ix.kind != Index::Kind::new_axis && ix.kind != Index::Kind::the_rest;
  for (const Index& ix : index) {
    if (ix.kind == Index::Kind::new_axis) continue;
    if (ix.kind == Index::Kind::the_rest) {
      keep(of.rank() - taken);
      continue;
    }
    if (ix.kind == Index::Kind::whole) {
      keep(1);
      continue;
    }
    const std::int64_t n = of.shape()[static_cast<int>(cuts.size())];
    if (ix.kind == Index::Kind::position) {
      cut({ix.position < 0 ? ix.position + n : ix.position, 1}, 1);
      continue;
    }
    const auto [begin, step, length] = elements_of(ix.range, n);
    cut({begin, step}, length);
  }
  keep(of.rank() - static_cast<int>(cuts.size()));
  const bool cuts_any =
      !(shape == of.shape()) || std::any_of(cuts.begin(), cuts.end(), [](const Cut& c) { return !(c == Cut{}); });
  NDArray part(of.array(), shape, strides, view.offset());
  if (cuts_any) detail::tell_view(part, of, ViewKind::slice, where, {}, cuts);
  if (shape == view.shape()) {
    if (cuts_any) view = part;
  } else if (of.array()->kind() == Array::Kind::owned) {
    view = (cuts_any ? part : of).reshape(view.shape(), where);
  } else {
    detail::tell_view(view, cuts_any ? part : of, ViewKind::reshape, where);
  }
}

}  // namespace

/// index_view with and without telling interpreters and owners (view_call.h).
struct IndexViews {
  template <bool kTold>
  [[gnu::always_inline]] static NDArray of(const NDArray& x, std::span<const Index> index, std::source_location where) {
    x.present("index", where);
    const auto fail = [&](const std::string& why) {
      throw ArrayError("index", where, sluice::to_string(x.shape_) + ": " + why);
    };
    int taken = 0, added = 0, dropped = 0, ellipses = 0;
    for (const Index& ix : index) {
      added += ix.kind == Index::Kind::new_axis;
      ellipses += ix.kind == Index::Kind::the_rest;
      dropped += ix.kind == Index::Kind::position;
    }
    taken = static_cast<int>(index.size()) - added - ellipses;
    if (taken > x.rank()) fail(std::to_string(taken) + " indices");
    if (ellipses > 1) fail("more than one ellipsis");
    if (x.rank() - dropped + added > kMaxRank) fail("a view of more than " + std::to_string(kMaxRank) + " axes");
    NDArray view(x.array_, {}, {}, x.offset_);
    int i = 0;
    const auto keep = [&](int axes) {
      for (; axes > 0; --axes, ++i) {
        view.shape_.push_back(x.shape_[i]);
        view.strides_.push_back(x.strides_[i]);
      }
    };
    for (const Index& ix : index) {
      if (ix.kind == Index::Kind::new_axis) {
        view.shape_.push_back(1);
        view.strides_.push_back(0);
        continue;
      }
      if (ix.kind == Index::Kind::the_rest) {
        keep(x.rank() - taken);
        continue;
      }
      if (ix.kind == Index::Kind::whole) {
        keep(1);
        continue;
      }
      const std::int64_t n = x.shape_[i];
      if (ix.kind == Index::Kind::position) {
        const std::int64_t at = ix.position < 0 ? ix.position + n : ix.position;
        if (at < 0 || at >= n) fail("index " + std::to_string(ix.position) + " on axis " + std::to_string(i));
        view.offset_ += at * x.strides_[i];
        ++i;
        continue;
      }
      if (ix.range.step == 0) fail("a slice with step 0");
      const auto [begin, step, length] = elements_of(ix.range, n);
      view.shape_.push_back(length);
      view.strides_.push_back(length > 1 ? x.strides_[i] * step : x.strides_[i]);  // any step is one over one element
      if (length > 0) view.offset_ += begin * x.strides_[i];
      ++i;
    }
    keep(x.rank() - i);
    if constexpr (kTold) tell_index(view, x, index, where);
    return view;
  }
};

namespace {
[[gnu::noinline, gnu::cold]] NDArray apart(const NDArray& x, std::span<const Index> index, std::source_location where) {
  return IndexViews::of<true>(x, index, where);
}
}  // namespace

NDArray NDArray::index_view(std::span<const Index> index, Where where) const {
  if (detail::views_are_told.load(std::memory_order_relaxed)) [[unlikely]]
    return apart(*this, index, where);
  return IndexViews::of<false>(*this, index, where);
}

}  // namespace sluice
