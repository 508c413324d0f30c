// Kernels on the double: values against plain loops, and each mistake of a kernel reported by name.
#include <numeric>

#include "fixture.h"
#include "sluice/engine/order_observer.h"
#include "sluice/engine/provider.h"
#include "test_kernels.h"

namespace {

using Kernels = OnDouble;

std::vector<float> numbers(int n) {
  std::vector<float> x(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) x[static_cast<std::size_t>(i)] = static_cast<float>((i * 7) % 13);
  return x;
}

std::vector<float> sums_of_blocks(const std::vector<float>& x, std::size_t blocks) {
  std::vector<float> sums(blocks, 0.0f);
  for (std::size_t i = 0; i < x.size(); ++i) sums[i / 128] += x[i];
  return sums;
}

TEST_F(Kernels, PointersInStructsAreFound) {
  const cudaStream_t s = make_stream();
  const std::vector<float> x = numbers(1000);
  float* const a = to_device(x, s);
  float* const sum = allocate<float>(1000, s);
  test_kernels::add(test_kernels::Vectors{a, a}, sum, 1000, s);
  CHECK_CUDA(cudaGetLastError());
  const auto got = to_host(sum, 1000, s);
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(got[i], 2 * x[i]);
}

TEST_F(Kernels, SumsOverSharedMemoryAndShufflesAreThoseOfLoops) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    begin({.seed = seed});
    const cudaStream_t s = make_stream();
    const std::vector<float> x = numbers(1000);
    const unsigned blocks = 8;
    float* const on = to_device(x, s);
    float* const sums = allocate<float>(blocks, s);
    test_kernels::block_sums(on, sums, 1000, blocks, s);
    EXPECT_EQ(to_host(sums, blocks, s), sums_of_blocks(x, blocks)) << seed;
    test_kernels::warp_sums(on, sums, 1000, blocks, s);
    EXPECT_EQ(to_host(sums, blocks, s), sums_of_blocks(x, blocks)) << seed;
  }
}

TEST_F(Kernels, AtomicsCountAndBlocksOfAllSizesTurn) {
  const cudaStream_t s = make_stream();
  std::vector<int> x(777);
  std::iota(x.begin(), x.end(), 0);
  int* const on = to_device(x, s);
  int* const counts = to_device(std::vector<int>(16, 0), s);
  test_kernels::histogram(on, counts, 777, s);
  const auto got = to_host(counts, 16, s);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(got[static_cast<std::size_t>(i)], 777 / 16 + (i < 777 % 16));
  for (const unsigned threads : {1u, 31u, 33u, 777u}) {
    int* const block = to_device(x, s);
    test_kernels::reverse_in_block(block, threads, s);
    const auto turned = to_host(block, threads, s);
    for (unsigned i = 0; i < threads; ++i) ASSERT_EQ(turned[i], static_cast<int>(threads - 1 - i));
    test_kernels::reverse_in_dynamic(block, threads, s);
    const auto back = to_host(block, threads, s);
    for (unsigned i = 0; i < threads; ++i) ASSERT_EQ(back[i], static_cast<int>(i));
  }
}

TEST_F(Kernels, IndicesOver32BitsReachTheirElements) {
  begin({.poison = false});  // so that what nobody touches takes no memory
  const cudaStream_t s = make_stream();
  constexpr std::size_t count = (std::size_t{1} << 31) + 100;
  float* const x = allocate<float>(count, s);
  test_kernels::write_at(x, (1ll << 31) + 99, s);
  EXPECT_EQ(to_host(x + count - 2, 2, s), (std::vector<float>{0, 1}));
  CHECK_CUDA(cudaFreeAsync(x, s));
  CHECK_CUDA(cudaStreamSynchronize(s));
}

TEST_F(Kernels, PinnedMemoryIsTouchedAsItIs) {
  const cudaStream_t s = make_stream();
  float* const host = pinned<float>(2);
  host[1] = 0;
  const sluice::MemoryUses none(std::span<const sluice::MemoryUse>{});  // an op declares none of it
  test_kernels::write_at(host, 1, s);
  CHECK_CUDA(cudaStreamSynchronize(s));
  EXPECT_EQ(host[1], 1);
  CHECK_CUDA(cudaFreeHost(host));
}

// What instrumentation sees; with a sanitizer there is none.
#ifndef SLUICE_SANITIZED

TEST_F(Kernels, AMissingBarrierIsARace) {
  const cudaStream_t s = make_stream();
  float* const x = to_device(numbers(1000), s);
  float* const sums = allocate<float>(8, s);
  test_kernels::block_sums(x, sums, 1000, 8, s, false);
  CHECK_CUDA(cudaStreamSynchronize(s));
  const auto reports = cuda_double::take_reports();
  ASSERT_GE(reports.size(), 1u);
  EXPECT_THAT(reports[0],
              ::testing::AllOf(::testing::HasSubstr("block_sums_kernel"), ::testing::HasSubstr("shared memory"),
                               ::testing::HasSubstr("since the last barrier")));
}

