// Simulated memory: what the host may not touch, what kernels may, limits, poison and copies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "sim_support.h"
#include "sluice/engine/errors.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using testing::Gate;
using ::testing::IsEmpty;
using testing::reach;
using testing::Sim;

/// The bytes of device memory, as a copy sees them.
std::vector<unsigned char> bytes_of(Sim& sim, const void* block, std::size_t bytes) {
  std::vector<unsigned char> host(bytes);
  sim.provider->copy(host.data(), block, bytes, nullptr);
  return host;
}

TEST(SimMemory, BlocksAreAlignedAndApart) {
  Sim sim;
  std::vector<std::pair<std::uintptr_t, std::size_t>> blocks;
  for (const std::size_t bytes : {0, 1, 63, 64, 255, 256, 257, 10000, 1 << 20}) {
    void* const block = sim.provider->allocate(1, bytes, nullptr);
    ASSERT_NE(block, nullptr);
    const auto address = reinterpret_cast<std::uintptr_t>(block);
    EXPECT_EQ(address % sim.provider->limits(1).alignment, 0u);
    for (const auto& [other, size] : blocks) EXPECT_TRUE(address >= other + size + 64 || other >= address + bytes + 64);
    blocks.emplace_back(address, bytes);
  }
  for (const auto& [address, bytes] : blocks) {
    sim.provider->free(1, reinterpret_cast<void*>(address), bytes, nullptr);
  }
  EXPECT_THAT(sim.control->reports(), IsEmpty());
}

using SimMemoryDeathTest = ::testing::Test;

TEST(SimMemoryDeathTest, TheHostCannotTouchIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Sim sim;
  auto* const block = static_cast<volatile int*>(sim.provider->allocate(0, 64, nullptr));
  EXPECT_DEATH((void)*block, "");
  EXPECT_DEATH(*block = 1, "");
}

/// A kernel that forgets to ask for the address fails as the host does.
TEST(SimMemoryDeathTest, NorCanAKernelByTheHandle) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Sim sim;
        auto* const block = static_cast<volatile int*>(sim.provider->allocate(0, 64, nullptr));
        const auto stream = sim.stream();
        stream->launch([=] { *block = 1; });
        stream->record(1);
        reach(*stream, 1);
      },
      "");
}

TEST(SimMemory, KernelsCanByTheOtherMapping) {
  Sim sim;
  const auto stream = sim.stream();
  auto* const block = static_cast<int*>(sim.provider->allocate(0, 3 * sizeof(int), nullptr));
  int host = 4;
  stream->launch([&, block] {
    int* const values = kernel_pointer(block);
    values[0] = 1, values[2] = 3;
    *kernel_pointer(block + 1) = 2;
    *kernel_pointer(&host) = 5;
  });
  int copied[3] = {};
  sim.provider->copy(copied, block, sizeof copied, stream.get());
  stream->record(1);
  reach(*stream, 1);
  EXPECT_THAT(copied, ElementsAre(1, 2, 3));
  EXPECT_EQ(host, 5);
  EXPECT_THROW(kernel_address(block), UsageError) << "outside of kernels";
}

TEST(SimMemory, AKernelGivenAnotherDevicesMemorySaysSo) {
  Sim sim;
  const auto stream = sim.stream(0);
  void* const block = sim.provider->allocate(1, 64, nullptr);
  stream->launch([=] { kernel_address(block); });
  stream->record(1);
  reach(*stream, 1);
  EXPECT_THAT(sim.control->take_reports(),
              ElementsAre("a kernel given the wrong device: memory of sim(1) in a kernel of sim(0)"));
  EXPECT_EQ(sim.provider->errors(0), 1u);
}

