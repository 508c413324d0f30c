#include "sluice/resources/providers/sim_control.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "sluice/resources/providers/detail/sim_core.h"

namespace sluice {
namespace {
constexpr std::size_t kReports = 1000;
constexpr std::size_t index(SimFault what) { return static_cast<std::size_t>(what); }
}  // namespace

void SimControl::fail_every(SimFault what, std::uint64_t k) {
  std::lock_guard lock(mutex_);
  Plan& plan = plans_[index(what)];
  plan.every = k;
  plan.since = plan.calls;
  if (k == 0) plan.once.clear();
}

void SimControl::fail_nth(SimFault what, std::uint64_t n) {
  std::lock_guard lock(mutex_);
  Plan& plan = plans_[index(what)];
  plan.once.push_back(plan.calls + n);
}

std::uint64_t SimControl::calls(SimFault what) const {
  std::lock_guard lock(mutex_);
  return plans_[index(what)].calls;
}

std::uint64_t SimControl::failures(SimFault what) const {
  std::lock_guard lock(mutex_);
  return plans_[index(what)].failures;
}

std::uint64_t SimControl::counts(SimFault what) {
  std::lock_guard lock(mutex_);
  Plan& plan = plans_[index(what)];
  const std::uint64_t call = ++plan.calls;
  const bool planted = std::erase(plan.once, call) > 0;
  if (!planted && (plan.every == 0 || (call - plan.since) % plan.every != 0)) return 0;
  ++plan.failures;
  return call;
}

void SimControl::lose(int device, std::uint64_t kernels) {
  if (kernels == 0) return change(device, Condition::lost);
  std::lock_guard lock(mutex_);
  at(device).lost_from = at(device).kernels.load() + kernels + 1;
  planned_.store(true);
}

void SimControl::silence(int device, std::uint64_t kernels) {
  if (kernels == 0) return change(device, Condition::silent);
  std::lock_guard lock(mutex_);
  at(device).silent_from = at(device).kernels.load() + kernels + 1;
  planned_.store(true);
}

void SimControl::release() {
  {
    std::lock_guard lock(mutex_);
    bool broken = false;
    for (DeviceState& device : devices_) {
      device.silent_from = 0;
      if (device.condition.load() == Condition::silent) device.condition.store(Condition::alive);
      broken |= device.condition.load() != Condition::alive;
    }
    broken_.store(broken);
  }
  wake();
}

void SimControl::come_to_kernel(int device) {
  DeviceState& state = at(device);
  const std::uint64_t number = state.kernels.fetch_add(1) + 1;
  if (!planned_.load()) return;
  bool lost, silent;
  {
    std::lock_guard lock(mutex_);
    lost = state.lost_from != 0 && number >= state.lost_from;
    silent = state.silent_from != 0 && number >= state.silent_from;
    if (silent) state.silent_from = 0;
  }
  if (lost || silent) change(device, lost ? Condition::lost : Condition::silent);
}

void SimControl::change(int device, Condition to) {
  std::vector<std::shared_ptr<detail::SimCore>> cores;  // perhaps the last to hold them, so they go without the lock
  {
    std::lock_guard lock(mutex_);
    DeviceState& state = at(device);
    if (state.condition.load() == Condition::lost) return;
    if (to == Condition::lost) {
      state.loss = std::make_exception_ptr(SimError("sim(" + std::to_string(device) + ") is lost"));
      // A report of no op, which is there before others go on that stand behind the device.
      for (const auto& weak : cores_) {
        auto core = weak.lock();
        if (!core) continue;
        core->note_loss(device, state.loss);
        cores.push_back(std::move(core));
      }
    }
    state.condition.store(to);
    broken_.store(true);
  }
  wake();
}

void SimControl::wake() {
  std::vector<std::shared_ptr<detail::SimCore>> cores;
  {
    std::lock_guard lock(mutex_);
    for (const auto& weak : cores_) {
      if (auto core = weak.lock()) cores.push_back(std::move(core));
    }
  }
  for (const auto& core : cores) core->advance();
}

std::exception_ptr SimControl::loss(int device) const noexcept {
  if (condition(device) != Condition::lost) return nullptr;
  std::lock_guard lock(mutex_);
  return at(device).loss;
}

void SimControl::attach(const std::shared_ptr<detail::SimCore>& core) {
  std::lock_guard lock(mutex_);
  std::erase_if(cores_, [](const auto& weak) { return weak.expired(); });
  cores_.push_back(core);
  for (int i = 0; i < static_cast<int>(core->devices.size()); ++i) {
    if (condition(i) == Condition::lost) core->note_loss(i, at(i).loss);
  }
}

std::vector<std::string> SimControl::reports() const {
  std::lock_guard lock(mutex_);
  return reports_;
}

std::vector<std::string> SimControl::take_reports() {
  std::lock_guard lock(mutex_);
  return std::exchange(reports_, {});
}

void SimControl::report(std::string line) {
  if (printing_.load()) std::fprintf(stderr, "sluice: %s\n", line.c_str());
  std::lock_guard lock(mutex_);
  if (reports_.size() < kReports) reports_.push_back(std::move(line));
}

}  // namespace sluice
