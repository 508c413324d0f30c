// Planted faults.
#include "double.h"

#include <atomic>
#include <cstdlib>

namespace cuda_double {
namespace {

constexpr std::size_t index(Fault kind) { return static_cast<std::size_t>(kind); }

cudaError_t usual(Fault kind) {
  switch (kind) {
    case Fault::allocation:
    case Fault::pinned:
      return cudaErrorMemoryAllocation;
    case Fault::launch:
      return cudaErrorLaunchOutOfResources;
    case Fault::library:
    case Fault::write:
      return cudaErrorNotSupported;
    default:
      return cudaErrorUnknown;
  }
}

cudaError_t counted(World::Plan& plan, Fault kind) {
  const std::uint64_t call = ++plan.calls;
  cudaError_t error = cudaSuccess;
  if (const auto at = plan.once.find(call); at != plan.once.end()) {
    error = at->second;
    plan.once.erase(at);
  } else if (plan.every != 0 && (call - plan.since) % plan.every == 0) {
    error = plan.every_error;
  } else {
    return cudaSuccess;
  }
  ++plan.failures;
  return error == cudaSuccess ? usual(kind) : error;
}

void plan_late(int device, const World::Late& what) {
  const auto world = World::current();
  if (device < 0 || device >= world->devices()) return;
  if (what.left == 0) return world->happen(device, what);
  std::lock_guard lock(world->faults_mutex);
  world->late[static_cast<std::size_t>(device)].push_back(what);
  world->planned.fetch_add(1);
}

std::atomic<bool> shut_down{false};

}  // namespace

void shut_down_at_exit() {
  static const int registered = std::atexit([] { shut_down.store(true); });
  static_cast<void>(registered);
}

void World::count(Fault kind) {
  if (shut_down.load(std::memory_order_relaxed)) throw Refused{cudaErrorCudartUnloading};
  std::lock_guard lock(faults_mutex);
  cudaError_t error = counted(plans[index(Fault::any)], Fault::any);
  if (kind != Fault::any) {
    const cudaError_t own = counted(plans[index(kind)], kind);
    if (own != cudaSuccess) error = own;
  }
  if (error != cudaSuccess) throw Refused{error};
}

void World::happen(int device, const Late& what) {
  const auto at = static_cast<std::size_t>(device);
  if (what.silent) return control->silence(device);
  if (!what.sticky) return pending[at].store(what.error);
  sticky[at].store(what.error);
  control->lose(device);
}

void World::end_command(int device) {
  if (planned.load() == 0) return;
  std::vector<Late> now;
  {
    std::lock_guard lock(faults_mutex);
    std::erase_if(late[static_cast<std::size_t>(device)], [&](Late& each) {
      if (--each.left > 0) return false;
      now.push_back(each);
      return true;
    });
    planned.fetch_sub(static_cast<int>(now.size()));
    for (const Late& each : now) happen(device, each);  // with the mutex: release() comes before or after
  }
}

void World::check_health(int device) {
  const auto at = static_cast<std::size_t>(device);
  if (const cudaError_t error = sticky[at].load(); error != cudaSuccess) throw Refused{error};
  // A kernel that threw ended as a card's would: nothing works after it.
  if (core->devices[at]->errors.count() > 0) throw Refused{cudaErrorLaunchFailure};
  if (pending[at].load() == cudaSuccess) return;
  if (const cudaError_t error = pending[at].exchange(cudaSuccess); error != cudaSuccess) throw Refused{error};
}

void fail_nth(Fault kind, std::uint64_t n, cudaError_t error) {
  const auto world = World::current();
  std::lock_guard lock(world->faults_mutex);
  World::Plan& plan = world->plans[index(kind)];
  plan.once[plan.calls + n] = error;
}

void fail_every(Fault kind, std::uint64_t k, cudaError_t error) {
  const auto world = World::current();
  std::lock_guard lock(world->faults_mutex);
  World::Plan& plan = world->plans[index(kind)];
  plan.every = k;
  plan.since = plan.calls;
  plan.every_error = error;
}

std::uint64_t calls(Fault kind) {
  const auto world = World::current();
  std::lock_guard lock(world->faults_mutex);
  return world->plans[index(kind)].calls;
}

std::uint64_t failures(Fault kind) {
  const auto world = World::current();
  std::lock_guard lock(world->faults_mutex);
  return world->plans[index(kind)].failures;
}

void fail_late(int device, cudaError_t error, std::uint64_t commands) {
  plan_late(device, {.left = commands, .error = error, .sticky = false, .silent = false});
}
void fail_sticky(int device, cudaError_t error, std::uint64_t commands) {
  plan_late(device, {.left = commands, .error = error, .sticky = true, .silent = false});
}
void silence(int device, std::uint64_t commands) {
  plan_late(device, {.left = commands, .error = cudaSuccess, .sticky = false, .silent = true});
}

void release() {
  const auto world = World::current();
  std::lock_guard lock(world->faults_mutex);
  for (auto& planned : world->late) {
    world->planned.fetch_sub(static_cast<int>(std::erase_if(planned, [](const World::Late& l) { return l.silent; })));
  }
  world->control->release();
}

}  // namespace cuda_double
