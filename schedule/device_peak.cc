#include "sluice/schedule/device_peak.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "sluice/schedule/sum_tree.h"

namespace sluice::parallel {

double FreeStage::between(const StageBytes& bytes) const {
  // All slots of the first ring are full, and the others wait for W; or all wait for W.
  const double first = recomputes ? std::max(bytes.input, bytes.saved) : bytes.saved;
  const double kept = splits ? bytes.kept : 0;
  return std::max(saved * first + (begun - saved) * kept, begun * kept);
}

double FreeStage::running(const StageBytes& bytes) const {
  const double kept = splits ? bytes.kept : 0;
  return std::max(splits ? std::min(bytes.saved, kept) - bytes.both : 0,
                  recomputes ? std::min(bytes.input, bytes.saved) : 0);
}

FreeStage free_stage(const Schedule& schedule, const Order& order, int stage) {
  const Rings rings = schedule.rings.empty() ? Rings{} : schedule.rings[static_cast<std::size_t>(stage)];
  const auto slots = [&](int ring) { return ring > 0 ? std::min(ring, schedule.microbatches) : schedule.microbatches; };
  FreeStage free{.begun = slots(rings.kept)};
  free.saved = std::min(slots(rings.saved), free.begun);
  for (int k = 0; k < schedule.microbatches; ++k) {
    free.splits = free.splits || order.giver(Result::kept, stage, k).microbatch == k;
    free.recomputes = free.recomputes || order.recomputes(stage, k);
  }
  return free;
}

DevicePeak::DevicePeak(const Schedule& schedule) : stages_(static_cast<std::size_t>(schedule.stages)) {
  const Order order(schedule);
  if (!schedule.fixed_order) {
    for (int s = 0; s < schedule.stages; ++s) free_.push_back(free_stage(schedule, order, s));
    return;
  }
  // What is held is linear in the bytes: with one of each kind the table of action kinds says how many.
  constexpr StageBytes kSaved{.saved = 1}, kKept{.kept = 1}, kInput{.input = 1}, kBoth{.both = 1};
  std::vector<PartialSums> sums(stages_, {schedule.sum, schedule.microbatches});
  Moment held(stages_);
  for (const Action& a : schedule.per_device.front()) {
    Counts& of = held[static_cast<std::size_t>(a.stage)];
    const auto count = [&](auto change) {
      of.saved += static_cast<float>(change(kSaved));
      of.kept += static_cast<float>(change(kKept));
      of.input += static_cast<float>(change(kInput));
      of.both += static_cast<float>(change(kBoth));
    };
    count([&](const StageBytes& one) { return held_at_start(a.kind, one, order.recomputes(a.stage, a.microbatch)); });
    of.work = 1;
    add(held);
    of.work = 0;
    count([&](const StageBytes& one) { return held_at_end(a.kind, one); });
    if (gives(a.kind, Result::weight_gradient)) {
      of.gradients = static_cast<float>(sums[static_cast<std::size_t>(a.stage)].arrive(a.microbatch) - 1);
      add(held);
    }
  }
  const std::set<Moment> different(moments_.begin(), moments_.end());
  moments_.clear();
  for (const Moment& moment : different) {
    std::erase_if(moments_, [&](const Moment& less) { return covers(moment, less); });
    if (std::ranges::none_of(moments_, [&](const Moment& more) { return covers(more, moment); })) {
      moments_.push_back(moment);
    }
  }
  for (const Moment& moment : moments_) flat_.insert(flat_.end(), moment.begin(), moment.end());
  moments_ = {};
}

/// Of moments that follow one another and grow, the last is enough.
void DevicePeak::add(const Moment& moment) {
  while (!moments_.empty() && covers(moment, moments_.back())) moments_.pop_back();
  if (moments_.empty() || !covers(moments_.back(), moment)) moments_.push_back(moment);
}

/// `both` is taken off what else is there, so of it there must be as many.
bool DevicePeak::covers(const Moment& more, const Moment& less) {
  for (std::size_t s = 0; s < more.size(); ++s) {
    const Counts &m = more[s], &l = less[s];
    if (m.saved < l.saved || m.kept < l.kept || m.input < l.input || m.both != l.both || m.work < l.work ||
        m.gradients < l.gradients) {
      return false;
    }
  }
  return true;
}

double DevicePeak::most(std::span<const StageBytes> stages) const {
  double weights = 0, most = 0;
  for (const StageBytes& bytes : stages) weights += bytes.weights;
  if (!free_.empty()) {
    for (std::size_t s = 0; s < stages_; ++s) {
      weights += free_[s].between(stages[s]);
      most = std::max(most, free_[s].running(stages[s]) + stages[s].work);
    }
    return weights + most;
  }
  for (std::size_t i = 0; i < flat_.size();) {
    double held = 0;
    for (const StageBytes& bytes : stages) {
      const Counts& n = flat_[i++];
      held += n.saved * bytes.saved + n.kept * bytes.kept + n.input * bytes.input + n.both * bytes.both +
              n.work * bytes.work + n.gradients * bytes.gradients;
    }
    most = std::max(most, held);
  }
  return weights + most;
}

}  // namespace sluice::parallel
