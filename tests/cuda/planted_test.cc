// Mistakes planted in bodies that issue: the double reports each with the op's name and its push, with no delay to
// help, and reports nothing where the same body does it right. Mistakes of the provider: planted_provider_test.cc.
#include "planted.h"

namespace sluice::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

/// What the body is given.
enum class Operands {
  matrices,       ///< 8 x 8 of f32
  first_row,      ///< the input is a matrix's first row
  large,          ///< the output has more elements than 32 bits count
  on_other_card,  ///< the mistake: the input is on another card
  while_silent,   ///< matrices; nothing that is issued runs before the body has issued all
};

struct Mistake {
  const char* name;
  ArrayPush::Body body;
  const char* report;
  Operands operands = Operands::matrices;
};

class CudaPlanted : public ::testing::TestWithParam<Mistake> {};

TEST_P(CudaPlanted, IsReportedByName) {
  const Mistake& mistake = GetParam();
  constexpr int line = __LINE__ + 14;  // of the push
  const auto program = [&](OnDouble&, bool planted) {
    const bool large = mistake.operands == Operands::large;
    const NDArray matrix = zeros({8, 8}).to(gpu(0)) + 1;
    const NDArray elsewhere = zeros({8, 8}).to(gpu(1)) + 1;
    const NDArray x = mistake.operands == Operands::first_row                  ? matrix.narrow(0, 0, 1)
                      : mistake.operands == Operands::on_other_card && planted ? elsewhere
                                                                               : matrix;
    const NDArray y = large ? empty({(std::int64_t{1} << 31) + 100}, DType::u8, gpu(0)) : matrix + 1;
    matrix.wait();
    elsewhere.wait();
    if (!large) y.wait();
    std::atomic<bool> issued{mistake.operands != Operands::while_silent};
    if (!issued) cuda_double::silence(0);
    const Ticket ticket = push_issuing(mistake.body, {planted, &issued}, x, y);
    while (!issued) std::this_thread::yield();
    cuda_double::release();
    ticket.wait();
  };
  // Memory that nobody touches takes none of the host's.
  const std::vector<std::string> reports = reports_of({.poison = mistake.operands != Operands::large}, {}, {}, program);
  EXPECT_THAT(reports, Contains(AllOf(HasSubstr("[planted] planted_test.cc:" + std::to_string(line)),
                                      HasSubstr(mistake.report))));
}

constexpr Mistake kMistakes[] = {
#ifndef SLUICE_SANITIZED  // these are seen by the instrumentation, which is off there
    {"OutOfBounds", writes_behind_its_output, "writes 4 bytes out of bounds"},
    {"WriteToAnInput", writes_its_input, "writes 4 bytes of what it was to read only"},
    {"MemoryNotDeclared", reads_what_is_not_declared, "which its op did not declare", Operands::first_row},
    {"MisalignedVector", loads_a_misaligned_vector, "at an address that is not a multiple of that"},
    {"IndexOf32Bits", counts_with_32_bits, "writes 1 bytes ", Operands::large},
    {"HiddenPointer", hides_a_pointer, "through a pointer that the launch did not see"},
    {"MissingBarrier", leaves_a_barrier_out, "since the last barrier"},
    {"UnwrittenSharedMemory", reads_unwritten_shared_memory, "that no thread of the block has written"},
    // The fill may come after the free, and there AddressSanitizer ends the process.
    {"BlockReusedEarly", frees_a_block_early, "accesses without order"},
#endif
    {"BarrierThatSomeMiss", lets_some_threads_miss_a_barrier, "different places"},
    {"ShuffleOutOfItsMask", shuffles_out_of_its_mask, "not in the mask"},
    {"LaunchThatHidesBarriers", does_not_say_that_threads_meet, "launched without barriers"},
    {"TooManyThreads", launches_too_many_threads, "is launched with blocks of (1025, 1, 1) threads"},
    {"TooMuchSharedMemory", wants_too_much_shared_memory, "is launched with 49153 bytes of shared memory"},
    {"KernelArgumentOfTheHost", gives_a_kernel_memory_of_the_host, "memory of the host that is not pinned"},
    {"MemoryOfAnotherCard", reads_its_input, "on device 0 is given memory of device 1", Operands::on_other_card},
    {"PageableCopy", copies_from_pageable_memory, "not pinned"},
    {"WrongKindOfCopy", names_the_wrong_kind_of_copy, "a copy whose kind is not that of its addresses"},
    {"CopyOfTooMuch", copies_too_much, "260 bytes"},
    {"PinnedBufferChangedBeforeItsCopy", changes_a_pinned_buffer_before_its_copy,
     "a pinned buffer of 256 bytes was changed before the copy from it had begun", Operands::while_silent},
    {"UseAfterFree", uses_a_block_after_its_free, "was freed"},
    {"NullStream", issues_to_the_null_stream, "cudaMemsetAsync on the null stream"},
    {"BlockingStream", makes_a_blocking_stream, "a stream that waits for the null stream is made"},
    {"StreamDestroyedInFlight", destroys_a_stream_in_flight, "a stream is destroyed while it has work in flight"},
    {"EventOfAnotherCard", records_an_event_of_another_card,
     "an event of device 1 is recorded in a stream of device 0"},
    {"AllocationThatWaits", allocates_with_a_wait, "cudaMalloc waits for all work of the device"},
    {"WaitForTheWholeCard", waits_for_the_whole_card, "cudaDeviceSynchronize"},
    {"HandleMadeInMidWork", makes_a_handle, "cublasLtCreate waits for all work of the device"},
    {"LeadingDimension", gives_a_wrong_leading_dimension, "cublasLtMatmul reads"},
};
INSTANTIATE_TEST_SUITE_P(Each, CudaPlanted, ::testing::ValuesIn(kMistakes),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace sluice::testing
