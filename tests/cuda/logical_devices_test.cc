// Several devices on one card: each has its share of the memory, and lanes of its own.
#include <cstdlib>

#include "held_kernels.h"
#include "sluice/resources/device_pool.h"
#include "support.h"

namespace sluice::testing {
namespace {

constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;

NDArray block_of(std::size_t kibibytes, Device device) {
  const DeviceScope scope(device);
  return full({static_cast<std::int64_t>(kibibytes * kKiB / sizeof(float))}, 1);
}

void expect_shares(OnDouble& on, int devices, std::size_t bytes) {
  const std::shared_ptr<Provider> provider = on.engine().provider(gpu(0));
  ASSERT_EQ(provider->devices(), devices);
  for (int i = 0; i < devices; ++i) EXPECT_EQ(provider->limits(i).memory, bytes);
}

TEST(CudaLogicalDevices, EachHasItsShareOfTheMemory) {
  {
    OnDouble on({.memory = 640 * kMiB}, {.logical = 4});
    expect_shares(on, 4, 160 * kMiB);
  }
  ASSERT_EQ(setenv("SLUICE_LOGICAL_GPUS", "2", 1), 0);
  {
    OnDouble on({.memory = 640 * kMiB});
    expect_shares(on, 2, 320 * kMiB);
  }
  ASSERT_EQ(unsetenv("SLUICE_LOGICAL_GPUS"), 0);
}

TEST(CudaLogicalDevices, WhereOneHasNoMemoryLeftTheOtherGoesOn) {
  OnDouble on({}, {.logical = 2, .memory = 512 * kKiB});
  expect_shares(on, 2, 512 * kKiB);
  on.engine().on_unobserved_error([](const ErrorRoot&) {});
  NDArray held = block_of(320, gpu(0));
  held.wait();
  const NDArray too_much = block_of(320, gpu(0)), poisoned = too_much + 1, other = block_of(320, gpu(1));
  for (const NDArray& x : {too_much, poisoned}) {
    try {
      x.wait();
      ADD_FAILURE() << "640 KiB of 512";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), ::testing::AllOf(::testing::HasSubstr("[full] logical_devices_test.cc:"),
                                             ::testing::HasSubstr("gpu(0) has no 320.00 KiB left")));
    }
  }
  // The other goes on with its own share, and the first with what is there.
  EXPECT_EQ(sum(other).item<float>(), 320 * 256);
  EXPECT_EQ(sum(held).item<float>(), 320 * 256);
  held = {};
  EXPECT_EQ(sum(block_of(320, gpu(0))).item<float>(), 320 * 256);
}

/// A lane takes memory for the libraries' workspace at its start, which this card has once.
TEST(CudaLogicalDevices, WhereTheirWorkspacesDoNotFitTheOpsFail) {
  OnDouble on({.memory = 64 * kMiB}, {.logical = 4});
  on.engine().on_unobserved_error([](const ErrorRoot&) {});
  int failed = 0;
  for (int i = 0; i < 4; ++i) {
    const NDArray x = block_of(1024, gpu(i));
    try {
      x.wait();
    } catch (const Error& e) {
      ++failed;
      EXPECT_THAT(e.what(), ::testing::HasSubstr("[full] logical_devices_test.cc:"));
    }
  }
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, 4);
}

TEST(CudaLogicalDevices, EachHasLanesOfItsOwn) {
  const OnDouble on({}, {.logical = 2});
  const NDArray busy = block_of(4, gpu(0)), x = block_of(4, gpu(1)), arriving = full({4}, 5).to(cpu(0));
  busy.wait();
  x.wait();
  HeldLane held(busy);
  // What computes on the first stands still; its copies and all of the second go on.
  EXPECT_EQ((x * 3)(5).item<float>(), 3);
  const NDArray there = arriving.to(gpu(0));
  there.wait();
  EXPECT_EQ(there.to(gpu(1)).to_vector<float>()[3], 5);
  EXPECT_FALSE(default_engine().wait_for(busy, std::chrono::milliseconds(0)));
  held.open();
  EXPECT_EQ((busy + 1)(5).item<float>(), 2);
}

}  // namespace
}  // namespace sluice::testing
