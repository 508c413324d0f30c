#include "sluice/schedule/plan_search.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <tuple>
#include <utility>

#include "sluice/engine/bytes_in_words.h"
#include "sluice/schedule/generators.h"
#include "sluice/schedule/verify.h"

namespace sluice::parallel {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;  // two times that differ by less are the same

std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// A device's part of a schedule as a schedule of its own: its bytes do not depend on the others.
Schedule alone(const Schedule& schedule, int device, const std::vector<int>& stages) {
  Schedule part;
  part.name = schedule.name;
  part.stages = static_cast<int>(stages.size());
  part.microbatches = schedule.microbatches;
  part.fixed_order = schedule.fixed_order;
  part.sum = schedule.sum;
  part.per_device = {schedule.per_device[at(device)]};
  const auto new_number = [&](int stage) {
    return static_cast<int>(std::ranges::find(stages, stage) - stages.begin());
  };
  for (Action& a : part.per_device[0]) a.stage = new_number(a.stage);
  for (const int s : stages) {
    if (!schedule.rings.empty()) part.rings.push_back(schedule.rings[at(s)]);
  }
  return part;
}

/// Where stages begin and which recompute; and as numbers, to look it up.
struct Cut {
  std::vector<int> first_layer;
  std::vector<bool> recompute;
  auto operator<=>(const Cut&) const = default;
};

class Search {
 public:
  explicit Search(const CutProblem& problem)
      : p_(problem),
        layers_(static_cast<int>(problem.samples.size())),
        stages_(problem.schedule.stages),
        devices_(problem.schedule.devices()),
        passes_(problem.steps * problem.schedule.microbatches),
        device_of_(at(stages_)),
        stages_of_(at(devices_)),
        load_(at(devices_)),
        start_(at(devices_), kInfinity),
        best_(problem.below) {
    const Order order(p_.schedule);
    for (int s = 0; s < stages_; ++s) {
      device_of_[at(s)] = order.device_of_stage(s);
      stages_of_[at(device_of_[at(s)])].push_back(s);
    }
    for (int d = 0; d < devices_; ++d) part_.push_back(alone(p_.schedule, d, stages_of_[at(d)]));
    one_each_ = stages_ == devices_;
    // More work never ends sooner where nothing is shared and nothing is chosen: a longest path.
    const SimulateOptions& machine = p_.machine;
    const int sharing = devices_ + (machine.push > 0 ? 1 : 0);
    monotone_ = p_.schedule.fixed_order && (machine.cores == 0 || machine.cores >= sharing) &&
                !std::isfinite(machine.link.bandwidth);
    cores_ = machine.cores == 0 ? devices_ : std::min(machine.cores, devices_);
    sum_up();
  }

  CutParts parts_of(const Cut& cut) const {
    CutParts parts{.machine = p_.machine};
    parts.machine.output_bytes.clear();
    parts.machine.gradient_share.clear();
    for (int s = 0; s < stages_; ++s) {
      const int end = end_of(cut, s), begin = cut.first_layer[at(s)];
      parts.costs.push_back(cost_of(begin, end));
      parts.bytes.push_back(bytes_of(begin, end));
      // What a whole backward pass does last is its first layer's weights.
      const double whole = parts.costs.back().backward;
      parts.machine.gradient_share.push_back(
          whole > 0 ? std::clamp(1 - p_.samples[at(begin)].weight_gradient / whole, 0.0, 1.0) : 1);
      parts.machine.output_bytes.push_back(s + 1 < stages_ ? p_.samples[at(end)].input : 0);
    }
    return parts;
  }

  CutFound time(const Cut& cut) {
    evaluate(cut);
    result_.bound = result_.seconds;
    return result_;
  }

  CutFound run() {
    one_each_ ? from_behind() : even_behind();
    cut_.recompute.clear();
    result_.bound = root() / p_.steps;
    if (result_.bound < kInfinity) descend(0, 0, 0);
    if (!result_.found) {
      result_.needs = what_is_lacking();
      return result_;
    }
    result_.exact = !spent_;
    if (result_.exact) result_.bound = result_.seconds;
    return result_;
  }

 private:
  /// The costs of the layers [a, b) as a stage. Nobody wants the gradient of the network's input: what only leads there
  /// costs nothing, and what the first stage's I leaves undone is in its W.
  StageCost cost_of(int a, int b) const {
    double f = 0, i = 0, w = 0, step = 0;
    for (int l = a; l < b; ++l) {
      const LayerSample& layer = p_.samples[at(l)];
      f += layer.forward;
      w += layer.weight_gradient;
      step += p_.layers[at(l)].step / p_.schedule.microbatches;
      if (a > 0) {
        i += layer.input_gradient;
      } else if (l > first_weights_) {
        w += layer.input_gradient;
      }
    }
    StageCost cost = cost_of_halves(f, i, w + step);
    cost.recompute = f;
    return cost;
  }