TEST_F(Kernels, OutOfBoundsIsReportedAndTheProgramGoesOn) {
  const cudaStream_t s = make_stream();
  float* const before = allocate<float>(1, s);
  float* const x = to_device(numbers(10), s);
  test_kernels::write_at(x, 10, s);
  expect_report(s, {"write_at_kernel", "thread (0, 0, 0)", "writes 4 bytes", "out of bounds", "40"});
  test_kernels::write_at(x, -1, s);
  expect_report(s, {"write_at_kernel", "out of bounds"});
  test_kernels::write_at(x, (1ll << 31) + 5, s);
  expect_report(s, {"write_at_kernel", "out of bounds"});
  EXPECT_EQ(to_host(x, 10, s), numbers(10));
  CHECK_CUDA(cudaFreeAsync(before, s));
}

TEST_F(Kernels, MisalignedAndConstAccessesAreReported) {
  const cudaStream_t s = make_stream();
  float* const x = to_device(numbers(10), s);
  float* const y = allocate<float>(4, s);
  test_kernels::read_vector(x + 4, y, s);
  CHECK_CUDA(cudaStreamSynchronize(s));
  EXPECT_THAT(cuda_double::take_reports(), ::testing::IsEmpty());
  test_kernels::read_vector(x + 1, y, s);
  CHECK_CUDA(cudaStreamSynchronize(s));
  const auto reports = cuda_double::take_reports();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_THAT(reports[0], ::testing::HasSubstr("not a multiple"));
  test_kernels::write_through_const(x, s);
  expect_report(s, {"write_through_const_kernel", "to read only"});
}

TEST_F(Kernels, WhatTheOpDidNotDeclareIsReported) {
  const cudaStream_t s = make_stream();
  float* const a = to_device(numbers(100), s);
  float* const b = to_device(numbers(100), s);
  float* const sum = allocate<float>(100, s);
  const sluice::MemoryUse part[] = {{a, 400, false}, {b, 200, false}, {sum, 400, true}};
  {
    const sluice::MemoryUses uses(part);
    test_kernels::add(a, b, sum, 100, s);
  }
  expect_report(s, {"add_kernel", "reads 4 bytes at byte 200 of a block of 400 bytes, which its op did not declare"});
  {
    const sluice::MemoryUses uses{std::span<const sluice::MemoryUse>(part).first(2)};
    test_kernels::add(a, b, sum, 100, s);
  }
  CHECK_CUDA(cudaStreamSynchronize(s));
  const auto reports = cuda_double::take_reports();
  ASSERT_GE(reports.size(), 1u);
  EXPECT_THAT(reports[0], ::testing::HasSubstr("is given memory that its op did not declare"));
}

TEST_F(Kernels, UnwrittenSharedMemoryAndHiddenPointersAreReported) {
  const cudaStream_t s = make_stream();
  float* const y = allocate<float>(128, s);
  test_kernels::read_unwritten_shared(y, s);
  expect_report(s, {"unwritten_kernel", "thread (5, 0, 0)", "that no thread of the block has written"});
  float** const table = to_device(std::vector<float*>{y}, s);
  test_kernels::hidden_pointer(table, s);
  expect_report(s, {"hidden_kernel", "the launch did not see"});
}

#endif

TEST_F(Kernels, BarriersThatDoNotMeetAreReported) {
  const cudaStream_t s = make_stream();
  test_kernels::barrier_without_barriers(s);
  expect_report(s, {"barrier_kernel", "launched without barriers"});
  test_kernels::barrier_that_some_miss(s);
  expect_report(s, {"missed_barrier_kernel", "different places"});
  test_kernels::shuffle_out_of_mask(s);
  expect_report(s, {"mask_kernel", "not in the mask"});
}

TEST_F(Kernels, LimitsAreThoseOfACard) {
  const cudaStream_t s = make_stream();
  const auto refused = [&](cudaError_t error) {
    EXPECT_EQ(cudaGetLastError(), error);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    expect_report({"is launched with"});
  };
  test_kernels::configured(dim3(0x7fffffffu, 1, 1), dim3(0), 0, s);
  refused(cudaErrorInvalidConfiguration);
  test_kernels::configured(0, 1, 0, s);
  refused(cudaErrorInvalidConfiguration);
  test_kernels::configured(dim3(1, 65536), 1, 0, s);
  refused(cudaErrorInvalidConfiguration);
  test_kernels::configured(1, 1025, 0, s);
  refused(cudaErrorInvalidConfiguration);
  test_kernels::configured(1, dim3(64, 32), 0, s);
  refused(cudaErrorInvalidConfiguration);
  test_kernels::configured(1, 1, (48 << 10) + 1, s);
  refused(cudaErrorInvalidValue);
  CHECK_CUDA(test_kernels::allow_shared(100 << 10));
  test_kernels::configured(1, 1, 100 << 10, s);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  test_kernels::configured(1, 1, (100 << 10) + 1, s);
  refused(cudaErrorInvalidValue);
  EXPECT_EQ(test_kernels::allow_shared(228 << 10), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  test_kernels::many_arguments(s);
  refused(cudaErrorInvalidValue);
  test_kernels::configured(dim3(65536, 1, 2), dim3(1), 48 << 10, s);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
