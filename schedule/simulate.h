// An event simulation of a schedule: a model of time and memory, without hardware. Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "sluice/schedule/action_lists.h"
#include "sluice/schedule/timeline.h"

namespace sluice::parallel {

/// A transfer takes latency + bytes / bandwidth seconds where it has the link for itself; those that use a link at the
/// same time share its bandwidth evenly.
struct Link {
  double latency = 0;                                          ///< seconds
  double bandwidth = std::numeric_limits<double>::infinity();  ///< bytes a second
};

/// How far actions' times stray from their costs: each is multiplied by a number of its own, which follows from the
/// seed, the stage, the microbatch and the kind alone.
struct Jitter {
  enum class Kind : std::uint8_t { none, uniform, normal };
  Kind kind = Kind::none;
  double amount = 0;  ///< uniform: from 1 - amount to 1 + amount; normal: the deviation, the factor being at least 0.05
  std::uint64_t seed = 0;
};

struct SimulateOptions {
  /// 0 gives each device a core of its own. With fewer cores than devices, all actions that could run do so at once and
  /// share the cores evenly: while k > cores of them run, each goes on at cores / k of its speed. A box that shares is
  /// longer than its cost, just as a clock around it would measure, and busy and bubble are computed from these longer
  /// boxes: they say how often a device had nothing to do, not how well the cores were used.
  int cores = 0;
  /// Seconds of a core that the thread takes which pushes the actions. It takes them from the start on, as in training,
  /// where the next step is pushed while this one runs; actions do not wait for it, but share the cores with it, and
  /// the run is not over before it.
  double push = 0;
  Link link = {};            ///< between the devices of neighbouring stages
  bool shared_link = false;  ///< true: one link for all; false: one for each pair and direction
  /// Transfers are copies that threads make: one takes a core for its bytes, as long as it takes at that bandwidth, and
  /// no link. Counts where cores are shared.
  bool link_takes_cores = false;
  std::vector<double> output_bytes =
      {};  ///< of each stage, for one microbatch; the gradient back is as large. Empty: 0
  /// Of each stage: the share of a whole backward pass after which the gradient of the stage's input can be sent, as a
  /// pipeline does, whose transfers wait for values and not for actions. Empty: at its end.
  std::vector<double> gradient_share = {};
  std::vector<StageBytes> bytes = {};  ///< of each stage; empty: memory is not looked at
  Jitter jitter = {};
};

struct SimulatedBox {
  Action action;
  double start = 0, end = 0;
};

/// A device's memory from a moment on.
struct MemoryPoint {
  double time = 0, bytes = 0;
};

/// Times are in the unit of the costs; the first box starts at 0.
struct Simulation {
  int devices = 0;
  std::vector<SimulatedBox> boxes;  ///< By start; boxes that start together by stage.
  double span = 0;                  ///< The end of the last box, or of pushing.
  double longest_device = 0;        ///< The longest time from a device's first start to its last end.
  double busy = 0;                  ///< The lengths of all boxes, summed over devices.
  double bubble = 0;                ///< 1 - busy / (devices x span); 0 where the span is 0.
  std::vector<std::vector<MemoryPoint>>
      memory;  ///< For each device, by time, without `work`; empty without SimulateOptions::bytes.
};

/// Runs the schedule in simulated time: a device starts an action as soon as it is idle and all that the action waits
/// for is over, in a fixed order its next one, in a free order the first of its list that can run. costs holds one
/// entry a stage. Throws std::invalid_argument for a schedule that verify() refuses, for a number of costs or bytes
/// other than the number of stages, for a cost that is negative or not finite, and for options that make no sense.
Simulation simulate(const Schedule& schedule, std::span<const StageCost> costs, const SimulateOptions& options = {});

/// What devices hold over time where the actions ran at these times, measured or not: for each device its memory, from
/// the first start on, by the table of action kinds, without `work`. Where a stage has no box of an I that the schedule
/// lists, as the first one, whose input wants no gradient, what it would free is free when its W starts. Throws
/// std::invalid_argument for another number of stages, for boxes of stages or microbatches that the schedule does not
/// have, and as check_actions() does.
std::vector<std::vector<MemoryPoint>> memory_over_time(const Schedule& schedule, std::span<const TimelineBox> boxes,
                                                       std::span<const StageBytes> stages);

/// The simulation's boxes as a timeline, for drawing; costs were in seconds.
std::vector<TimelineBox> to_timeline(const Simulation& simulation);

/// Many pipelines side by side: `replicas` of the model (data parallel), each stage of which is `shards` devices
/// (tensor parallel).
struct Cluster {
  int replicas = 1, shards = 1;
  Link shard_link = {};       ///< between the shards of a stage: an all-reduce behind every F, B and I uses it
  double shard_bytes = 0;     ///< what each shard sends in one
  Link stage_link = {};       ///< out of a group of devices to the next stage
  double output_bytes = 0;    ///< what a shard sends to the next stage for a microbatch, and gets back
  Link replica_link = {};     ///< between replicas: one all-reduce of each stage's gradients at its end
  double gradient_bytes = 0;  ///< what a shard sends in it
  int devices_of_a_link = 1;  ///< so many neighbouring devices share one stage_link and one replica_link
  Jitter jitter = {};
};

struct ClusterTimes {
  double span = 0;           ///< seconds, the all-reduce between replicas included
  double bubble = 0;         ///< 1 - the devices' busy time / (devices x span)
  std::int64_t devices = 0;  ///< replicas x shards x the schedule's
  std::int64_t tasks = 0;    ///< actions, transfers and all-reduces that were simulated
};

/// simulate() for all devices of a cluster, each with its own jitter. Throws as simulate() does, and for counts
/// below 1.
ClusterTimes simulate_cluster(const Schedule& schedule, std::span<const StageCost> costs, const Cluster& cluster);

}  // namespace sluice::parallel
