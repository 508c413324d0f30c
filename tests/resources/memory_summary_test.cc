// What memory_summary says of devices.
#include "sluice/resources/memory_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/resources/device_pool.h"
#include "sluice/resources/providers/sim.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(MemorySummary, SaysWhatIsInUseAndCached) {
  Engine engine({.providers = {sim_devices(2)}});
  const std::string nothing = "0 B in use, at most 0 B so far, 0 B cached";
  EXPECT_EQ(memory_summary(engine, sim(1)), "sim(1): " + nothing + "; pinned host memory: " + nothing);
  DevicePool& pool = device_pool(engine, sim(1));
  void* const block = pool.allocate(DevicePool::device_memory, 1 << 20, nullptr);
  void* const pinned = pool.allocate(DevicePool::pinned_memory, 4096, nullptr);
  EXPECT_EQ(
      memory_summary(engine, sim(1)),
      "sim(1): 1.00 MiB in use, at most 1.00 MiB so far, 0 B cached; pinned host memory: 4.00 KiB in use, at most "
      "4.00 KiB so far, 0 B cached");
  pool.deallocate(DevicePool::device_memory, block, 1 << 20);
  pool.deallocate(DevicePool::pinned_memory, pinned, 4096);
  EXPECT_THAT(memory_summary(engine, sim(1)),
              StartsWith("sim(1): 0 B in use, at most 1.00 MiB so far, 1.00 MiB cached;"));
  EXPECT_THAT(memory_summary(engine, sim(0)), StartsWith("sim(0): " + nothing));
}

TEST(MemorySummary, OfTheHostAndOfWhatIsNotThere) {
  Engine engine({.logical_cpus = 2});
  EXPECT_THAT(memory_summary(engine, cpu(1)), StartsWith("cpu(1): "));
  EXPECT_THAT(memory_summary(engine, cpu(1)), HasSubstr(" cached"));
  EXPECT_THROW(memory_summary(engine, cpu(2)), UsageError);
  EXPECT_THROW(memory_summary(engine, sim(0)), UsageError);
}

}  // namespace
}  // namespace sluice
