// Bodies of ops for GPUs, each with a mistake that can be switched off. An op has one input of f32, and one output of
// f32 with 64 elements, where nothing else is said; its attributes are a Planting.
#pragma once

#include <atomic>
#include <cstdint>

#include "sluice/ndarray/push.h"

namespace sluice::testing {

struct Planting {
  bool planted = false;
  std::atomic<bool>* issued = nullptr;  ///< set when the body has issued, where a test waits for that
};

// ---- what a kernel touches. Seen by the compiler's instrumentation.
void writes_behind_its_output(ArrayContext& c);
void writes_its_input(ArrayContext& c);
/// The input is the first row of a matrix, the output of any size.
void reads_what_is_not_declared(ArrayContext& c);
void loads_a_misaligned_vector(ArrayContext& c);
/// The output is u8 with more than 2^31 elements.
void counts_with_32_bits(ArrayContext& c);
void hides_a_pointer(ArrayContext& c);
void leaves_a_barrier_out(ArrayContext& c);
void reads_unwritten_shared_memory(ArrayContext& c);

// ---- launches
void lets_some_threads_miss_a_barrier(ArrayContext& c);
void shuffles_out_of_its_mask(ArrayContext& c);
void does_not_say_that_threads_meet(ArrayContext& c);
void launches_too_many_threads(ArrayContext& c);
void wants_too_much_shared_memory(ArrayContext& c);
void gives_a_kernel_memory_of_the_host(ArrayContext& c);
/// The mistake is the caller's, whose input is on another card.
void reads_its_input(ArrayContext& c);

// ---- copies, and memory
void copies_from_pageable_memory(ArrayContext& c);
void names_the_wrong_kind_of_copy(ArrayContext& c);
void copies_too_much(ArrayContext& c);
void changes_a_pinned_buffer_before_its_copy(ArrayContext& c);
void frees_a_block_early(ArrayContext& c);
void uses_a_block_after_its_free(ArrayContext& c);

// ---- streams, events, and calls that wait for a whole card
void issues_to_the_null_stream(ArrayContext& c);
void makes_a_blocking_stream(ArrayContext& c);
void destroys_a_stream_in_flight(ArrayContext& c);
/// On the first of two cards.
void records_an_event_of_another_card(ArrayContext& c);
void allocates_with_a_wait(ArrayContext& c);
void waits_for_the_whole_card(ArrayContext& c);
void makes_a_handle(ArrayContext& c);

/// Multiplies the input, a square matrix, with itself.
void gives_a_wrong_leading_dimension(ArrayContext& c);

}  // namespace sluice::testing