  StageBytes bytes_of(int a, int b) const {
    StageBytes bytes;
    for (int l = a; l < b; ++l) {
      const LayerSample& layer = p_.samples[at(l)];
      bytes.weights += p_.layers[at(l)].weights;
      bytes.gradients += p_.layers[at(l)].gradients;
      bytes.saved += layer.saved - (l > a ? layer.shared : 0);
      bytes.kept += layer.kept - (l > a ? layer.kept_shared : 0);
      bytes.both += layer.both - (l > a ? layer.kept_shared : 0);
      bytes.work = std::max(bytes.work, layer.work);
    }
    bytes.saved += p_.samples[at(b) - 1].output;
    if (a == 0) bytes.kept = bytes.both = bytes.saved;  // the whole backward pass is its W
    bytes.input = p_.samples[at(a)].input;
    return bytes;
  }

  void sum_up() {
    first_weights_ = 0;
    while (first_weights_ < layers_ - 1 && p_.layers[at(first_weights_)].gradients == 0) ++first_weights_;
    forward_before_.assign(at(layers_) + 1, 0);
    gradient_before_ = work_behind_ = forward_before_;
    for (int l = 0; l < layers_; ++l) {
      const LayerSample& layer = p_.samples[at(l)];
      forward_before_[at(l) + 1] = forward_before_[at(l)] + layer.forward;
      gradient_before_[at(l) + 1] = gradient_before_[at(l)] + (l == 0 ? layer.weight_gradient : 0) +
                                    (l > first_weights_ ? layer.input_gradient : 0);
    }
    for (int l = layers_ - 1; l >= 0; --l) {
      const LayerSample& layer = p_.samples[at(l)];
      const double all = layer.forward + layer.weight_gradient + (l > first_weights_ ? layer.input_gradient : 0) +
                         p_.layers[at(l)].step / p_.schedule.microbatches;
      work_behind_[at(l)] = work_behind_[at(l) + 1] + passes_ * all;
    }
  }

  /// All that a device does for a stage.
  double work(int a, int b, bool again) const {
    const StageCost cost = cost_of(a, b);
    return passes_ * (cost.forward + cost.input_gradient + cost.weight_gradient + (again ? cost.recompute : 0));
  }

  /// No run is over sooner, because of one stage on a device of its own: the first microbatch must come, all the work
  /// be done, and the last gradient go back, which needs no weights' gradients but the first stage's.
  double least(int s, int a, int b, bool again) const {
    const auto& list = p_.schedule.per_device[at(device_of_[at(s)])];
    double time = forward_before_[at(a)] + s * p_.machine.link.latency + work(a, b, again);
    if (s > 0 && p_.schedule.fixed_order && gives(list.back().kind, Result::input_gradient)) {
      time += gradient_before_[at(a)] + s * p_.machine.link.latency - p_.samples[at(a)].weight_gradient;
    }
    return time;
  }

  double room(int device) const { return p_.memory.empty() ? kInfinity : p_.memory[at(device)]; }

  /// The most that a device holds; its stages' layers as (begin, end, recomputed) one after another.
  double peak(int device, const std::vector<int>& ranges) {
    const auto [entry, is_new] = peaks_.try_emplace({device, ranges}, 0);
    if (!is_new) return entry->second;
    std::vector<StageBytes> bytes;
    std::vector<bool> again;
    for (std::size_t i = 0; i < ranges.size(); i += 3) {
      bytes.push_back(bytes_of(ranges[i], ranges[i + 1]));
      again.push_back(ranges[i + 2] != 0);
    }
    const Schedule part = with_recompute(part_[at(device)], again);
    return entry->second = peak_bytes(part, bytes).front().bytes;
  }
  double peak(int s, int a, int b, bool again) { return peak(device_of_[at(s)], {a, b, again ? 1 : 0}); }

