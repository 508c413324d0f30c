#include "sluice/schedule/plan_search.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sluice/schedule/cut_judge.h"

namespace sluice::parallel {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// Depth-first over the stages' ends, in the order of a dynamic programme, behind cuts that need no search.
class Search {
 public:
  explicit Search(const CutProblem& problem)
      : p_(problem),
        judge_(problem),
        layers_(judge_.layers()),
        stages_(judge_.stages()),
        most_tries_(1000 * static_cast<long>(problem.most_simulations)),
        loads_(at(judge_.devices())) {}

  CutFound run() {
    sum_up();
    judge_.one_each() ? from_behind() : even_behind();
    const double bound = root() / p_.steps;
    if (bound < kInfinity) {
      begin();
      descend(0, 0, 0);
      // Where the search cannot end, this is what it gives.
      if (is_spent()) improve(p_.most_simulations);
    }
    CutFound result = judge_.result();
    result.exact = !is_spent();
    result.bound = result.found && result.exact ? result.seconds : bound;
    if (!result.found) result.needs = what_is_lacking(result.exact);
    return result;
  }

 private:
  bool is_spent() const { return spent_ || judge_.is_used_up(); }
  bool fits_one(int s, double bytes) const { return has_room(judge_.room(judge_.device_of(s)), bytes); }

  void sum_up() {
    work_behind_.assign(at(layers_) + 1, 0);
    weights_behind_ = work_behind_;
    const double passes = static_cast<double>(p_.steps) * p_.schedule.microbatches;
    for (int l = layers_ - 1; l >= 0; --l) {
      work_behind_[at(l)] = work_behind_[at(l) + 1] + passes * judge_.table().work(l);
      weights_behind_[at(l)] = weights_behind_[at(l) + 1] + p_.layers[at(l)].weights;
    }
  }

  /// No run is over sooner, because of one stage on a device of its own: the first microbatch must come, all the work
  /// be done, and the last gradient go back, which needs no weights' gradients but the first stage's.
  double least(int s, int a, int b, bool again) const {
    return judge_.start(s, a) + judge_.work(a, b, again) + judge_.tail(s, a);
  }

  /// The dynamic programme, for one stage a device: the least that the stages from s on, from layer a on, can take; and
  /// the least share of their memory that they can need.
  void from_behind() {
    least_behind_.assign(at(stages_) + 1, std::vector<double>(at(layers_) + 1, kInfinity));
    needs_behind_ = least_behind_;
    needs_end_.assign(at(stages_), std::vector<int>(at(layers_) + 1, -1));
    least_behind_[at(stages_)][at(layers_)] = needs_behind_[at(stages_)][at(layers_)] = 0;
    for (int s = stages_ - 1; s >= 0; --s) {
      const double room = judge_.room(judge_.device_of(s));
      for (int a = s; a < layers_; ++a) {
        for (int b = a + 1; b <= layers_ - (stages_ - 1 - s); ++b) {
          for (int again = 0; again <= (p_.recompute ? 1 : 0); ++again) {
            const double bytes = std::isfinite(room) ? judge_.peak(s, a, b, again != 0) : 0;
            const double needs = std::max(share_of(bytes, room), needs_behind_[at(s) + 1][at(b)]);
            if (needs < needs_behind_[at(s)][at(a)] || needs_end_[at(s)][at(a)] < 0) {
              needs_behind_[at(s)][at(a)] = needs;
              needs_end_[at(s)][at(a)] = 2 * b + again;
            }
            if (!has_room(room, bytes)) continue;
            double& most = least_behind_[at(s)][at(a)];
            most = std::min(most, std::max(least(s, a, b, again != 0), least_behind_[at(s) + 1][at(b)]));
          }
        }
      }
    }
  }

  /// Where devices have several stages the bounds of most cuts are alike, so the search goes by this: the least that
  /// the longest of the stages from s on, from layer a on, can take.
  void even_behind() {
    even_behind_.assign(at(stages_) + 1, std::vector<double>(at(layers_) + 1, kInfinity));
    even_end_.assign(at(stages_), std::vector<int>(at(layers_) + 1, layers_));
    even_behind_[at(stages_)][at(layers_)] = 0;
    for (int s = stages_ - 1; s >= 0; --s) {
      for (int a = s; a < layers_; ++a) {
        for (int b = a + 1; b <= layers_ - (stages_ - 1 - s); ++b) {
          const double longest = std::max(judge_.work(a, b, false), even_behind_[at(s) + 1][at(b)]);
          if (!(longest < even_behind_[at(s)][at(a)])) continue;
          even_behind_[at(s)][at(a)] = longest;
          even_end_[at(s)][at(a)] = b;
        }
      }
    }
  }

  double root() const {
    const double work = work_behind_[0] / judge_.cores();
    return judge_.one_each() ? std::max(work, least_behind_[0][0]) : work;
  }

