// The explorer's searches.
#include "sluice/engine/explore/search.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <stdexcept>
#include <utility>

namespace sluice::detail {
namespace {

std::uint32_t bit(int strand) { return std::uint32_t{1} << strand; }

/// The n-th of the set, from 0.
int nth(std::uint32_t set, std::uint64_t n) {
  while (n--) set &= set - 1;
  return std::countr_zero(set);
}

int first_after(std::uint32_t set, int strand) {
  const std::uint32_t above = strand >= 31 ? 0 : set & ~((bit(strand + 1)) - 1);
  return std::countr_zero(above ? above : set);
}

/// Loads see something old, and weak operations fail, one time in so many; some runs do without.
class Staleness {
 public:
  explicit Staleness(Draw& draw) {
    constexpr std::uint64_t rates[] = {0, 2, 4, 16, 64};
    rate_ = rates[draw.below(5)];
  }
  int value(Draw& draw, int count) const {
    if (rate_ == 0 || draw.below(rate_) != 0) return 0;
    return static_cast<int>(1 + draw.below(static_cast<std::uint64_t>(count - 1)));
  }

 private:
  std::uint64_t rate_;
};

class RandomWalk final : public Decider {
 public:
  explicit RandomWalk(Draw draw) : draw_(draw), stale_(draw_) {
    // A fair scheduler keeps all strands abreast; some bugs want one far behind.
    constexpr std::uint64_t stays[] = {1, 4, 16, 64};
    stay_ = stays[draw_.below(4)];
  }
  int next(const Choice& c) override {
    if (c.last >= 0 && (c.able & bit(c.last)) && draw_.below(stay_) != 0) return c.last;
    std::uint32_t set = c.able;
    if (!set || (c.paused && draw_.below(8) == 0)) set = c.paused;
    return std::has_single_bit(set) ? std::countr_zero(set)
                                    : nth(set, draw_.below(static_cast<std::uint64_t>(std::popcount(set))));
  }
  int value(int count) override { return stale_.value(draw_, count); }

 private:
  Draw draw_;
  Staleness stale_;
  std::uint64_t stay_;
};

class Pct final : public Decider {
 public:
  explicit Pct(Draw draw) : draw_(draw), stale_(draw_) {
    for (auto& p : priorities_) p = kLowest + draw_.below(1u << 20);
    // Runs differ in length by orders of magnitude: so do the ranges that the changes are drawn from.
    const std::uint64_t range = std::uint64_t{50} << draw_.below(6);
    const std::uint64_t changes = 1 + draw_.below(5);
    for (std::uint64_t i = 0; i < changes; ++i) changes_.push_back(draw_.below(range));
    std::sort(changes_.begin(), changes_.end());
  }
  int next(const Choice& c) override {
    const std::uint64_t step = step_++;
    while (changed_ < changes_.size() && changes_[changed_] <= step) {
      ++changed_;
      if (c.last >= 0) priorities_[static_cast<std::size_t>(c.last)] = kLowest - changed_;
    }
    std::uint32_t set = c.able;
    if (!set || (c.paused && draw_.below(16) == 0)) set |= c.paused;
    int best = -1;
    for (std::uint32_t rest = set; rest; rest &= rest - 1) {
      const int s = std::countr_zero(rest);
      if (best < 0 || priorities_[static_cast<std::size_t>(s)] > priorities_[static_cast<std::size_t>(best)]) best = s;
    }
    return best;
  }
  int value(int count) override { return stale_.value(draw_, count); }
  /// Two that poll could keep each other going, before a third that both wait for.
  void polled(int strand) override {
    if (++polls_ % 4 == 0) priorities_[static_cast<std::size_t>(strand)] = --behind_;
  }

