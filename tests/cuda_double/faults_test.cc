// What a card cannot be made to do, on demand; the words that streams write; and random programs without mistakes.
#include <random>
#include <thread>

#include "cuda.h"
#include "cuda_double/order.h"
#include "fixture.h"
#include "test_kernels.h"

namespace {

using Faults = OnDouble;
using ::testing::IsEmpty;

TEST_F(Faults, TheNthCallOfAKindFails) {
  const cudaStream_t s = make_stream();
  cuda_double::fail_nth(cuda_double::Fault::allocation, 2);
  void *a = nullptr, *b = nullptr;
  CHECK_CUDA(cudaMallocAsync(&a, 64, s));
  EXPECT_EQ(cudaMallocAsync(&b, 64, s), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  CHECK_CUDA(cudaMallocAsync(&b, 64, s));
  cuda_double::fail_every(cuda_double::Fault::launch, 2, cudaErrorLaunchTimeout);
  int failed = 0;
  for (int i = 0; i < 10; ++i) {
    test_kernels::configured(1, 1, 0, s);
    failed += cudaGetLastError() == cudaErrorLaunchTimeout;
  }
  EXPECT_EQ(failed, 5);
  EXPECT_EQ(cuda_double::failures(cuda_double::Fault::launch), 5u);
  cuda_double::fail_every(cuda_double::Fault::launch, 0);
  CHECK_CUDA(cudaStreamSynchronize(s));
}

TEST_F(Faults, ThereIsNoMoreMemoryThanTheOptionSays) {
  begin({.memory = 1 << 20});
  const cudaStream_t s = make_stream();
  void *a = nullptr, *b = nullptr;
  CHECK_CUDA(cudaMallocAsync(&a, 700 << 10, s));
  EXPECT_EQ(cudaMallocAsync(&b, 700 << 10, s), cudaErrorMemoryAllocation);
  std::size_t free = 0, total = 0;
  CHECK_CUDA(cudaMemGetInfo(&free, &total));
  EXPECT_EQ(total, std::size_t{1} << 20);
  EXPECT_EQ(free, std::size_t{324} << 10);
  CHECK_CUDA(cudaFreeAsync(a, s));
  CHECK_CUDA(cudaMallocAsync(&b, 700 << 10, s));
}

TEST_F(Faults, ALateErrorIsAnsweredOnceByTheNextCall) {
  const cudaStream_t s = make_stream();
  cuda_double::fail_late(0, cudaErrorLaunchOutOfResources, 1);
  test_kernels::configured(1, 1, 0, s);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  cudaError_t seen = cudaSuccess;
  while (seen == cudaSuccess || seen == cudaErrorNotReady) seen = cudaStreamQuery(s);
  EXPECT_EQ(seen, cudaErrorLaunchOutOfResources);
  CHECK_CUDA(cudaStreamSynchronize(s));
}

TEST_F(Faults, AStickyErrorStaysAndOtherDevicesGoOn) {
  const cudaStream_t s = make_stream();
  CHECK_CUDA(cudaSetDevice(1));
  const cudaStream_t other = make_stream();
  CHECK_CUDA(cudaSetDevice(0));
  cuda_double::fail_sticky(0, cudaErrorIllegalAddress, 3);
  for (int i = 0; i < 3; ++i) test_kernels::configured(1, 1, 0, s);
  EXPECT_EQ(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
  void* block = nullptr;
  EXPECT_EQ(cudaMallocAsync(&block, 64, s), cudaErrorIllegalAddress);
  CHECK_CUDA(cudaSetDevice(1));
  test_kernels::configured(1, 1, 0, other);
  CHECK_CUDA(cudaGetLastError() == cudaErrorIllegalAddress ? cudaSuccess : cudaErrorUnknown);  // the last of before
  CHECK_CUDA(cudaStreamSynchronize(other));
}

TEST_F(Faults, ASilentDeviceGoesOnWhenReleased) {
  const cudaStream_t s = make_stream();
  cuda_double::silence(0, 1);
  test_kernels::configured(1, 1, 0, s);
  test_kernels::configured(1, 1, 0, s);
  EXPECT_EQ(cudaStreamQuery(s), cudaErrorNotReady);
  cuda_double::release();
  CHECK_CUDA(cudaStreamSynchronize(s));
}

TEST_F(Faults, AFullQueueBlocks) {
  const cudaStream_t s = make_stream();
  cuda_double::silence(0);
  std::thread releaser([] {
    while (cuda_double::full_queues() == 0) std::this_thread::yield();
    cuda_double::release();
  });
  for (int i = 0; i < 1100; ++i) test_kernels::configured(1, 1, 0, s);
  releaser.join();
  CHECK_CUDA(cudaStreamSynchronize(s));
  EXPECT_GE(cuda_double::full_queues(), 1u);
}

TEST_F(Faults, WithoutADriverEachCallSaysSo) {
  cuda_double::reset({.driver = cudaErrorInsufficientDriver});
  int count = -1;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  EXPECT_EQ(count, 0);
  cudaStream_t s = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaErrorInsufficientDriver);
  EXPECT_STREQ(cudaGetErrorString(cudaErrorInsufficientDriver),
               "CUDA driver version is insufficient for CUDA runtime version");
}

TEST_F(Faults, AStreamWritesWords) {
  const cudaStream_t s = make_stream();
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
  CHECK_CUDA(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &found, 12000, cudaEnableDefault, &status));
  EXPECT_EQ(status, cudaDriverEntryPointSymbolNotFound);
  CHECK_CUDA(cudaGetDriverEntryPointByVersion("cuStreamWriteValue64", &found, 12000, cudaEnableDefault, &status));
  ASSERT_EQ(status, cudaDriverEntryPointSuccess);
  const auto write = reinterpret_cast<CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned)>(found);
  auto* const word = pinned<std::uint64_t>(1);
  *word = 0;
  for (std::uint64_t i = 1; i <= 100; ++i) ASSERT_EQ(write(s, reinterpret_cast<CUdeviceptr>(word), i, 0), CUDA_SUCCESS);
  while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < 100) std::this_thread::yield();
  std::uint64_t pageable = 0;
  EXPECT_EQ(write(s, reinterpret_cast<CUdeviceptr>(&pageable), 1, 0), CUDA_ERROR_INVALID_VALUE);
  expect_report({"no word of pinned memory"});
  CHECK_CUDA(cudaStreamSynchronize(s));
  CHECK_CUDA(cudaFreeHost(word));
}