TEST(SimMemory, CopiesGoByTheAddresses) {
  Sim sim;
  const auto in = sim.stream(0, LaneKind::copy_in), out = sim.stream(1, LaneKind::copy_out);
  auto* const a = static_cast<int*>(sim.provider->allocate(0, 400, in.get()));
  auto* const b = static_cast<int*>(sim.provider->allocate(0, 400, in.get()));
  auto* const c = static_cast<int*>(sim.provider->allocate(1, 400, out.get()));
  std::vector<int> from(100), to(100);
  for (int i = 0; i < 100; ++i) from[static_cast<size_t>(i)] = i * i;
  sim.provider->copy(a, from.data(), 400, in.get());
  sim.provider->copy(b, a, 400, in.get());
  sim.provider->fill(b + 10, std::byte{0x11}, 40, in.get());
  in->record(1);
  out->wait({in.get(), 1});
  sim.provider->copy(c, b, 400, out.get());
  sim.provider->copy(to.data(), c, 400, out.get());
  out->record(1);
  reach(*out, 1);
  for (int i = 10; i < 20; ++i) from[static_cast<size_t>(i)] = 0x11111111;
  EXPECT_EQ(to, from);
  sim.provider->free(0, a, 400, in.get());
  sim.provider->free(0, b, 400, in.get());
  sim.provider->free(1, c, 400, out.get());
}

TEST(SimMemory, CopiesStayInsideOfABlock) {
  Sim sim;
  const auto stream = sim.stream();
  std::vector<char> host(1000);
  auto* const block = static_cast<char*>(sim.provider->allocate(0, 100, nullptr));
  EXPECT_THROW(sim.provider->copy(block, host.data(), 101, stream.get()), UsageError);
  EXPECT_THROW(sim.provider->copy(host.data(), block + 50, 51, nullptr), UsageError);
  EXPECT_THROW(sim.provider->fill(block + 101, std::byte{0}, 0, stream.get()), UsageError);
  sim.provider->free(0, block, 100, nullptr);
  EXPECT_THROW(sim.provider->copy(host.data(), block, 1, nullptr), UsageError) << "freed";
  EXPECT_THAT(sim.control->reports(), ::testing::SizeIs(4));
}

TEST(SimMemory, WhatIsFreedIsPoisonedInTheStreamsOrder) {
  Sim sim(1, {.limits = {.memory = 256}});
  const auto stream = sim.stream();
  Gate gate;
  unsigned char before = 0, after = 0;
  void* const block = sim.provider->allocate(0, 256, stream.get());
  sim.provider->fill(block, std::byte{7}, 256, stream.get());
  stream->launch([&, block] { gate.pass(), before = *static_cast<unsigned char*>(kernel_address(block)); });
  sim.provider->free(0, block, 256, stream.get());
  // Nobody else can have it yet; the same stream can, because it comes to that later.
  EXPECT_EQ(sim.provider->allocate(0, 256, nullptr), nullptr);
  const auto other = sim.stream();
  EXPECT_EQ(sim.provider->allocate(0, 256, other.get()), nullptr);
  void* const again = sim.provider->allocate(0, 256, stream.get());
  EXPECT_EQ(again, block);
  stream->launch([&, again] { after = *static_cast<unsigned char*>(kernel_address(again)); });
  gate.open();
  sim.provider->free(0, again, 256, stream.get());
  stream->record(1);
  reach(*stream, 1);
  EXPECT_EQ(before, 7);
  EXPECT_EQ(after, 0xFF);
  void* const third = sim.provider->allocate(0, 256, nullptr);
  EXPECT_EQ(third, block);
  EXPECT_THAT(bytes_of(sim, third, 2), ElementsAre(0xFF, 0xFF));
}

TEST(SimMemory, PoisonCanBeOff) {
  Sim sim(1, {.poison = false});
  void* const block = sim.provider->allocate(0, 16, nullptr);
  sim.provider->fill(block, std::byte{7}, 16, nullptr);
  sim.provider->free(0, block, 16, nullptr);
  ASSERT_EQ(sim.provider->allocate(0, 16, nullptr), block);
  EXPECT_THAT(bytes_of(sim, block, 2), ElementsAre(7, 7));
}

