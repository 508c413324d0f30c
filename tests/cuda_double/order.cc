// What the program tells the record of accesses.
#include "cuda_double/order.h"

#include <algorithm>

#include "double.h"

namespace cuda_double {
namespace {

struct Point {
  std::shared_ptr<SimStream> sim;
  std::uint64_t point = 0;
  int device = 0;
  std::uint64_t named = 0, write = 0;
};

/// The streams' own points. A stream that is gone stands before everything anyhow.
std::vector<Point> points_of(World& world, std::span<const Passed> passed) {
  std::vector<Point> points;
  for (const auto& [handle, value] : passed) {
    const StreamHandle stream = world.find(handle);
    if (!stream) continue;
    std::lock_guard lock(stream->mutex);
    if (!stream->sim) continue;
    // The first write of at least the value.
    const auto at = std::lower_bound(stream->written.begin(), stream->written.end(), value,
                                     [](const auto& write, std::uint64_t v) { return write.first < v; });
    if (at != stream->written.end()) points.push_back({stream->sim, at->second, stream->device, value, at->first});
  }
  return points;
}

}  // namespace

bool keeps_order() { return World::current()->core->observer != nullptr; }

void ordered_after(cudaStream_t handle, std::span<const Passed> passed) {
  const auto world = World::current();
  if (!world->core->observer) return;
  world->explicit_order.store(true);
  const StreamHandle stream = world->find(handle);
  if (!stream) return;
  const std::vector<Point> points = points_of(*world, passed);
  std::vector<sluice::StreamEvent> events;
  for (const Point& each : points) {
    if (each.sim->reached() < each.point && !world->is_lost(each.device)) {
      world->report_in(*stream, "work takes a point of another stream as passed that is not (its " +
                                    std::to_string(each.named) + " by its write of " + std::to_string(each.write) +
                                    ", point " + std::to_string(each.point) + " of device " +
                                    std::to_string(each.device) + ", and it has passed " +
                                    std::to_string(each.sim->reached()) + ")");
    } else {
      events.push_back({each.sim.get(), each.point});
    }
  }
  std::lock_guard lock(stream->mutex);
  if (stream->sim) stream->sim->ordered_after(events);
}

namespace {

using RecordPoints = std::vector<std::pair<sluice::AccessObserver::Stream, std::uint64_t>>;

RecordPoints record_points(World& world, std::span<const Passed> passed) {
  RecordPoints points;
  for (const Point& each : points_of(world, passed)) points.emplace_back(each.sim->observed_as(), each.point);
  return points;
}

}  // namespace

void host_after(std::span<const Passed> passed, bool afresh) {
  const auto world = World::current();
  if (!world->core->observer) return;
  world->explicit_order.store(true);
  world->core->observer->host_after(record_points(*world, passed), afresh);
}

void host_returns() {
  const auto world = World::current();
  if (world->core->observer) world->core->observer->host_returns();
}

void block_reused(const void* block) {
  const auto world = World::current();
  if (world->core->observer) world->core->observer->block_reused(block);
}

void host_touches(std::span<const sluice::MemoryUse> uses) {
  const auto world = World::current();
  if (world->core->observer) world->core->observer->host_touches(uses, world->core->caller());
}

}  // namespace cuda_double
