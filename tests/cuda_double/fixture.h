// What the double's tests share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda_double/cuda_double.h"
#include "cuda_runtime.h"

#define CHECK_CUDA(call) ASSERT_EQ(call, cudaSuccess) << #call

/// A double with two devices, device 0 current, and no delays.
class OnDouble : public ::testing::Test {
 protected:
  void SetUp() override { begin(); }
  void TearDown() override {
    EXPECT_THAT(cuda_double::take_reports(), ::testing::IsEmpty());
    cuda_double::reset();
  }
  static void begin(cuda_double::Options options = {}) {
    options.devices = 2;
    options.print_reports = false;
    cuda_double::reset(options);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  }
  static cudaStream_t make_stream() {
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
  }
  static cudaEvent_t make_event() {
    cudaEvent_t event = nullptr;
    EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    return event;
  }
  template <class T>
  static T* allocate(std::size_t count, cudaStream_t stream) {
    T* block = nullptr;
    EXPECT_EQ(cudaMallocAsync(&block, count * sizeof(T), stream), cudaSuccess);
    return block;
  }
  template <class T>
  static T* pinned(std::size_t count) {
    T* block = nullptr;
    EXPECT_EQ(cudaHostAlloc(&block, count * sizeof(T), cudaHostAllocDefault), cudaSuccess);
    return block;
  }
  /// A copy on the device, made with the host waiting.
  template <class T>
  static T* to_device(const std::vector<T>& values, cudaStream_t stream) {
    T* const block = allocate<T>(values.size(), stream);
    T* const staged = pinned<T>(values.size());
    std::copy(values.begin(), values.end(), staged);
    EXPECT_EQ(cudaMemcpyAsync(block, staged, values.size() * sizeof(T), cudaMemcpyHostToDevice, stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(staged), cudaSuccess);
    return block;
  }
  template <class T>
  static std::vector<T> to_host(const T* block, std::size_t count, cudaStream_t stream) {
    T* const staged = pinned<T>(count);
    EXPECT_EQ(cudaMemcpyAsync(staged, block, count * sizeof(T), cudaMemcpyDeviceToHost, stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    std::vector<T> values(staged, staged + count);
    EXPECT_EQ(cudaFreeHost(staged), cudaSuccess);
    return values;
  }
  /// Expects exactly one report, with all the words, once the stream's work is over.
  static void expect_report(cudaStream_t stream, const std::vector<std::string>& words) {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    expect_report(words);
  }
  static void expect_report(const std::vector<std::string>& words) {
    const std::vector<std::string> reports = cuda_double::take_reports();
    ASSERT_EQ(reports.size(), 1u) << ::testing::PrintToString(reports);
    for (const std::string& word : words) EXPECT_THAT(reports[0], ::testing::HasSubstr(word));
  }
};
