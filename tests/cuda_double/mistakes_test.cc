// Mistakes of programs that use CUDA, each reported by name and with no delay to help; and that right programs are not
// accused.
#include <cstring>
#include <random>
#include <thread>

#include "cuda.h"
#include "cuda_double/order.h"
#include "fixture.h"
#include "sluice/engine/engine.h"
#include "test_kernels.h"

namespace {

using Mistakes = OnDouble;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(Mistakes, UseAfterFree) {
  const cudaStream_t s = make_stream();
  float* const x = allocate<float>(100, s);
  CHECK_CUDA(cudaFreeAsync(x, s));
  test_kernels::write_at(x, 0, s);
  CHECK_CUDA(cudaStreamSynchronize(s));
  EXPECT_THAT(cuda_double::take_reports(), Contains(AllOf(HasSubstr("write_at_kernel"), HasSubstr("was freed"))));
  float* const host = pinned<float>(1);
  EXPECT_EQ(cudaMemcpyAsync(host, x, 4, cudaMemcpyDeviceToHost, s), cudaErrorInvalidValue);
  EXPECT_THAT(cuda_double::take_reports(), Contains(HasSubstr("not inside of a block")));
  EXPECT_EQ(cudaFreeAsync(x, s), cudaErrorInvalidValue);
  expect_report({"a free of what is no block"});
  CHECK_CUDA(cudaFreeHost(host));
}

TEST_F(Mistakes, WrongCurrentDevice) {
  const cudaStream_t s = make_stream();
  CHECK_CUDA(cudaSetDevice(1));
  test_kernels::configured(1, 1, 0, s);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  expect_report({"empty_kernel", "stream of device 0 while the current device is 1"});
  const cudaEvent_t event = make_event();
  EXPECT_EQ(cudaEventRecord(event, s), cudaErrorInvalidResourceHandle);
  expect_report({"an event of device 1 is recorded in a stream of device 0"});
}

TEST_F(Mistakes, AThreadThatComesAnewHasAnyDevice) {
  std::vector<int> found(2, 0);
  for (int i = 0; i < 64; ++i) {
    std::thread([&] {
      int device = -1;
      EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
      ++found[static_cast<std::size_t>(device)];
    }).join();
  }
  EXPECT_GT(found[0], 0);
  EXPECT_GT(found[1], 0);
}

/// Questions make none.
TEST_F(Mistakes, NearlyEveryCallMakesAContext) {
  begin();
  EXPECT_THAT(cuda_double::contexts(), ElementsAre(0));
  int number = 0;
  cudaDeviceProp properties{};
  CHECK_CUDA(cudaGetDeviceCount(&number));
  CHECK_CUDA(cudaGetDeviceProperties(&properties, 1));
  CHECK_CUDA(cudaDeviceCanAccessPeer(&number, 0, 1));
  unsigned flags = 0;
  int active = -1;
  EXPECT_EQ(cuDevicePrimaryCtxGetState(1, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 0);
  EXPECT_THAT(cuda_double::contexts(), ElementsAre(0));
  // On whatever device the thread has as it comes.
  for (int i = 0; i < 64 && cuda_double::contexts().size() < 2; ++i) {
    std::thread([] {
      void* block = nullptr;
      EXPECT_EQ(cudaHostAlloc(&block, 8, cudaHostAllocPortable), cudaSuccess);
      EXPECT_EQ(cudaFreeHost(block), cudaSuccess);
    }).join();
  }
  EXPECT_THAT(cuda_double::contexts(), ElementsAre(0, 1));
  EXPECT_EQ(cuDevicePrimaryCtxGetState(1, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 1);
}

TEST_F(Mistakes, ADriversCallWithoutAContext) {
  const cudaStream_t s = make_stream();
  auto* const word = pinned<std::uint64_t>(1);
  const auto write = [&] { return cuStreamWriteValue64(s, reinterpret_cast<CUdeviceptr>(word), 1, 0); };
  std::thread([&] {
    EXPECT_EQ(write(), CUDA_ERROR_INVALID_CONTEXT);
    expect_report({"cuStreamWriteValue64 on a thread that has no context"});
    CHECK_CUDA(cudaSetDevice(0));
    EXPECT_EQ(write(), CUDA_SUCCESS);
  }).join();
  CHECK_CUDA(cudaStreamSynchronize(s));
  CHECK_CUDA(cudaFreeHost(word));
}

TEST_F(Mistakes, MemoryOfAnotherDevice) {
  const cudaStream_t s = make_stream();
  CHECK_CUDA(cudaSetDevice(1));
  const cudaStream_t other = make_stream();
  float* const x = allocate<float>(1, other);
  CHECK_CUDA(cudaStreamSynchronize(other));
  CHECK_CUDA(cudaSetDevice(0));
  test_kernels::write_at(x, 0, s);
  CHECK_CUDA(cudaStreamSynchronize(s));
  EXPECT_THAT(cuda_double::take_reports(), Contains(HasSubstr("on device 0 is given memory of device 1")));
  CHECK_CUDA(cudaDeviceEnablePeerAccess(1, 0));
  test_kernels::write_at(x, 0, s);
  CHECK_CUDA(cudaStreamSynchronize(s));
}

TEST_F(Mistakes, NullAndBlockingStreams) {
  float* const host = pinned<float>(1);
  EXPECT_EQ(cudaMemcpyAsync(host, host, 4, cudaMemcpyHostToHost), cudaErrorInvalidResourceHandle);
  expect_report({"cudaMemcpyAsync on the null stream"});
  test_kernels::configured(1, 1, 0, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  expect_report({"a launch on the null stream"});
  EXPECT_EQ(cudaStreamSynchronize(cudaStreamPerThread), cudaErrorInvalidResourceHandle);
  expect_report({"cudaStreamSynchronize on the null stream"});
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamDefault), cudaErrorInvalidValue);
  expect_report({"cudaStreamNonBlocking"});
  CHECK_CUDA(cudaFreeHost(host));
}

TEST_F(Mistakes, PageableCopiesAndWrongKinds) {
  const cudaStream_t s = make_stream();
  float* const x = allocate<float>(100, s);
  std::vector<float> pageable(100);
  EXPECT_EQ(cudaMemcpyAsync(x, pageable.data(), 400, cudaMemcpyHostToDevice, s), cudaErrorInvalidValue);
  expect_report({"not pinned"});
  float* const host = pinned<float>(100);
  EXPECT_EQ(cudaMemcpyAsync(x, host, 400, cudaMemcpyDeviceToHost, s), cudaErrorInvalidValue);
  expect_report({"whose kind"});
  EXPECT_EQ(cudaMemcpyAsync(x, host, 404, cudaMemcpyHostToDevice, s), cudaErrorInvalidValue);
  EXPECT_THAT(cuda_double::take_reports(), Contains(HasSubstr("404 bytes")));
  CHECK_CUDA(cudaStreamSynchronize(s));
  CHECK_CUDA(cudaFreeHost(host));
}

TEST_F(Mistakes, APinnedBufferChangedBeforeItsCopy) {
  const cudaStream_t s = make_stream();
  float* const x = allocate<float>(100, s);
  CHECK_CUDA(cudaStreamSynchronize(s));
  float* const host = pinned<float>(100);
  std::memset(host, 0, 400);
  cuda_double::silence(0);  // so that the copy surely waits
  CHECK_CUDA(cudaMemcpyAsync(x, host, 400, cudaMemcpyHostToDevice, s));
  host[99] = 1;
  cuda_double::release();
  expect_report(s, {"a pinned buffer of 400 bytes was changed"});
  CHECK_CUDA(cudaFreeHost(host));
}

TEST_F(Mistakes, APinnedBufferThatAnEarlierCopyFillsIsNone) {
  const cudaStream_t s = make_stream();
  float* const x = to_device(std::vector<float>(100, 3), s);
  float* const host = pinned<float>(100);
  std::memset(host, 0, 400);
  cuda_double::silence(0);  // so that both copies surely wait
  CHECK_CUDA(cudaMemcpyAsync(host, x, 400, cudaMemcpyDeviceToHost, s));
  CHECK_CUDA(cudaMemcpyAsync(x, host, 400, cudaMemcpyHostToDevice, s));
  cuda_double::release();
  EXPECT_EQ(to_host(x, 100, s), std::vector<float>(100, 3));
  CHECK_CUDA(cudaFreeHost(host));
}

TEST_F(Mistakes, APinnedBufferThatTheHostTouchesTooEarly) {
  const cudaStream_t s = make_stream();
  float* const x = allocate<float>(100, s);
  auto* const word = pinned<std::uint64_t>(1);
  float* const host = pinned<float>(100);
  *word = 0;
  std::fill_n(host, 100, 0.0f);
  CHECK_CUDA(cudaMemcpyAsync(x, host, 400, cudaMemcpyHostToDevice, s));
  ASSERT_EQ(cuStreamWriteValue64(s, reinterpret_cast<CUdeviceptr>(word), 1, 0), CUDA_SUCCESS);
  while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < 1) std::this_thread::yield();
  const sluice::MemoryUse touch[] = {{host, 400, true}};
  cuda_double::host_after({}, true);  // by chance it is over, and the program does not know that
  cuda_double::host_touches(touch);
  EXPECT_EQ(cuda_double::take_reports().size(), 1u);
  const cuda_double::Passed passed[] = {{s, 1}};
  cuda_double::host_after(passed, false);
  cuda_double::host_touches(touch);
  EXPECT_THAT(cuda_double::take_reports(), IsEmpty());
  CHECK_CUDA(cudaStreamSynchronize(s));
  CHECK_CUDA(cudaFreeHost(host));
  CHECK_CUDA(cudaFreeHost(word));
}

/// A kernel writes x on one stream, another reads it on a second one.
void produce_and_consume(bool record, bool wait, const std::function<cudaStream_t()>& make,
                         const std::function<cudaEvent_t()>& make_event) {
  const cudaStream_t first = make(), second = make();
  const cudaEvent_t event = make_event();
  float *x = nullptr, *y = nullptr;
  CHECK_CUDA(cudaMallocAsync(&x, 400, first));
  CHECK_CUDA(cudaMallocAsync(&y, 400, second));
  CHECK_CUDA(cudaMemsetAsync(x, 0, 400, first));
  if (record) {
    CHECK_CUDA(cudaEventRecord(event, first));
  }
  if (wait) {
    CHECK_CUDA(cudaStreamWaitEvent(second, event));
  }
  test_kernels::add(x, x, y, 100, second);
  CHECK_CUDA(cudaStreamSynchronize(second));
  CHECK_CUDA(cudaStreamSynchronize(first));
}

TEST_F(Mistakes, AWaitLeftOut) {
  produce_and_consume(
      true, true, [&] { return make_stream(); }, [&] { return make_event(); });
  EXPECT_THAT(cuda_double::take_reports(), IsEmpty());
  produce_and_consume(
      true, false, [&] { return make_stream(); }, [&] { return make_event(); });
  EXPECT_GE(cuda_double::take_reports().size(), 1u);
}

TEST_F(Mistakes, AnEventNotRecorded) {
  produce_and_consume(
      false, true, [&] { return make_stream(); }, [&] { return make_event(); });
  const auto reports = cuda_double::take_reports();
  ASSERT_GE(reports.size(), 2u) << ::testing::PrintToString(reports);
  EXPECT_THAT(reports, Contains(HasSubstr("an event that was never recorded")));
}

#ifndef SLUICE_SANITIZED  // AddressSanitizer ends the program there
TEST_F(Mistakes, ABlockFreedOnAnotherStreamTooEarly) {
  const cudaStream_t a = make_stream(), b = make_stream();
  float* const x = allocate<float>(100, a);
  CHECK_CUDA(cudaMemsetAsync(x, 0, 400, a));
  CHECK_CUDA(cudaFreeAsync(x, b));
  CHECK_CUDA(cudaStreamSynchronize(a));
  CHECK_CUDA(cudaStreamSynchronize(b));
  EXPECT_GE(cuda_double::take_reports().size(), 1u);
}
#endif

TEST_F(Mistakes, WhatIsDestroyedIsRefused) {
  const cudaStream_t s = make_stream();
  const cudaEvent_t event = make_event();
  CHECK_CUDA(cudaEventDestroy(event));
  EXPECT_EQ(cudaEventRecord(event, s), cudaErrorInvalidResourceHandle);
  expect_report({"cudaEventRecord of an event that is destroyed"});
  cuda_double::silence(0);
  test_kernels::configured(1, 1, 0, s);
  std::thread destroyer([&] { EXPECT_EQ(cudaStreamDestroy(s), cudaSuccess); });
  cuda_double::release();
  destroyer.join();
  (void)cuda_double::take_reports();  // of work in flight, if the device was still silent
  EXPECT_EQ(cudaStreamSynchronize(s), cudaErrorInvalidResourceHandle);
  expect_report({"cudaStreamSynchronize on a stream that is destroyed"});
}

TEST_F(Mistakes, AStreamDestroyedWithWorkInFlight) {
  const cudaStream_t s = make_stream();
  test_kernels::configured(1, 1, 0, s);
  CHECK_CUDA(cudaStreamDestroy(s));  // nobody has waited
  expect_report({"a stream is destroyed while it has work in flight"});
}

TEST_F(Mistakes, WhatSynchronizesBelongsToTheStart) {
  void* early = nullptr;
  CHECK_CUDA(cudaMalloc(&early, 100));
  const cudaStream_t s = make_stream();
  test_kernels::configured(1, 1, 0, s);
  void* late = nullptr;
  CHECK_CUDA(cudaMalloc(&late, 100));
  expect_report({"cudaMalloc waits for all work"});
  CHECK_CUDA(cudaFree(late));
  expect_report({"cudaFree waits for all work"});
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorNotPermitted);
  expect_report({"cudaDeviceSynchronize"});
  CHECK_CUDA(cudaStreamSynchronize(s));
  CHECK_CUDA(cudaStreamDestroy(s));
  CHECK_CUDA(cudaFree(early));
}

TEST_F(Mistakes, ReportsNameTheOpAndItsPush) {
  sluice::Engine engine;
  const cudaStream_t s = make_stream();
  float* const x = allocate<float>(1, s);
  auto variable = engine.variable();
  const std::string line = std::to_string(__LINE__ + 6);
  const auto body = [&] {
    CHECK_CUDA(cudaSetDevice(1));
    test_kernels::write_at(x, 0, s);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  };
  engine.push(body, {sluice::write(variable)}, {.name = "fill"});
  engine.wait_all();
  EXPECT_THAT(cuda_double::take_reports(), Contains(AllOf(HasSubstr("[fill]"), HasSubstr("mistakes_test.cc:" + line))));
}

}  // namespace
