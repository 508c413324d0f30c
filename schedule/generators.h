// The known schedules: how to fill a Schedule (action_lists.h) for a number of stages and microbatches.
//
// p devices, m microbatches; a device's place in the pipeline is i. F, I and W are the times of an action of a stage,
// B = I + W. The bubbles hold for equal stages, no time for transfers, and m as large as is said.
// Each function is pure, thread-safe, never blocks, and throws std::invalid_argument with one line where it is not
// defined: for stages < 1 or microbatches < 1, and as it says. Each gives a schedule that verify() accepts.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/schedule/action_lists.h"

namespace sluice::parallel {

/// What makes a schedule for a pipeline of so many stages.
using Generator = std::function<Schedule(int stages, int microbatches)>;

/// All forwards, then all backwards, both in index order (so that gradients add up as in a sequential run). Bubble
/// (p - 1)(F + B); m microbatches are saved. Huang et al., GPipe, 2019.
Schedule gpipe(int stages, int microbatches);

/// One forward, one backward: device i runs p - 1 - i forwards to warm up, then (F, B) pairs, then the remaining
/// backwards. Bubble (p - 1)(F + B); min(p - i, m) are saved. Narayanan et al., PipeDream, 2019.
Schedule one_f_one_b(int stages, int microbatches);

/// 1F1B with `chunks` stages on each device: device i has the stages i, p + i, 2p + i ... Bubble (p - 1)(F + B) /
/// chunks in times of a device's whole share. Defined where the stages are a multiple of chunks and m a multiple of p;
/// one chunk is one_f_one_b. Narayanan et al., Efficient large-scale training on GPU clusters, 2021.
Generator interleaved(int chunks);

/// Zero bubble with 1F1B's memory: B in two halves, W(k) behind I(k + i). Bubble (p - 1)(F + I - W) for m >= p where
/// W <= F and W <= I; longer than that for all other times. Device i has the `kept` values of up to i microbatches that
/// wait for their W, which recomputation does not free: see with_recompute(). Qi et al., Zero bubble pipeline
/// parallelism, 2023; so are the next two.
Schedule zb_h1(int stages, int microbatches);

/// 2(p - 1 - i) + 1 forwards to warm up, W(k) behind I(k + 2i). Bubble (p - 1)(F + I - 2W), measured as the longest
/// time from a device's first action to its last, for m >= 2p where W <= F and 2W <= F + I; longer for all other times.
/// Up to 2p - 1 are saved or kept.
Schedule zb_h2(int stages, int microbatches);

/// Device i has the stages i and 2p - 1 - i, so that the last stage's gradient is where the first forward was. No
/// bubble where F = I = W and m >= 2p; saved and kept are those of p whole devices. Defined for an even number of
/// stages.
Schedule zbv(int stages, int microbatches);

/// The schedule without its fixed order: a device runs whatever is ready, and of that what stands first in its list. So
/// the lists are the priorities, of each action against each other one, and `rings`, one pair for each stage, are all
/// that holds a forward back. Named "free " and the schedule's name. Throws std::invalid_argument for another number of
/// rings.
Schedule in_free_order(Schedule schedule, std::vector<Rings> rings);

/// No fixed order and one stage a device; preferred is the order of the zero-bubble schedule that begins `kept`
/// microbatches before it ends the first: of zb_h1 with p, of zb_h2 with 2p - 1, and between them in proportion. 0
/// slots: as many as ZB-H1 has on its first device, p, for `saved`, and 2p - 1 for `kept`.
Generator dynamic(Rings rings = {});

/// No fixed order and ZBV's stages: in_free_order(zbv()), with slots of a *device*, shared out as ZBV uses them: of n
/// the later stage of device i has n (i + 1) / (2p), rounded, and the earlier one the rest, each at least 1. 0 slots:
/// 2p, what ZBV holds between two actions. Nothing waits for what is late while something else can run, so under jitter
/// or behind slow links it is mostly quicker than ZBV (docs/results.md). Throws std::invalid_argument for 1 slot too.
Generator dynamic_v(Rings of_device = {});

/// The schedule with R actions for the marked stages, one mark a stage: each directly before the B or I of its
/// microbatch. In a free order it may run long before, where a device is idle. It frees what is `saved` from F to R,
/// and nothing of what is `kept` from I to W: where W comes late, as in zero-bubble schedules, a device may need as
/// much as before. With 4 equal stages of weights 7, saved 8, kept 12 (8 of these saved too) and input 1.5, 1F1B needs
/// 39, and 21 with R; ZB-H1 needs 55, and 55. Throws std::invalid_argument for another number of marks.
Schedule with_recompute(Schedule schedule, const std::vector<bool>& stages);
/// The schedule with a U of each stage at the end of its device's list.
Schedule with_updates(Schedule schedule);

/// So many steps of a fixed order one behind the other, as one schedule with that many times the microbatches.
Schedule chained(const Schedule& step, int steps);

/// The generator of that name: "gpipe", "1f1b", "interleaved:2" (its chunks), "zb-h1", "zb-h2", "zbv", "dynamic",
/// "dynamic:8,15" (its rings), "dynamic-v" or "dynamic-v:16,16". Throws std::invalid_argument for another.
Generator generator(std::string_view name);
/// generator(name)(stages, microbatches).
Schedule make_schedule(std::string_view name, int stages, int microbatches);

/// How many stages of a device the schedule of that name has: 2 for "zbv", and the chunks of an interleaved one. Throws
/// as generator() does.
int stages_of_a_device(std::string_view name);

/// What generator() knows, for texts: "gpipe, 1f1b, ...".
std::string known_schedules();

}  // namespace sluice::parallel
