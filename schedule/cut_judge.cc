#include "sluice/schedule/cut_judge.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "sluice/engine/bytes_in_words.h"
#include "sluice/schedule/generators.h"
#include "sluice/schedule/verify.h"

namespace sluice::parallel {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

}  // namespace

double share_of(double bytes, double room) {
  if (has_room(room, bytes)) return room > 0 && std::isfinite(room) ? bytes / room : 0;
  return room > 0 ? bytes / room : kInfinity;
}

CutJudge::CutJudge(const CutProblem& problem)
    : problem_(problem),
      table_(problem.samples, problem.layers, problem.schedule.microbatches),
      passes_(static_cast<double>(problem.steps) * problem.schedule.microbatches),
      device_of_(at(problem.schedule.stages)),
      hops_(device_of_.size()),
      ends_(device_of_.size()),
      stages_of_(problem.schedule.per_device.size()),
      peaks_(stages_of_.size()),
      best_(problem.below) {
  const Schedule& schedule = problem_.schedule;
  const Order order(schedule);
  for (int s = 0; s < stages(); ++s) {
    device_of_[at(s)] = order.device_of_stage(s);
    stages_of_[at(device_of_[at(s)])].push_back(s);
    if (s > 0) hops_[at(s)] = hops_[at(s) - 1] + (device_of_[at(s)] != device_of_[at(s) - 1] ? 1 : 0);
    const Action& last = schedule.per_device[at(device_of_[at(s)])].back();
    ends_[at(s)] = s > 0 && schedule.fixed_order && last.stage == s && gives(last.kind, Result::input_gradient);
  }
  for (int d = 0; d < devices(); ++d) part_.push_back(alone(schedule, d, stages_of(d)));
  const SimulateOptions& machine = problem_.machine;
  const int sharing = devices() + (machine.push > 0 ? 1 : 0);
  monotone_ = schedule.fixed_order && (machine.cores == 0 || machine.cores >= sharing) &&
              !std::isfinite(machine.link.bandwidth);
  cores_ = machine.cores == 0 ? devices() : std::min(machine.cores, devices());
}

double CutJudge::room(int device) const { return problem_.memory.empty() ? kInfinity : problem_.memory[at(device)]; }

int CutJudge::end_of(const Cut& cut, int stage) const {
  return stage + 1 < stages() ? cut.first_layer[at(stage) + 1] : layers();
}

double CutJudge::tail(int s, int a) const {
  if (!ends_[at(s)]) return 0;
  return table_.gradient_before(a) + hops(s) - table_.weight_gradient(a);
}

double CutJudge::least(const Cut& cut) const {
  double all = 0, longest = 0;
  for (int d = 0; d < devices(); ++d) {
    double begin = kInfinity, load = 0, end = 0;
    for (const int s : stages_of(d)) {
      const int a = cut.first_layer[at(s)];
      begin = std::min(begin, start(s, a));
      load += work(a, end_of(cut, s), cut.recompute[at(s)]);
      end = std::max(end, tail(s, a));
    }
    longest = std::max(longest, begin + load + end);
    all += load;
  }
  return std::max(longest, all / cores_);
}

double CutJudge::peak(int device, const Cut& cut, int end) {
  const std::vector<int>& mine = stages_of(device);
  const int known = static_cast<int>(cut.first_layer.size());
  bytes_.assign(mine.size(), {});
  again_.assign(mine.size(), false);
  for (std::size_t i = 0; i < mine.size() && mine[i] < known; ++i) {
    const int s = mine[i], b = s + 1 < known ? cut.first_layer[at(s) + 1] : end;
    bytes_[i] = table_.bytes(cut.first_layer[at(s)], b);
    again_[i] = cut.recompute[at(s)];
  }
  auto& made = peaks_[at(device)];
  auto counted = made.find(again_);
  if (counted == made.end())
    counted = made.emplace(again_, DevicePeak(with_recompute(part_[at(device)], again_))).first;
  return counted->second.most(bytes_);
}

double CutJudge::peak(int stage, int a, int b, bool again) {
  auto& made = peaks_[at(device_of(stage))];
  again_.assign(1, again);
  auto counted = made.find(again_);
  if (counted == made.end()) {
    counted = made.emplace(again_, DevicePeak(with_recompute(part_[at(device_of(stage))], again_))).first;
  }
  return counted->second.most({&table_.bytes(a, b), 1});
}

bool CutJudge::fits(const Cut& cut) {
  for (int d = 0; d < devices(); ++d) {
    if (std::isfinite(room(d)) && !has_room(room(d), peak(d, cut, layers()))) return false;
  }
  return true;
}