  /// Cuts that are tried whatever the search may take: as many layers for each stage, and as much work, without and
  /// with recomputation of all. Where devices have several stages and none of these fits, layers and marks are moved.
  void begin() {
    std::vector<Cut> starts(1);
    for (int s = 0; s < stages_; ++s) {
      starts[0].first_layer.push_back(static_cast<int>(static_cast<std::int64_t>(s) * layers_ / stages_));
    }
    if (!judge_.one_each()) {
      starts.emplace_back();
      for (int s = 0, a = 0; s < stages_; a = even_end_[at(s)][at(a)], ++s) starts[1].first_layer.push_back(a);
    }
    for (std::size_t i = 0, count = starts.size(); i < count; ++i) {
      starts[i].recompute.assign(at(stages_), false);
      if (!p_.recompute) continue;
      starts.push_back(starts[i]);
      starts.back().recompute.assign(at(stages_), true);
    }
    bool fits = false;
    for (const Cut& start : starts) {
      fits = note(start).sum == 0 || fits;
      judge_.evaluate(start, true);
    }
    if (judge_.one_each()) return;
    for (auto start = starts.rbegin(); start != starts.rend() && !fits; ++start) fits = repair(*start);
    improve(p_.most_simulations / 2);
  }

  /// The cut that needs least of those that do not fit, for texts.
  CutJudge::Lack note(const Cut& cut) {
    ++tries_;
    const CutJudge::Lack lack = judge_.lack(cut);
    if (lack.sum > 0 && (nearest_.first_layer.empty() || lack.most < least_lack_)) {
      least_lack_ = lack.most;
      nearest_ = cut;
    }
    return lack;
  }

  /// A layer less for stage `from`, one more for stage `to`; the stages between them shift. False where `from` has no
  /// other layer.
  bool shift(Cut& cut, int from, int to) const {
    const int end = from + 1 < stages_ ? cut.first_layer[at(from) + 1] : layers_;
    if (end - cut.first_layer[at(from)] < 2) return false;
    for (int s = from + 1; s <= to; ++s) --cut.first_layer[at(s)];
    for (int s = to + 1; s <= from; ++s) ++cut.first_layer[at(s)];
    return true;
  }

  /// Moves layers and marks from a cut that does not fit on, as long as each move leaves devices lacking less.
  bool repair(Cut cut) {
    double lacks = judge_.lack(cut).sum;
    const long end = tries_ + most_tries_ / 100;
    const auto try_next = [&](const Cut& next) {
      const double now = note(next).sum;
      if (!(now < lacks)) return false;
      lacks = now;
      cut = next;
      return true;
    };
    for (bool better = true; better && lacks > 0;) {
      better = false;
      for (int from = 0; from < stages_ && lacks > 0; ++from) {
        const int device = judge_.device_of(from);
        if (has_room(judge_.room(device), judge_.peak(device, cut, layers_))) continue;
        if (p_.recompute) {
          Cut next = cut;
          next.recompute[at(from)] = !next.recompute[at(from)];
          better = try_next(next) || better;
        }
        for (int to = 0; to < stages_ && lacks > 0; ++to) {
          if (tries_ > end) return false;
          Cut next = cut;
          if (to != from && shift(next, from, to)) better = try_next(next) || better;
        }
      }
    }
    judge_.evaluate(cut, true);
    return !(lacks > 0);
  }

  /// From the best cut so far along better neighbours: a boundary moved, another mark, and a layer from a stage of the
  /// device that has most to do.
  void improve(int most_simulations) {
    const auto goes_on = [&] { return judge_.simulations() < most_simulations; };
    for (bool better = judge_.found(); better && goes_on();) {
      better = false;
      const auto try_shift = [&](int from, int to) {
        Cut next = judge_.best();
        if (goes_on() && shift(next, from, to)) better = judge_.evaluate(next) || better;
      };
      for (int s = 0; s < stages_; ++s) {
        if (s > 0) try_shift(s - 1, s);
        if (s > 0) try_shift(s, s - 1);
        Cut next = judge_.best();
        next.recompute[at(s)] = !next.recompute[at(s)];
        if (p_.recompute && goes_on()) better = judge_.evaluate(next) || better;
      }
      if (better) continue;
      const auto try_shifts = [&](int from) {
        for (int to = 0; to < stages_; ++to) {
          if (to != from) try_shift(from, to);
        }
      };
      for (const int from : judge_.stages_of(busiest())) try_shifts(from);
      for (int from = 0; from < stages_ && !better; ++from) try_shifts(from);
    }
  }

  int busiest() const {
    const Cut& cut = judge_.best();
    std::vector<double> loads(at(judge_.devices()));
    for (int s = 0; s < stages_; ++s) {
      const int end = s + 1 < stages_ ? cut.first_layer[at(s) + 1] : layers_;
      loads[at(judge_.device_of(s))] += judge_.work(cut.first_layer[at(s)], end, cut.recompute[at(s)]);
    }
    return static_cast<int>(std::ranges::max_element(loads) - loads.begin());
  }

  struct Child {
    double bound, preference;
    int end;
    bool again;
  };

  /// What a device's stages so far take.
  struct Load {
    double work = 0, start = kInfinity, tail = 0, bytes = 0;
  };

