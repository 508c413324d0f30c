// Core<P>, making and asking: lanes, variables, traces, counts.
#pragma once

#include <algorithm>
#include <iterator>
#include <tuple>

#include "sluice/engine/detail/core.h"

namespace sluice::detail {

inline std::uint64_t next_engine_uid() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1);
}

template <class P>
Core<P>::Core(const CoreOptions& options)
    : options_(options),
      uid_(next_engine_uid()),
      slabs_(new Atomic<Slab*>[kMaxSlabs]()),
      caps_(options.max_ops, options.max_bytes) {
  P::prepare_fences();
  make_lost_root();
  next_variable_.store(options.counters.variables, std::memory_order_relaxed);
  slots_.push_back(new_slot());
  spare_ = slots_.front().get();
  spare_->taken.store(true, std::memory_order_relaxed);
  const auto add = [&](Device device, LaneKind kind, int width) {
    lanes_.all.push_back(std::make_unique<Lane<P>>(device, kind, width, static_cast<std::uint16_t>(lanes_.all.size())));
  };
  add(cpu(0), LaneKind::io, 1);
  std::size_t count = 1;
  for (const auto& provider : options.providers)
    count += std::size(kDeviceLanes) * static_cast<std::size_t>(provider->devices());
  for (const auto& provider : options.providers) {
    typename Lanes<P>::Devices& devices = lanes_.devices[static_cast<std::size_t>(provider->kind())];
    devices = {lanes_.all.size(), static_cast<std::size_t>(provider->devices())};
    std::shared_ptr<Watch<P>> watch;
    for (int i = 0; i < provider->devices(); ++i)
      for (const LaneKind kind : kDeviceLanes) {
        std::unique_ptr<Stream> stream = provider->make_stream(i, kind);
        add({provider->kind(), static_cast<std::uint8_t>(i)}, kind,
            !stream && kind == LaneKind::compute ? share_of_threads(options, i) : 1);
        if (!stream) continue;
        if (!watch) watch = lanes_.watches.emplace_back(std::make_shared<Watch<P>>(provider));
        Lane<P>& lane = *lanes_.all.back();
        lane.queue = std::make_unique<DeviceQueue<P>>(*provider, i, std::move(stream), count,
                                                      options.device_limit.count() > 0, options.max_ahead);
        lane.stream = lane.queue->stream.get();
        lane.path = kOnStream;
        lane.queue->watch = watch.get();
        watch->queues.push_back(lane.queue.get());
      }
    if (watch) watch->devices = std::vector<typename Watch<P>::Device>(devices.count);
  }
  if (options.serial) collected_.resize(lanes_.all.size());
  quick_waits_ = !options.log_order;
  prepare_order();
}

/// The threads are shared out over the devices. Each device has at least one thread, so that it makes progress.
template <class P>
int Core<P>::share_of_threads(const CoreOptions& options, int device) {
  const int devices = options.logical_cpus;
  return std::max(1, options.threads / devices + (device < options.threads % devices ? 1 : 0));
}

template <class P>
Core<P>::~Core() {
  for (const auto& watch : lanes_.watches) {
    watch->state.store(Watch<P>::ended, std::memory_order_seq_cst);
    watch->parker.signal();
  }
  for (auto& lane : lanes_.all) lane->queue.reset();  // streams end before anything that they touch
  for (auto& slot : slots_) nodes_.give_back(slot->nodes);
  const std::uint32_t slabs = slab_count_.load(std::memory_order_acquire);
  for (std::uint32_t s = 0; s < slabs; ++s) delete slabs_[s].load(std::memory_order_relaxed);
}

template <class P>
VariableBase* Core<P>::new_variable(const char* name, bool has_value) {
  refuse_forked("variable");
  Slot<P>* const slot = known_slot();
  Node* const node = nodes_.make(slot ? &slot->nodes : nullptr);
  count_variable(slot, 1);
  node->core = this;
  node->name = name;
  node->number = next_variable_.fetch_add(1, std::memory_order_relaxed);
  if (!has_value) {
    node->mark.store(Mark::empty, std::memory_order_relaxed);
    node->tail.store(marked_tail<P>(), std::memory_order_relaxed);
  }
  return node;
}

template <class P>
void Core<P>::delete_variable(VariableBase* variable) noexcept {
  Node* node = static_cast<Node*>(variable);
  if (Chain<P>::leave(*node)) delete_node(node);
}

template <class P>
void Core<P>::delete_node(Node* node) noexcept {
  if (poisoned(node->mark.load(std::memory_order_relaxed)) && !forked_.load(std::memory_order_relaxed))
    clear_poison(*node);
  if (!keep_for_lookers(node)) end_node(node);
}

/// May destroy the core, if this was the last that was left of it.
template <class P>
void Core<P>::end_node(Node* node) noexcept {
  Slot<P>* const slot = known_slot();
  nodes_.end(node, forked_.load(std::memory_order_relaxed), slot ? &slot->nodes : nullptr);
  count_variable(slot, -1);
}

// ---- how long the core lives