TEST(SimMemory, LimitsAreOfEachDevice) {
  Sim sim(2, {.limits = {.memory = 1 << 20}});
  EXPECT_EQ(sim.provider->limits(0).memory, std::size_t{1} << 20);
  std::vector<void*> blocks;
  while (void* const block = sim.provider->allocate(0, 1 << 16, nullptr)) blocks.push_back(block);
  EXPECT_EQ(blocks.size(), 16u);
  EXPECT_NE(sim.provider->allocate(1, 1 << 20, nullptr), nullptr);
  sim.provider->free(0, blocks.back(), 1 << 16, nullptr);
  EXPECT_NE(sim.provider->allocate(0, 1 << 16, nullptr), nullptr);
  EXPECT_EQ(sim.provider->allocate(0, ~std::size_t{0}, nullptr), nullptr);
}

TEST(SimMemory, FreesOfWhatIsNoBlockAreReported) {
  Sim sim;
  const auto stream = sim.stream();
  auto* const block = static_cast<char*>(sim.provider->allocate(0, 100, nullptr));
  sim.provider->free(0, block + 64, 36, nullptr);
  sim.provider->free(0, block, 100, nullptr);
  sim.provider->free(0, block, 100, stream.get());
  EXPECT_THAT(sim.control->reports(),
              ElementsAre("a free of what is no block of sim(0)", "a free of what is no block of sim(0)"));
}

#if !defined(SLUICE_SANITIZED)  // AddressSanitizer, of either compiler, reports the write itself
TEST(SimMemory, WritesBehindABlockAreReportedWhenItIsFreed) {
  Sim sim;
  const auto stream = sim.stream();
  void* const block = sim.provider->allocate(0, 256, stream.get());
  stream->launch([=] { static_cast<char*>(kernel_address(block))[256] = 1; });
  sim.provider->free(0, block, 256, stream.get());
  stream->record(1);
  reach(*stream, 1);
  EXPECT_THAT(sim.control->reports(), ElementsAre("something was written behind the end of a block of sim(0)"));
}
#endif

TEST(SimMemory, OnlyPinnedMemoryOfTheHostWhereThatIsAsked) {
  Sim sim(1, {.pinned_only = true});
  const auto stream = sim.stream();
  void* const block = sim.provider->allocate(0, 64, nullptr);
  char pageable[64] = {};
  auto* const pinned = static_cast<char*>(sim.provider->allocate_pinned(64));
  std::memset(pinned, 5, 64);
  EXPECT_THROW(sim.provider->copy(block, pageable, 64, stream.get()), UsageError);
  EXPECT_THROW(sim.provider->copy(block, pinned + 1, 64, stream.get()), UsageError);
  sim.provider->copy(block, pinned, 64, stream.get());
  stream->record(1);
  reach(*stream, 1);
  sim.provider->copy(pageable, block, 64, nullptr);
  EXPECT_EQ(pageable[63], 5);
  sim.provider->free_pinned(pinned, 64);
}

TEST(SimMemory, BlocksOfManyThreads) {
  Sim sim(2);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(static_cast<unsigned>(t + 1));
      const auto stream = sim.stream(t % 2);
      struct Block {
        void* data;
        std::size_t bytes;
      };
      std::vector<Block> blocks;
      for (int i = 0; i < 400; ++i) {
        const std::size_t bytes = random() % 5000;
        void* const block = sim.provider->allocate(t % 2, bytes, stream.get());
        ASSERT_NE(block, nullptr);
        const auto value = static_cast<unsigned char>(random());
        sim.provider->fill(block, std::byte{value}, bytes, stream.get());
        blocks.push_back({block, bytes});
        if (blocks.size() < 10) continue;
        const size_t which = random() % blocks.size();
        const Block gone = blocks[which];
        stream->launch([gone] {
          const auto* const values = static_cast<unsigned char*>(kernel_address(gone.data));
          for (std::size_t b = 1; b < gone.bytes; ++b) {
            if (values[b] != values[0]) throw std::runtime_error("somebody else wrote it");
          }
        });
        sim.provider->free(t % 2, gone.data, gone.bytes, stream.get());
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(which));
      }
      for (const Block& block : blocks) sim.provider->free(t % 2, block.data, block.bytes, stream.get());
      stream->record(1);
      reach(*stream, 1);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(sim.provider->errors(0) + sim.provider->errors(1), 0u);
  EXPECT_THAT(sim.control->reports(), IsEmpty());
}

}  // namespace
}  // namespace sluice
