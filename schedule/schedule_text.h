// Schedules as text: to read, to keep in a file, and to write by hand.
//
//     # a comment
//     schedule mine
//     s0 F0-3 B0 F4 B1 F5-7 B2-7          the device of stage 0, with what it does, in order
//     s1 F0 I0 F1 I1W0 ...                F, B, I, W or R and a microbatch, or several that count up
//     d2 F2.0-3 F5.0 B5.0 ... U2 U5       a device with several stages: stage.microbatch; U and a stage
//     sum ((0 1) (2 3))                   how gradients are added (sum_tree.h); index order if left out
//     tied 0.weight 0 3                   a weight that the stages 0 and 3 share, by its name in the first of them;
//                                         perhaps with a tree of its uses behind it: (0 (1 2))
//     free 4,7                            no fixed order, with rings of 4 slots (F to I) and 7 (F to W) for each stage,
//                                         or a pair for every one
//     rings 4,7                           such rings in a fixed order
//
// Devices count in the order of their lines; stages and microbatches are as many as are named.
//
// A text may come from anywhere: whatever it is, reading it takes no more memory than 200 bytes for each of its own and
// for each of 128 Ki more, and a time that grows with it. So a text of n bytes lists at most 128 Ki + n / 2 actions,
// has at most half as many stages and microbatches, and as many uses of tied weights, those of a microbatch counted one
// by one. That is 64 stages with a thousand microbatches each in a few ranges; without ranges it is never too little,
// but for tied weights: where a schedule has more uses than that, parse_schedule() refuses what to_text() writes. Pure
// and thread-safe, but for load_schedule, which reads a file.
#pragma once

#include <string>
#include <string_view>

#include "sluice/schedule/action_lists.h"

namespace sluice::parallel {

/// One line a device, each ended by a newline: "s0 F0-3 B0 F4 B1 ...". Three or more actions of one kind and stage
/// whose microbatches count up are written as a range. With a name ('_' for its '#' and line breaks), a sum, tied
/// weights, rings and a free order where there are such, if `whole`. Ranges are left out where the text would be too
/// short for what it lists, so that it can be read again.
std::string to_text(const Schedule& schedule, bool whole = false);

/// Reads what to_text writes. `file` stands in errors. Throws std::invalid_argument for a text that is none, and for a
/// schedule that verify() refuses: one line of at most 200 bytes with the line of what is wrong; the last one where
/// that is in no line.
///     mine.txt:3: 'X4': an action is F, B, I, W, R or U and a number
///     mine.txt:2: schedule 'mine' lacks B(0,1)
Schedule parse_schedule(std::string_view text, const std::string& file = "schedule");

/// parse_schedule of a file's content, of 256 MiB at most. Blocks; throws std::runtime_error too, with the path and the
/// system's reason.
Schedule load_schedule(const std::string& path);

}  // namespace sluice::parallel