/// What the host reads by a word is known to the record where the program says so, and only there.
TEST_F(Faults, WordsThatTheHostHasReadOrderStreams) {
  const cudaStream_t first = make_stream(), second = make_stream();
  auto* const word = pinned<std::uint64_t>(1);
  *word = 0;
  for (const bool says_so : {true, false}) {
    float* const x = allocate<float>(100, first);
    float* const y = allocate<float>(100, second);
    CHECK_CUDA(cudaMemsetAsync(x, 0, 400, first));
    const std::uint64_t value = *word + 1;
    ASSERT_EQ(cuStreamWriteValue64(first, reinterpret_cast<CUdeviceptr>(word), value, 0), CUDA_SUCCESS);
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < value) std::this_thread::yield();
    const cuda_double::Passed passed[] = {{first, value}};
    if (says_so) cuda_double::ordered_after(second, passed);
    test_kernels::add(x, x, y, 100, second);
    CHECK_CUDA(cudaStreamSynchronize(second));
    EXPECT_EQ(cuda_double::take_reports().empty(), says_so);
  }
  CHECK_CUDA(cudaStreamSynchronize(first));
  CHECK_CUDA(cudaFreeHost(word));
}

/// A stream that some thread has waited for stands before what every thread issues later; an event, for that thread.
TEST_F(Faults, WhatAThreadWaitedForOrdersWhatIsIssuedLater) {
  const cudaStream_t first = make_stream(), second = make_stream();
  const cudaEvent_t event = make_event();
  for (const bool whole_stream : {true, false}) {
    for (const bool elsewhere : {true, false}) {
      float* const x = allocate<float>(100, first);
      float* const y = allocate<float>(100, second);
      CHECK_CUDA(cudaMemsetAsync(x, 0, 400, first));
      CHECK_CUDA(cudaEventRecord(event, first));
      const auto wait = [&] {
        EXPECT_EQ(whole_stream ? cudaStreamSynchronize(first) : cudaEventSynchronize(event), cudaSuccess);
      };
      if (elsewhere) {
        std::thread(wait).join();
      } else {
        wait();
      }
      test_kernels::add(x, x, y, 100, second);
      EXPECT_EQ(cuda_double::take_reports().empty(), whole_stream || !elsewhere) << whole_stream << elsewhere;
      CHECK_CUDA(cudaStreamSynchronize(second));
    }
  }
  CHECK_CUDA(cudaStreamSynchronize(first));
}

