// The null provider: counts, points that are passed at once or when poked, and nothing else.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "sluice/engine/errors.h"
#include "sluice/resources/providers/null.h"

namespace sluice {
namespace {

using std::chrono::hours, std::chrono::milliseconds;

TEST(NullDevices, PointsArePassedAtOnceAndKernelsNeverRun) {
  const auto control = std::make_shared<NullControl>();
  const auto provider = null_devices(2, control)();
  EXPECT_EQ(provider->kind(), DeviceKind::null);
  EXPECT_EQ(provider->devices(), 2);
  const auto stream = provider->make_stream(0, LaneKind::compute), other = provider->make_stream(1, LaneKind::compute);
  EXPECT_EQ(stream->reached(), 0u);
  const std::uint64_t seen = provider->progress();
  for (int i = 0; i < 5; ++i) stream->launch([] { FAIL(); });
  EXPECT_TRUE(stream->record(3));
  EXPECT_EQ(stream->reached(), 3u);
  EXPECT_NE(provider->progress(), seen);
  provider->await_progress(seen, hours(1));
  stream->await(3, hours(1));
  EXPECT_TRUE(other->wait({stream.get(), 3}));
  char byte = 1;
  provider->copy(&byte, &byte, 1, stream.get());
  provider->fill(&byte, std::byte{2}, 1, nullptr);
  EXPECT_EQ(byte, 1);
  void* const block = provider->allocate(1, 100, stream.get());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 64, 0u);
  provider->free(1, block, 100, nullptr);
  EXPECT_EQ(control->launches(), 5u);
  const NullCounts counts = control->counts();
  EXPECT_EQ(counts.points, 1u);
  EXPECT_EQ(counts.waits, 1u);
  EXPECT_EQ(counts.copies, 1u);
  EXPECT_EQ(counts.fills, 1u);
  EXPECT_EQ(counts.allocations, 1u);
  EXPECT_EQ(counts.frees, 1u);
}

TEST(NullDevices, CountsStayWhenStreamsGo) {
  const auto control = std::make_shared<NullControl>();
  const auto provider = null_devices(1, control)();
  provider->make_stream(0, LaneKind::compute)->launch([] {});
  provider->make_stream(0, LaneKind::compute)->launch([] {});
  EXPECT_EQ(control->launches(), 2u);
}

TEST(NullDevices, HeldOnesPassWhenPoked) {
  const auto control = std::make_shared<NullControl>();
  const auto provider = null_devices(1, control)();
  const auto stream = provider->make_stream(0, LaneKind::compute);
  control->hold();
  stream->record(1);
  stream->record(2);
  stream->await(1, milliseconds(1));
  EXPECT_EQ(stream->reached(), 0u);
  const std::uint64_t seen = provider->progress();
  provider->await_progress(seen, milliseconds(1));
  EXPECT_EQ(provider->progress(), seen);
  std::thread poker([&] { control->poke(); });
  while (stream->reached() < 2) stream->await(2, hours(1));
  while (provider->progress() == seen) provider->await_progress(seen, hours(1));
  poker.join();
  stream->record(3);
  EXPECT_EQ(stream->reached(), 2u);
  control->release();
  EXPECT_EQ(stream->reached(), 3u);
  stream->record(4);
  EXPECT_EQ(stream->reached(), 4u);
}

TEST(NullDevices, NoPointIsForgottenBetweenHoldAndRelease) {
  const auto control = std::make_shared<NullControl>();
  const auto provider = null_devices(1, control)();
  const auto stream = provider->make_stream(0, LaneKind::compute);
  std::atomic<bool> over{false};
  std::thread holder([&] {
    while (!over.load()) control->hold(), control->release();
  });
  for (std::uint64_t i = 1; i <= 20000; ++i) {
    stream->record(i);
    while (stream->reached() < i) stream->await(i, hours(1));
  }
  over.store(true);
  holder.join();
}

TEST(NullDevices, StreamsOfOthersCannotBeWaitedFor) {
  const auto provider = null_devices(1)(), other = null_devices(1)();
  const auto stream = provider->make_stream(0, LaneKind::compute), foreign = other->make_stream(0, LaneKind::compute);
  EXPECT_FALSE(stream->wait({foreign.get(), 1}));
  EXPECT_TRUE(stream->wait({}));
}

}  // namespace
}  // namespace sluice