/// Counts a variable made or destroyed. Each thread has a count of its own. When the Engine is gone the counts are
/// added up, once, and from then on there is one count, which at 0 ends the core.
template <class P>
[[gnu::always_inline]] inline void Core<P>::count_variable(Slot<P>* slot, int change) noexcept {
  if (slot) [[likely]] {
    slot->counting.store(true, std::memory_order_relaxed);
    P::light_fence();
    const bool orphaned = orphaned_.load(std::memory_order_acquire);
    if (!orphaned)
      slot->variables.store(slot->variables.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
    slot->counting.store(false, std::memory_order_release);
    if (!orphaned) return;
  }
  count_slowly(change);
}

template <class P>
[[gnu::noinline, gnu::cold]] void Core<P>::count_slowly(std::int64_t change) noexcept {
  bool last = false;
  {
    std::lock_guard lock(orphan_mutex_);
    variables_left_ += change;
    last = all_counted_ && variables_left_ == 0;
  }
  if (last) delete this;
}

/// Called when no Engine and nobody else has the core any more, but for variables. In a forked child it stays, because
/// a thread may have been counting at the fork.
template <class P>
void Core<P>::orphan() noexcept {
  if (forked_.load(std::memory_order_relaxed)) return;
  orphaned_.store(true, std::memory_order_seq_cst);
  P::heavy_fence();
  std::int64_t sum = 0;
  for (const auto& slot : slots_) {
    while (slot->counting.load(std::memory_order_acquire)) P::pause();
    sum += slot->variables.load(std::memory_order_relaxed);
  }
  bool none = false;
  {
    std::lock_guard lock(orphan_mutex_);
    variables_left_ += sum;
    all_counted_ = true;
    none = variables_left_ == 0;
  }
  if (none) delete this;
}

template <class P>
int Core<P>::threads(Device device) const {
  const Lane<P>* lane = lane_for(Place(device));
  return lane ? lane->width : 0;
}

template <class P>
int Core<P>::device_count(DeviceKind kind) const {
  const auto at = static_cast<std::size_t>(kind);
  return at < kDeviceKinds ? static_cast<int>(lanes_.devices[at].count) : 0;
}

template <class P>
std::shared_ptr<Provider> Core<P>::provider(Device device) const {
  for (const auto& provider : options_.providers)
    if (provider->kind() == device.kind && device.index < provider->devices()) return provider;
  throw UsageError(no_device(device));
}

/// Says that a device is not there, and why if its provider knows.
template <class P>
std::string Core<P>::no_device(Device device) const {
  for (const auto& provider : options_.providers)
    if (provider->kind() == device.kind && !provider->unavailable().empty()) return provider->unavailable();
  return "no device " + to_string(device) + " in this engine";
}

template <class P>
LaneStats Core<P>::lane_stats(const Place& place) const {
  const Lane<P>* const lane = lane_for(place);
  LaneStats stats;
  if (!lane || !lane->queue) return stats;
  const DeviceQueue<P>& queue = *lane->queue;
  stats.finished = queue.finished.load(std::memory_order_acquire);
  stats.points = queue.points.load(std::memory_order_relaxed);
  stats.issued = queue.issued.load(std::memory_order_acquire);
  stats.waits = queue.waits.load(std::memory_order_relaxed);
  stats.covered = queue.covered.load(std::memory_order_relaxed);
  return stats;
}

template <class P>
DeviceOp Core<P>::device_op(const Operation* operation) const {
  if (operation->kind != OpKind::captured) return {id_of(operation), 0};
  const auto* info = static_cast<const Info*>(operation);
  return {id_seen(operation), 1 + static_cast<std::uint32_t>(info->op - info->program->ops.get())};
}

template <class P>
void Core<P>::start_trace() {
  std::lock_guard lock(slots_mutex_);
  if (tracing_.load(std::memory_order_relaxed) != 0) return;
  if (++traces_ == 0) ++traces_;
  tracing_.store(traces_, std::memory_order_relaxed);
}

template <class P>
std::vector<TraceEvent> Core<P>::stop_trace() {
  refuse_forked("stop_trace");
  std::vector<TraceEvent> all;
  {
    std::lock_guard lock(slots_mutex_);
    tracing_.store(0, std::memory_order_relaxed);
    for (auto& slot : slots_) {
      std::vector<TraceEvent> some;
      {
        std::lock_guard trace_lock(slot->trace_mutex);
        some.swap(slot->trace);
      }
      if (all.empty()) {
        all.swap(some);
      } else {
        all.insert(all.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
      }
    }
  }
  std::sort(all.begin(), all.end(), [](const TraceEvent& a, const TraceEvent& b) {
    return std::tie(a.start, a.end, a.pushed) < std::tie(b.start, b.end, b.pushed);
  });
  return all;
}

template <class P>
std::vector<LoggedPush> Core<P>::take_order() {
  refuse_forked("take_order");
  std::lock_guard lock(log_mutex_);
  if (std::exchange(log_lost_, false)) throw std::bad_alloc();
  return std::exchange(log_, {});
}

}  // namespace sluice::detail
