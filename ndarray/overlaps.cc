#include "sluice/ndarray/overlaps.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <numeric>

namespace sluice {
namespace {

/// Part of a sum: step times a number from 0 to `most`.
struct Term {
  std::int64_t step, most;
};

/// Whether a sum of such terms can be a given number. A search that goes from large steps to small ones: what the rest
/// can come to, and what divides it, leaves one or two choices where the steps are those of nested axes.
class Sums {
 public:
  void add(std::int64_t step, std::int64_t most) {
    if (most <= 0 || step == 0) return;
    for (std::size_t i = 0; i < count_; ++i) {
      if (terms_[i].step == step) {
        terms_[i].most += most;
        return;
      }
    }
    terms_[count_++] = {step, most};
  }
  /// True where it takes more than some thousand tries to tell.
  bool reach(std::int64_t wanted) {
    std::sort(terms_.begin(), terms_.begin() + count_, [](const Term& a, const Term& b) { return a.step > b.step; });
    reach_[count_] = divisor_[count_] = 0;
    for (std::size_t i = count_; i-- > 0;) {
      reach_[i] = reach_[i + 1] + terms_[i].step * terms_[i].most;
      divisor_[i] = std::gcd(divisor_[i + 1], terms_[i].step);
    }
    tries_ = 5000;
    return search(0, wanted);
  }

 private:
  bool search(std::size_t i, std::int64_t wanted) {
    if (wanted < 0 || wanted > reach_[i]) return false;
    if (wanted == 0) return true;
    if (wanted % divisor_[i] != 0) return false;
    const auto [step, most] = terms_[i];
    const std::int64_t rest = reach_[i + 1];
    const std::int64_t least = wanted > rest ? (wanted - rest + step - 1) / step : 0;
    for (std::int64_t n = std::min(most, wanted / step); n >= least; --n) {
      if (--tries_ < 0 || search(i + 1, wanted - n * step)) return true;
    }
    return false;
  }

  static constexpr std::size_t kTerms = 2 * kMaxRank + 1;
  std::array<Term, kTerms> terms_;
  std::array<std::int64_t, kTerms + 1> reach_, divisor_;
  std::size_t count_ = 0;
  int tries_ = 0;
};

/// Where a view lies, told without locks: in elements of its array, or in bytes of the buffer of one that stays in it.
struct Spot {
  Stretch where;
  const NDArray* view = nullptr;
  std::int64_t item = 1;  ///< what an element takes

  Spot() = default;
  explicit Spot(const NDArray& x) : view(&x) {
    const Array& array = *x.array();
    if (array.stays()) {
      where = stretch_of(x, array.version()->buffer());
      item = static_cast<std::int64_t>(size_of(x.dtype()));
    } else {
      const auto [low, high] = extent(x.shape(), x.strides(), x.offset());
      where = {&array, low, high};
    }
  }
  void add_to(Sums& sums) const {
    for (int i = 0; i < view->rank(); ++i) sums.add(std::abs(view->strides()[i]) * item, view->shape()[i] - 1);
  }
  friend bool operator<(const Spot& a, const Spot& b) { return a.where < b.where; }
};

/// True if two views share an element. One's steps from its first byte on, and the other's from its last byte back,
/// must come to the way between these.
bool share(const Spot& a, const Spot& b) {
  if (!a.where.overlaps(b.where)) return false;
  if (a.view->is_contiguous() && b.view->is_contiguous()) return true;
  Sums sums;
  a.add_to(sums);
  b.add_to(sums);
  sums.add(1, a.item + b.item - 2);  // the bytes of their elements
  return sums.reach(b.where.end - 1 - a.where.begin);
}

}  // namespace

bool overlaps_itself_at_length(const NDArray& x) {
  // Two indices that differ first along axis i, by 1 + n; along later axes by anything.
  for (int i = 0; i < x.rank(); ++i) {
    if (x.shape()[i] <= 1) continue;
    const std::int64_t step = std::abs(x.strides()[i]);
    if (step == 0) return true;
    Sums sums;
    sums.add(step, x.shape()[i] - 2);
    std::int64_t wanted = -step;
    for (int k = i + 1; k < x.rank(); ++k) {
      const std::int64_t other = std::abs(x.strides()[k]), most = x.shape()[k] - 1;
      sums.add(other, 2 * most);
      wanted += other * most;
    }
    if (sums.reach(wanted)) return true;
  }
  return false;
}

bool any_overlap(std::span<const NDArray> views) {
  if (views.size() <= 8) {
    std::array<Spot, 8> few;
    for (std::size_t i = 0; i < views.size(); ++i) {
      if (views[i].count() == 0) continue;
      few[i] = Spot(views[i]);
      if (std::any_of(few.begin(), few.begin() + i, [&](const Spot& p) { return p.view && share(p, few[i]); })) {
        return true;
      }
    }
    return false;
  }
  std::vector<Spot> places;
  for (const NDArray& x : views) {
    if (x.count() != 0) places.emplace_back(x);
  }
  std::sort(places.begin(), places.end());
  for (auto a = places.begin(); a != places.end(); ++a) {
    for (auto b = a + 1; b != places.end() && a->where.overlaps(b->where); ++b) {
      if (share(*a, *b)) return true;
    }
  }
  return false;
}

std::vector<Ref<Array>> holders(std::span<const NDArray> outputs) {
  std::vector<ShareGroup*> groups;
  std::vector<Stretch> memory;
  for (const NDArray& y : outputs) {
    const Array& array = *y.array();
    if (!array.stays() || array.shape().count() == 0) continue;
    ShareGroup& group = array.group()->root();
    if (!group.any_snapshot()) continue;
    groups.push_back(&group);
    memory.push_back(array.stretch());
  }
  std::vector<Ref<Array>> found;
  if (groups.empty()) return found;
  std::sort(groups.begin(), groups.end(), std::less<>());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  std::sort(memory.begin(), memory.end());
  std::size_t last = 0;  // those that overlap become one
  for (const Stretch& next : memory) {
    if (next.overlaps(memory[last])) {
      memory[last].end = std::max(memory[last].end, next.end);
    } else {
      memory[++last] = next;
    }
  }
  memory.resize(last + 1);
  for (ShareGroup* group : groups) {
    for (Ref<Array>& holder : group->snapshots()) {
      const Stretch shown = holder->stretch();
      const auto at = std::partition_point(memory.begin(), memory.end(), [&](const Stretch& m) {
        return m.space == shown.space ? m.end <= shown.begin : std::less<>()(m.space, shown.space);
      });
      if (at != memory.end() && at->overlaps(shown)) found.push_back(std::move(holder));
    }
  }
  return found;
}

}  // namespace sluice
