#include "sluice/autograd/terms.h"

#include <algorithm>
#include <utility>

#include "sluice/operators/add_n.h"
#include "sluice/operators/elementwise.h"

namespace sluice::autograd {
namespace {

constexpr int kMostTerms = 16;          // part of what gradients.h says of the order of sums
constexpr std::size_t kMostBoxes = 64;  // each new window is compared with all

/// Whether the window shows less than the array.
bool is_part(const Window& window) {
  std::int64_t elements = 1;
  for (int i = 0; i < window.shape.rank(); ++i) elements *= window.strides[i] == 0 ? 1 : window.shape[i];
  return elements < window.base.count();
}

bool is_plain(const NDArray& x) { return x.array()->kind() != Array::Kind::owned; }

}  // namespace

void add_term(std::vector<NDArray>& youngest_first, NDArray gradient, const std::source_location& where) {
  youngest_first.push_back(std::move(gradient));
  if (youngest_first.size() == kMostTerms) youngest_first = {total(youngest_first, where)};
}

NDArray total(std::vector<NDArray>& youngest_first, const std::source_location& where) {
  if (youngest_first.size() == 1) return youngest_first[0];
  std::reverse(youngest_first.begin(), youngest_first.end());
  return add_n(youngest_first, where);
}

// ---- windows that share no element

Windows::Range Windows::reach(const Window& window) {
  Range reached{window.offset, window.offset};
  for (int i = 0; i < window.shape.rank(); ++i) {
    const std::int64_t way = window.strides[i] * (window.shape[i] - 1);
    (way < 0 ? reached.first : reached.last) += way;
  }
  return reached;
}

bool Windows::is_one_piece(const Window& window) {
  std::int64_t elements = 1;
  for (int i = window.shape.rank(); i-- > 0;) {
    if (window.shape[i] == 1 || window.strides[i] == 0) continue;
    if (window.strides[i] != elements) return false;
    elements *= window.shape[i];
  }
  return true;
}

bool Windows::find_box(const Window& window, Box& box) {
  const auto rank = static_cast<std::size_t>(window.base.rank());
  std::vector<std::int64_t> steps(rank);
  box.resize(rank);
  std::int64_t elements = 1;
  for (std::size_t a = rank; a-- > 0;) {
    const std::int64_t size = window.base[static_cast<int>(a)], at = window.offset / elements % size;
    steps[a] = elements;
    box[a] = {at, at};
    elements *= size;
  }
  std::vector<bool> used(rank);
  for (int i = 0; i < window.shape.rank(); ++i) {
    const std::int64_t stride = window.strides[i], way = window.shape[i] - 1;
    if (way == 0 || stride == 0) continue;
    std::size_t a = 0;  // the outermost axis whose step divides the stride
    while (a < rank && stride % steps[a] != 0) ++a;
    if (a == rank || used[a]) return false;
    used[a] = true;
    const std::int64_t reached = stride / steps[a] * way;
    (reached < 0 ? box[a].first : box[a].last) += reached;
    if (box[a].first < 0 || box[a].last >= window.base[static_cast<int>(a)]) return false;
  }
  return true;
}

bool Windows::join(Box& box, const Box& other) {
  std::size_t differs = box.size();
  for (std::size_t a = 0; a < box.size(); ++a) {
    if (box[a].first == other[a].first && box[a].last == other[a].last) continue;
    if (differs < box.size()) return false;
    differs = a;
  }
  if (differs == box.size()) return false;
  Range &range = box[differs], with = other[differs];
  if (range.last + 1 != with.first && with.last + 1 != range.first) return false;
  range = {std::min(range.first, with.first), std::max(range.last, with.last)};
  return true;
}

bool Windows::take(const Window& window) {
  if (window.shape.count() == 0) return true;
  Box box;
  const bool boxed = find_box(window, box);
  if (!boxed && !is_one_piece(window)) return false;
  const Range reached = reach(window);
  auto at = std::lower_bound(ranges_.begin(), ranges_.end(), reached.first,
                             [](const Range& r, std::int64_t first) { return r.last < first; });
  if (at != ranges_.end() && at->first <= reached.last) {  // they may lie between each other
    if (!boxed || !has_boxes_) return false;
    const bool apart = std::ranges::all_of(boxes_, [&](const Box& other) {
      for (std::size_t a = 0; a < box.size(); ++a) {
        if (box[a].last < other[a].first || box[a].first > other[a].last) return true;
      }
      return false;
    });
    if (!apart) return false;
  }
  if (has_boxes_ && boxed && (boxes_.empty() || !join(boxes_.back(), box))) boxes_.push_back(std::move(box));
  if (!boxed || boxes_.size() > kMostBoxes) {
    has_boxes_ = false;
    boxes_.clear();
  }
  Range joined = reached;
  auto end = at;
  for (; end != ranges_.end() && end->first <= joined.last + 1; ++end) {
    joined = {std::min(joined.first, end->first), std::max(joined.last, end->last)};
  }
  if (at != ranges_.begin() && std::prev(at)->last + 1 == joined.first) joined.first = (--at)->first;
  ranges_.insert(ranges_.erase(at, end), joined);
  return true;
}

// ---- terms

void Terms::add(NDArray gradient, const std::source_location& where) {
  close();
  list_.push_back(std::move(gradient));
  count(where);
}

void Terms::add(const NDArray& gradient, const Window& window, const std::source_location& where) {
  if (open_ && is_plain(gradient) && open_->taken.take(window)) {
    // -0 becomes 0, as it does where it is added to others.
    if (!std::exchange(open_->several, true)) open_->array += ScalarOperand(0, where);
    const Unfolded part = unfold(gradient, window, where);
    NDArray place =
        open_->array.strided(part.gradient.shape(), part.strides, open_->array.offset() + window.offset, where);
    place += {part.gradient, where};
  } else {
    close();
    NDArray whole = fold(gradient, window, where);
    auto fresh = std::make_unique<Open>();
    if (is_part(window) && is_plain(whole) && fresh->taken.take(window)) {
      fresh->array = std::move(whole);
      open_ = std::move(fresh);
    } else {
      list_.push_back(std::move(whole));
    }
  }
  count(where);
}

/// Of windows alone there is one array however many they are.
void Terms::count(const std::source_location& where) {
  if (++count_ < kMostTerms) return;
  count_ = 1;
  if (list_.empty()) return;
  close();
  list_ = {total(list_, where)};
}

void Terms::close() {
  if (!open_) return;
  list_.push_back(std::move(open_->array));
  open_.reset();
}

NDArray Terms::take_total(const std::source_location& where) {
  close();
  count_ = 0;
  NDArray sum = total(list_, where);
  list_.clear();
  return sum;
}

}  // namespace sluice::autograd