TEST_F(Faults, RandomProgramsWithoutMistakesAreNotAccused) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    cuda_double::Options options;
    options.seed = seed;
    options.random_delay = std::chrono::microseconds(seed % 2 * 30);
    begin(options);
    std::minstd_rand random(static_cast<unsigned>(seed));
    constexpr int kStreams = 4, kArrays = 5, n = 64;
    std::vector<cudaStream_t> streams;
    for (int i = 0; i < kStreams; ++i) streams.push_back(make_stream());
    struct Array {
      float* at;
      cudaEvent_t written;
      std::vector<cudaEvent_t> reads;
      std::vector<float> expected;
    };
    std::vector<Array> arrays;
    for (int i = 0; i < kArrays; ++i) {
      const cudaStream_t s = streams[random() % kStreams];
      const float value = static_cast<float>(i + 1);
      arrays.push_back({allocate<float>(n, s), make_event(), {}, std::vector<float>(n, value)});
      float* const staged = pinned<float>(n);
      std::fill_n(staged, n, value);
      CHECK_CUDA(cudaMemcpyAsync(arrays.back().at, staged, n * 4, cudaMemcpyHostToDevice, s));
      CHECK_CUDA(cudaEventRecord(arrays.back().written, s));
      CHECK_CUDA(cudaEventSynchronize(arrays.back().written));
      CHECK_CUDA(cudaFreeHost(staged));
    }
    for (int op = 0; op < 60; ++op) {
      const cudaStream_t s = streams[random() % kStreams];
      Array &a = arrays[random() % kArrays], &b = arrays[random() % kArrays], &to = arrays[random() % kArrays];
      for (const Array* from : {&a, &b, &to}) CHECK_CUDA(cudaStreamWaitEvent(s, from->written));
      for (const cudaEvent_t read : to.reads) CHECK_CUDA(cudaStreamWaitEvent(s, read));
      test_kernels::add(a.at, b.at, to.at, n, s);
      std::vector<float> sum(n);
      for (std::size_t i = 0; i < n; ++i) sum[i] = a.expected[i] + b.expected[i];
      to.reads.clear();
      to.expected = sum;
      for (Array* from : {&a, &b}) {
        if (from == &to) continue;
        from->reads.push_back(make_event());
        CHECK_CUDA(cudaEventRecord(from->reads.back(), s));
      }
      CHECK_CUDA(cudaEventRecord(to.written, s));
    }
    for (const Array& array : arrays) {
      const cudaStream_t s = streams[random() % kStreams];
      CHECK_CUDA(cudaStreamWaitEvent(s, array.written));
      ASSERT_EQ(to_host(array.at, n, s), array.expected);
    }
    ASSERT_THAT(cuda_double::take_reports(), IsEmpty());
  }
}

}  // namespace
