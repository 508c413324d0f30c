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
      credit_batch_(std::clamp<std::int64_t>(options.max_ops / 128, 1, 64)),
      credits_(options.max_ops) {
  P::prepare_fences();
  make_lost_root();
  next_variable_.store(options.counters.variables, std::memory_order_relaxed);
  slots_.push_back(new_slot());
  spare_ = slots_.front().get();
  spare_->taken.store(true, std::memory_order_relaxed);
  const auto add = [&](Device device, LaneKind kind, int width) {
    lanes_.push_back(std::make_unique<Lane<P>>(device, kind, width, static_cast<std::uint16_t>(lanes_.size())));
  };
  add(cpu(0), LaneKind::io, 1);
  const int devices = options.logical_cpus;
  for (int i = 0; i < devices; ++i) {
    // The thread budget is shared out; a device beyond the budget still has one thread, so that it makes progress.
    const int share = options.threads / devices + (i < options.threads % devices ? 1 : 0);
    add(cpu(i), LaneKind::compute, std::max(1, share));
    add(cpu(i), LaneKind::copy_in, 1);
    add(cpu(i), LaneKind::copy_out, 1);
  }
  for (int i = 0; i < options.simulated_gpus; ++i)
    for (LaneKind kind : {LaneKind::compute, LaneKind::copy_in, LaneKind::copy_out}) {
      add(sim(i), kind, 1);
      lanes_.back()->stream = std::make_unique<SimulatedStream>(options.simulated_delay);
    }
}

template <class P>
Core<P>::~Core() {
  for (auto& lane : lanes_) lane->stream.reset();  // their threads end before anything that they touch
  const std::uint32_t slabs = slab_count_.load(std::memory_order_acquire);
  for (std::uint32_t s = 0; s < slabs; ++s) delete slabs_[s].load(std::memory_order_relaxed);
}

template <class P>
VariableBase* Core<P>::new_variable(const char* name, bool has_value) {
  refuse_forked("variable");
  Node* const node = nodes_.make();
  node->core = this;
  // A variable keeps its engine's core alive: a handle may outlive the Engine.
  node->keep = shared_from_this();
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
  if (!keep_for_lookers(node)) nodes_.end(node, forked_.load(std::memory_order_relaxed));
}

template <class P>
int Core<P>::threads(Device device) const {
  const Lane<P>* lane = lane_for(Place(device));
  return lane ? lane->width : 0;
}

template <class P>
int Core<P>::device_count(DeviceKind kind) const {
  return kind == DeviceKind::cpu ? options_.logical_cpus : kind == DeviceKind::sim ? options_.simulated_gpus : 0;
}

template <class P>
std::vector<TraceEvent> Core<P>::stop_trace() {
  refuse_forked("stop_trace");
  tracing_.store(false);
  std::vector<TraceEvent> all;
  {
    std::lock_guard lock(slots_mutex_);
    for (auto& slot : slots_) {
      std::lock_guard trace_lock(slot->trace_mutex);
      all.insert(all.end(), std::make_move_iterator(slot->trace.begin()), std::make_move_iterator(slot->trace.end()));
      slot->trace.clear();
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