  /// The dynamic programme, for one stage a device: the least that the stages from s on, from layer a on, can take; and
  /// the least share of their memory that they can need.
  void from_behind() {
    least_behind_.assign(at(stages_) + 1, std::vector<double>(at(layers_) + 1, kInfinity));
    needs_behind_ = least_behind_;
    needs_end_.assign(at(stages_), std::vector<int>(at(layers_) + 1, -1));
    least_behind_[at(stages_)][at(layers_)] = needs_behind_[at(stages_)][at(layers_)] = 0;
    for (int s = stages_ - 1; s >= 0; --s) {
      for (int a = s; a < layers_; ++a) {
        for (int b = a + 1; b <= layers_ - (stages_ - 1 - s); ++b) {
          for (int again = 0; again <= (p_.recompute ? 1 : 0); ++again) {
            const double share = peak(s, a, b, again != 0) / room(device_of_[at(s)]);
            const double needs = std::max(share, needs_behind_[at(s) + 1][at(b)]);
            if (needs < needs_behind_[at(s)][at(a)]) {
              needs_behind_[at(s)][at(a)] = needs;
              needs_end_[at(s)][at(a)] = 2 * b + again;
            }
            if (share > 1) continue;
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
    even_behind_[at(stages_)][at(layers_)] = 0;
    for (int s = stages_ - 1; s >= 0; --s) {
      for (int a = s; a < layers_; ++a) {
        for (int b = a + 1; b <= layers_ - (stages_ - 1 - s); ++b) {
          double& most = even_behind_[at(s)][at(a)];
          most = std::min(most, std::max(work(a, b, false), even_behind_[at(s) + 1][at(b)]));
        }
      }
    }
  }

  double root() const {
    const double work = work_behind_[0] / cores_;
    return one_each_ ? std::max(work, least_behind_[0][0]) : work;
  }

  struct Child {
    double bound, preference;
    int end;
    bool again;
  };

  /// What the stages before s already take, with stage s over [a, b), and with the least for those behind.
  double bound_of(int s, int a, int b, bool again, double so_far) const {
    if (one_each_) {
      double done = work_behind_[at(b)];
      for (const double load : load_) done += load;
      return std::max(
          {so_far, least(s, a, b, again), least_behind_[at(s) + 1][at(b)], (done + work(a, b, again)) / cores_});
    }
    const int d = device_of_[at(s)];
    const double mine = load_[at(d)] + work(a, b, again);
    double all = work_behind_[at(b)] + mine;
    for (int other = 0; other < devices_; ++other) all += other == d ? 0 : load_[at(other)];
    return std::max({so_far, std::min(start_[at(d)], forward_before_[at(a)]) + mine, all / cores_});
  }

  void descend(int s, int a, double so_far) {
    if (s == stages_) return visit();
    std::vector<Child> children;
    for (int b = s == stages_ - 1 ? layers_ : a + 1; b <= layers_ - (stages_ - 1 - s); ++b) {
      for (const bool again : {false, true}) {
        if (again && !p_.recompute) break;
        if (one_each_ && peak(s, a, b, again) > room(device_of_[at(s)])) continue;
        const double bound = bound_of(s, a, b, again, so_far);
        const double even = one_each_ ? bound : std::max(work(a, b, again), even_behind_[at(s) + 1][at(b)]);
        children.push_back({bound, even, b, again});
        if (one_each_ && monotone_) break;  // to recompute what has room would only take time
      }
    }
    std::ranges::stable_sort(children, {}, [](const Child& c) { return std::tuple(c.preference, c.again); });
    const auto d = at(device_of_[at(s)]);
    for (const Child& child : children) {
      if (spent_) return;
      if (!(child.bound < best_ * p_.steps * (1 - kRounding))) continue;
      spent_ = spent_ || ++nodes_ > 1000 * static_cast<long>(p_.most_simulations);
      const double load = load_[d], start = start_[d];
      load_[d] += work(a, child.end, child.again);
      start_[d] = std::min(start_[d], forward_before_[at(a)]);
      cut_.first_layer.push_back(a);
      cut_.recompute.push_back(child.again);
      descend(s + 1, child.end, child.bound);
      cut_.first_layer.pop_back();
      cut_.recompute.pop_back();
      load_[d] = load;
      start_[d] = start;
    }
  }

  void visit() {
    if (!evaluate(cut_) || improved_) return;
    // From the first cut on, the one that the dynamic programme likes best, along better neighbours: where the search
    // cannot end, this is what it gives.
    improved_ = true;
    Cut from = {result_.first_layer, result_.recompute};
    for (bool better = true; better && simulations_ < p_.most_simulations / 2;) {
      better = false;
      for (int s = 0; s < stages_; ++s) {
        for (const int step : {-1, 1}) {
          Cut next = from;
          next.first_layer[at(s)] += step;
          const int end = s + 1 < stages_ ? next.first_layer[at(s) + 1] : layers_;
          if (s > 0 && next.first_layer[at(s)] > next.first_layer[at(s) - 1] && next.first_layer[at(s)] < end) {
            better = evaluate(next) || better;
          }
        }
        Cut next = from;
        next.recompute[at(s)] = !next.recompute[at(s)];
        if (p_.recompute) better = evaluate(next) || better;
      }
      from = {result_.first_layer, result_.recompute};
    }
  }

  int end_of(const Cut& cut, int s) const { return s + 1 < stages_ ? cut.first_layer[at(s) + 1] : layers_; }

  /// Simulates a cut that fits, once. True if it is the best so far.
  bool evaluate(const Cut& cut) {
    if (!seen_.insert({cut, true}).second) return false;
    std::vector<double> peaks;
    double share = 0;
    std::string needs;
    for (int d = 0; d < devices_; ++d) {
      std::vector<int> ranges;
      for (const int s : stages_of_[at(d)]) {
        ranges.insert(ranges.end(), {cut.first_layer[at(s)], end_of(cut, s), cut.recompute[at(s)] ? 1 : 0});
      }
      peaks.push_back(peak(d, ranges));
      if (peaks.back() / room(d) <= share) continue;
      share = peaks.back() / room(d);
      needs = in_words(d, peaks.back());
    }
    if (share > 1) {
      if (share < least_share_) lacking_ = needs;
      least_share_ = std::min(least_share_, share);
      return false;
    }
    if (simulations_ >= p_.most_simulations) {
      spent_ = true;
      return false;
    }
    ++simulations_;
    const CutParts parts = parts_of(cut);
    auto made = schedules_.find(cut.recompute);
    if (made == schedules_.end()) {
      Schedule whole = chained(with_recompute(p_.schedule, cut.recompute), p_.steps);
      made = schedules_.emplace(cut.recompute, std::move(whole)).first;
    }
    const Simulation simulated = simulate(made->second, parts.costs, parts.machine);
    const double seconds = simulated.span / p_.steps;
    // Of cuts that are as quick: those that run less twice, then those with the emptiest fullest device.
    const auto cost = [](const std::vector<bool>& again, const std::vector<double>& bytes) {
      return std::pair(std::ranges::count(again, true), *std::ranges::max_element(bytes));
    };
    const bool as_quick = result_.found && seconds < best_ * (1 + kRounding) &&
                          cost(cut.recompute, peaks) < cost(result_.recompute, result_.peak);
    if (!(seconds < best_ * (1 - kRounding)) && !as_quick) return false;
    best_ = std::min(best_, seconds);
    result_.found = true;
    result_.first_layer = cut.first_layer;
    result_.recompute = cut.recompute;
    result_.seconds = seconds;
    result_.bubble = simulated.bubble;
    result_.peak = peaks;
    return true;
  }

  std::string in_words(int device, double bytes) const {
    return "device " + std::to_string(device) + " needs " + bytes_in_words(bytes) + " of " +
           bytes_in_words(room(device));
  }

  std::string what_is_lacking() {
    if (!one_each_ || needs_behind_[0][0] <= 1) return lacking_;
    std::string text;
    double share = 0;
    for (int s = 0, a = 0; s < stages_; ++s) {
      const int b = needs_end_[at(s)][at(a)] / 2;
      const double bytes = peak(s, a, b, needs_end_[at(s)][at(a)] % 2 != 0), of = room(device_of_[at(s)]);
      if (bytes / of > share) text = in_words(device_of_[at(s)], bytes);
      share = std::max(share, bytes / of);
      a = b;
    }
    return text;
  }

  const CutProblem& p_;
  int layers_, stages_, devices_, passes_, cores_ = 1, first_weights_ = 0;
  bool one_each_ = true, monotone_ = true;
  std::vector<int> device_of_;
  std::vector<std::vector<int>> stages_of_;
  std::vector<Schedule> part_;
  std::vector<double> forward_before_, gradient_before_, work_behind_;
  std::vector<std::vector<double>> least_behind_, needs_behind_, even_behind_;
  std::vector<std::vector<int>> needs_end_;
  std::map<std::pair<int, std::vector<int>>, double> peaks_;
  std::map<std::vector<bool>, Schedule> schedules_;
  std::map<Cut, bool> seen_;

  Cut cut_;
  std::vector<double> load_, start_;  // of each device: the work of its stages so far, and when it can begin
  double best_, least_share_ = kInfinity;
  std::string lacking_;
  long nodes_ = 0;
  int simulations_ = 0;
  bool improved_ = false, spent_ = false;
  CutFound result_;
};

}  // namespace

CutFound search_cuts(const CutProblem& problem) { return Search(problem).run(); }

CutFound time_cut(const CutProblem& problem, const std::vector<int>& first_layer, const std::vector<bool>& recompute) {
  return Search(problem).time({first_layer, recompute});
}

CutParts parts_of(const CutProblem& problem, const std::vector<int>& first_layer) {
  return Search(problem).parts_of({first_layer, {}});
}

}  // namespace sluice::parallel