CutJudge::Lack CutJudge::lack(const Cut& cut) {
  Lack lack;
  for (int d = 0; d < devices(); ++d) {
    if (!std::isfinite(room(d))) continue;
    const double here = std::max(0.0, share_of(peak(d, cut, layers()), room(d)) - 1);
    lack.sum += here;
    lack.most = std::max(lack.most, here);
  }
  return lack;
}

CutParts CutJudge::parts_of(const Cut& cut) const {
  CutParts parts{.machine = problem_.machine};
  parts.machine.output_bytes.clear();
  parts.machine.gradient_share.clear();
  for (int s = 0; s < stages(); ++s) {
    const int begin = cut.first_layer[at(s)], end = end_of(cut, s);
    parts.costs.push_back(table_.cost(begin, end));
    parts.bytes.push_back(table_.bytes(begin, end));
    parts.machine.gradient_share.push_back(table_.gradient_share(begin, end));
    parts.machine.output_bytes.push_back(s + 1 < stages() ? problem_.samples[at(end)].input : 0);
  }
  return parts;
}

std::vector<double> CutJudge::peaks_of(const Cut& cut) const {
  std::vector<double> peaks;
  const Schedule whole = with_recompute(problem_.schedule, cut.recompute);
  for (const PeakBytes& peak : peak_bytes(whole, parts_of(cut).bytes)) peaks.push_back(peak.bytes);
  return peaks;
}

std::string CutJudge::lack_in_words(const Cut& cut) const {
  const std::vector<double> peaks = peaks_of(cut);
  const auto share = [&](int d) { return share_of(peaks[at(d)], room(d)); };
  int worst = 0;
  for (int d = 1; d < devices(); ++d) worst = share(d) > share(worst) ? d : worst;
  return "device " + std::to_string(worst) + " needs " + bytes_in_words(peaks[at(worst)]) + " of " +
         bytes_in_words(room(worst));
}

/// One set of tasks serves all cuts: a stage that does not recompute has R actions that take no time, and in a fixed
/// order these change nothing.
double CutJudge::span(const Cut& cut) {
  CutParts parts = parts_of(cut);
  if (!tasks_) {
    const std::vector<bool> again(cut.recompute.size(), problem_.recompute);
    const Schedule whole = chained(with_recompute(problem_.schedule, again), problem_.steps);
    verify(whole);
    tasks_.emplace(whole, problem_.machine, true);
  }
  for (int s = 0; s < stages(); ++s) {
    if (!cut.recompute[at(s)]) parts.costs[at(s)].recompute = 0;
  }
  tasks_->set(parts.costs, parts.machine);
  return tasks_->span();
}

bool CutJudge::evaluate(const Cut& cut, bool at_any_price) {
  if (!fits(cut) || least(cut) * (1 - kSameTime) > best_ * problem_.steps || !seen_.insert(cut).second) return false;
  if (simulations_ >= problem_.most_simulations && !at_any_price) {
    used_up_ = true;
    return false;
  }
  ++simulations_;
  const double seconds = span(cut) / problem_.steps;
  if (seconds > best_ * (1 + kSameTime) || (!found_ && !(seconds < best_ * (1 - kSameTime)))) return false;
  std::vector<double> peaks = peaks_of(cut);
  for (int d = 0; d < devices(); ++d) {
    if (!has_room(room(d), peaks[at(d)])) return false;
  }
  // Of cuts that are as quick: those that run less twice, then those with the emptiest fullest device.
  const auto cost = [](const Cut& of, const std::vector<double>& bytes) {
    return std::pair(std::ranges::count(of.recompute, true), *std::ranges::max_element(bytes));
  };
  if (!(seconds < best_ * (1 - kSameTime)) && !(cost(cut, peaks) < cost(cut_, best_peaks_))) return false;
  best_ = std::min(best_, seconds);
  found_ = true;
  cut_ = cut;
  best_peaks_ = std::move(peaks);
  return true;
}

CutFound CutJudge::result() const { return found_ ? time(cut_) : CutFound(); }

CutFound CutJudge::time(const Cut& cut) const {
  const CutParts parts = parts_of(cut);
  const Simulation simulated =
      simulate(chained(with_recompute(problem_.schedule, cut.recompute), problem_.steps), parts.costs, parts.machine);
  CutFound result{.found = true, .first_layer = cut.first_layer, .recompute = cut.recompute};
  result.seconds = result.bound = simulated.span / problem_.steps;
  result.bubble = simulated.bubble;
  result.peak = peaks_of(cut);
  return result;
}

}  // namespace sluice::parallel