 private:
  static constexpr std::uint64_t kLowest = 1u << 20;
  Draw draw_;
  Staleness stale_;
  std::array<std::uint64_t, kStrands> priorities_{};
  std::vector<std::uint64_t> changes_;
  std::size_t changed_ = 0;
  std::uint64_t step_ = 0, polls_ = 0, behind_ = kLowest - 1000;
};

}  // namespace

std::unique_ptr<Decider> make_random_decider(std::uint64_t seed) {
  Draw draw{Draw(seed)()};  // neighbouring seeds must not draw the same numbers one step apart
  if (draw.below(2)) return std::make_unique<Pct>(draw);
  return std::make_unique<RandomWalk>(draw);
}

int usual_choice(const Choice& c) {
  if (c.last >= 0 && (c.able & bit(c.last))) return c.last;
  return first_after(c.able ? c.able : c.paused, c.last);
}

// ---- exhaustive

int Exhaustive::cost(const Node& n, int chosen) {
  if (n.count) return chosen != 0;
  if (n.able & bit(chosen)) return n.last >= 0 && n.last != chosen && (n.able & bit(n.last)) ? 1 : 0;
  return n.able ? 1 : 0;
}

void Exhaustive::choose(std::size_t index, int chosen) {
  Node& n = nodes_[index];
  n.chosen = static_cast<std::int16_t>(chosen);
  if (n.count) return;
  n.done |= bit(chosen);
  n.block = static_cast<std::uint32_t>(index);
  if (chosen != n.last) return;
  for (std::size_t i = index; i-- > 0;)
    if (!nodes_[i].count) {
      n.block = nodes_[i].block;
      break;
    }
}

bool Exhaustive::next_schedule() {
  depth_ = 0;
  step_node_ = 0;
  ++run_;
  knows_ = {};
  if (!std::exchange(begun_, true)) return true;
  while (!nodes_.empty()) {
    const std::size_t index = nodes_.size() - 1;
    Node& n = nodes_.back();
    if (n.count) {
      if (n.chosen + 1 < n.count && n.spent + 1 <= budget_) {
        choose(index, n.chosen + 1);
        return true;
      }
    } else {
      for (std::uint32_t rest = n.wanted & ~n.done; rest; rest &= rest - 1) {
        const int s = std::countr_zero(rest);
        if (n.spent + cost(n, s) > budget_) continue;
        choose(index, s);
        return true;
      }
    }
    nodes_.pop_back();
  }
  return false;
}

int Exhaustive::next(const Choice& c) {
  const std::size_t index = depth_++;
  step_node_ = static_cast<std::uint32_t>(index);
  if (index < nodes_.size()) {
    const Node& n = nodes_[index];
    if (n.count == 0 && n.able == c.able && n.paused == c.paused && n.last == c.last) return n.chosen;
    unsteady_ = true;
    nodes_.resize(index);
  }
  Node n;
  n.able = c.able;
  n.paused = c.paused;
  n.last = static_cast<std::int16_t>(c.last);
  n.usual = static_cast<std::int16_t>(usual_choice(c));
  n.spent = static_cast<std::int16_t>(spent_after(index));
  if (!reduced_) n.wanted = n.able | n.paused;
  nodes_.push_back(n);
  choose(index, n.usual);
  return n.usual;
}

int Exhaustive::spent_after(std::size_t count) const {
  return count == 0 ? 0 : nodes_[count - 1].spent + cost(nodes_[count - 1], nodes_[count - 1].chosen);
}

int Exhaustive::value(int count) {
  const std::size_t index = depth_++;
  if (index < nodes_.size()) {
    if (nodes_[index].count == count) return nodes_[index].chosen;
    unsteady_ = true;
    nodes_.resize(index);
  }
  Node n;
  n.count = static_cast<std::int16_t>(count);
  n.spent = static_cast<std::int16_t>(spent_after(index));
  nodes_.push_back(n);
  return 0;
}

void Exhaustive::want(std::uint32_t node, int strand) {
  Node& n = nodes_[node];
  const std::uint32_t able = n.able | n.paused;
  n.wanted |= able & bit(strand) ? bit(strand) : able;
}

void Exhaustive::race(const Access& first, int strand) {
  want(first.node, strand);
  want(nodes_[first.node].block, strand);
}

void Exhaustive::event(int strand, std::uint32_t location, bool shared) {
  if (location >= uses_.size()) uses_.resize(location + 64);
  Use& x = uses_[location];
  if (x.run != run_) {
    x.run = run_;
    x.accesses.clear();
    x.after_write = x.after_reads = {};
  }
  Clock& mine = knows_[at(strand)];
  // Not with the last one only: to get before an earlier one by and by may cost more deviations than there are.
  for (const Access& a : x.accesses)
    if (a.strand != strand && !(shared && a.shared) && a.step > mine.at[at(a.strand)]) race(a, strand);
  mine.join(x.after_write);
  if (!shared) mine.join(x.after_reads);
  x.accesses.push_back({static_cast<std::int16_t>(strand), ++mine.at[at(strand)], step_node_, shared});
  x.after_reads.join(mine);
  if (!shared) x.after_write = mine;
}

std::string Exhaustive::decisions() const {
  std::string text;
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].chosen != nodes_[i].usual)
      text += (text.empty() ? "" : ",") + std::to_string(i) + ":" + std::to_string(nodes_[i].chosen);
  return text.empty() ? "0:" : text;
}

// ---- replay

Replay::Replay(const std::string& decisions) {
  const char *p = decisions.data(), *const end = p + decisions.size();
  while (p < end) {
    std::uint64_t index = 0;
    int choice = 0;
    auto [colon, bad] = std::from_chars(p, end, index);
    if (bad != std::errc() || colon == end || *colon != ':')
      throw std::invalid_argument("decisions are index:choice,...: " + decisions);
    if (colon + 1 == end) break;
    auto [comma, worse] = std::from_chars(colon + 1, end, choice);
    if (worse != std::errc() || (comma != end && *comma != ','))
      throw std::invalid_argument("decisions are index:choice,...: " + decisions);
    decisions_[index] = choice;
    p = comma == end ? end : comma + 1;
  }
}

int Replay::next(const Choice& c) {
  const auto it = decisions_.find(index_++);
  if (it == decisions_.end() || !((c.able | c.paused) & bit(it->second))) return usual_choice(c);
  return it->second;
}

int Replay::value(int count) {
  const auto it = decisions_.find(index_++);
  return it == decisions_.end() || it->second >= count ? 0 : it->second;
}

}  // namespace sluice::detail