  Load with(const Load& load, int s, int a, int b, bool again) const {
    return {load.work + judge_.work(a, b, again), std::min(load.start, judge_.start(s, a)),
            std::max(load.tail, judge_.tail(s, a)), load.bytes};
  }

  /// What the stages before s already take, with stage s over [a, b), and with the least for those behind.
  double bound_of(int s, int a, int b, bool again, double so_far) const {
    const int d = judge_.device_of(s);
    const Load mine = with(loads_[at(d)], s, a, b, again);
    double all = work_behind_[at(b)] + mine.work;
    for (int other = 0; other < judge_.devices(); ++other) all += other == d ? 0 : loads_[at(other)].work;
    const double behind = judge_.one_each() ? least_behind_[at(s) + 1][at(b)] : 0;
    return std::max({so_far, mine.start + mine.work + mine.tail, behind, all / judge_.cores()});
  }

  /// The bytes of the device of stage s with its stages so far, or infinity where they do not fit, or where all devices
  /// together have no room for what is behind. `cut_` ends with the stage, which ends at b.
  double bytes_so_far(int s, int b) {
    const int d = judge_.device_of(s);
    const double bytes = judge_.peak(d, cut_, b);
    if (!has_room(judge_.room(d), bytes)) return kInfinity;
    double free = judge_.room(d) - bytes;
    for (int other = 0; other < judge_.devices(); ++other) {
      if (other != d) free += judge_.room(other) - loads_[at(other)].bytes;
    }
    return weights_behind_[at(b)] <= free * (1 + kSameTime) ? bytes : kInfinity;
  }

  void descend(int s, int a, double so_far) {
    if (s == stages_) return visit();
    std::vector<Child> children;
    for (int b = s == stages_ - 1 ? layers_ : a + 1; b <= layers_ - (stages_ - 1 - s); ++b) {
      for (const bool again : {false, true}) {
        if (again && !p_.recompute) break;
        if (judge_.one_each() && !fits_one(s, judge_.peak(s, a, b, again))) continue;
        const double bound = bound_of(s, a, b, again, so_far);
        const double even =
            judge_.one_each() ? bound : std::max(judge_.work(a, b, again), even_behind_[at(s) + 1][at(b)]);
        if (bound < judge_.limit()) children.push_back({bound, even, b, again});
        if (judge_.one_each() && judge_.monotone()) break;  // to recompute what has room would only take time
      }
    }
    std::ranges::stable_sort(children, {}, [](const Child& c) { return std::tuple(c.preference, c.again); });
    Load& load = loads_[at(judge_.device_of(s))];
    const Load before = load;
    cut_.first_layer.push_back(a);
    cut_.recompute.push_back(false);
    for (const Child& child : children) {
      if (is_spent()) break;
      if (!(child.bound < judge_.limit())) continue;
      spent_ = ++tries_ > most_tries_;
      cut_.recompute.back() = child.again;
      const double bytes = judge_.one_each() || p_.memory.empty() ? 0 : bytes_so_far(s, child.end);
      if (bytes == kInfinity) continue;
      load = with(before, s, a, child.end, child.again);
      load.bytes = bytes;
      descend(s + 1, child.end, child.bound);
      load = before;
    }
    cut_.first_layer.pop_back();
    cut_.recompute.pop_back();
  }

  void visit() {
    // The first cut of one stage a device is the one that the dynamic programme likes best.
    const bool first = !std::exchange(visited_, true);
    judge_.evaluate(cut_);
    if (first && judge_.one_each()) improve(p_.most_simulations / 2);
  }

  std::string what_is_lacking(bool exact) {
    Cut least = nearest_;
    if (judge_.one_each() && needs_behind_[0][0] > 1) {
      least = {};
      for (int s = 0, a = 0; s < stages_; a = needs_end_[at(s)][at(a)] / 2, ++s) {
        least.first_layer.push_back(a);
        least.recompute.push_back(needs_end_[at(s)][at(a)] % 2 != 0);
      }
    }
    std::string text;
    if (!least.first_layer.empty()) text = judge_.lack_in_words(least);
    if (!exact) text = "no cut found in " + std::to_string(tries_) + " tried; the nearest: " + text;
    return text;
  }

  const CutProblem& p_;
  CutJudge judge_;
  int layers_, stages_;
  std::vector<double> work_behind_, weights_behind_;
  std::vector<std::vector<double>> least_behind_, needs_behind_, even_behind_;
  std::vector<std::vector<int>> needs_end_, even_end_;

  Cut cut_;
  long tries_ = 0, most_tries_;
  std::vector<Load> loads_;  // of each device
  bool visited_ = false, spent_ = false;
  Cut nearest_;
  double least_lack_ = 0;
};

}  // namespace

CutFound search_cuts(const CutProblem& problem) { return Search(problem).run(); }

CutFound time_cut(const CutProblem& problem, const std::vector<int>& first_layer, const std::vector<bool>& recompute) {
  return CutJudge(problem).time({first_layer, recompute});
}

CutParts parts_of(const CutProblem& problem, const std::vector<int>& first_layer) {
  return CutJudge(problem).parts_of({first_layer, std::vector<bool>(first_layer.size())});
}

}  // namespace sluice::parallel
