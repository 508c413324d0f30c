// Copies between two cards: by a link where there is one, and by way of the host where there is none.
#include "held_kernels.h"
#include "sluice/engine/trace.h"
#include "support.h"

namespace sluice::testing {
namespace {

NDArray numbers(std::int64_t count, DType dtype, Device device) {
  const DeviceScope scope(cpu(0));
  return arange(0, count, 1, DType::i64).to(dtype).to(device);
}

class CudaPeers : public ::testing::TestWithParam<bool> {};

TEST_P(CudaPeers, CopiesAreRightToTheBit) {
  const bool links = GetParam();
  OnDouble on({.devices = 3, .random_delay = std::chrono::microseconds(30), .links = links});
  std::uint64_t copies = 0;
  for (const DType dtype : {DType::f32, DType::u8, DType::i64}) {
    for (const std::int64_t count : {1, 7, 4096, 100'003}) {
      const NDArray here = numbers(count, dtype, gpu(0)), there = here.to(gpu(1));
      const NDArray back = there.to(gpu(2)).to(gpu(0));
      copies += 3;
      EXPECT_EQ(there.device(), gpu(1));
      EXPECT_TRUE(there.to_bytes() == here.to_bytes()) << count;
      EXPECT_TRUE(back.to_bytes() == here.to_bytes()) << count;
    }
  }
  // A write behind the copy leaves what was copied; one before it is copied.
  NDArray x = numbers(1000, DType::f32, gpu(0));
  x += 1;
  const NDArray there = x.to(gpu(1));
  x.fill(0);
  EXPECT_EQ(there.to_vector<float>()[999], 1000);
  const cuda_double::PeerCopies made = cuda_double::peer_copies();
  EXPECT_EQ(made.direct, links ? copies + 1 : 0);
  EXPECT_EQ(made.staged, links ? 0 : copies + 1);
}

TEST_P(CudaPeers, ACopyIsOnTheReceiversLaneAndOverlapsItsComputations) {
  OnDouble on({.devices = 2, .links = GetParam()});
  const NDArray here = numbers(1000, DType::f32, gpu(0)), busy = numbers(4, DType::f32, gpu(1));
  here.wait();
  busy.wait();
  NDArray first, second;
  on.engine().start_trace();
  {
    HeldLane held(busy);
    first = here.to(gpu(1));
    second = here.to(gpu(1)).to(gpu(0));
    first.wait();  // while the lane that computes stands still
    second.wait();
    EXPECT_FALSE(on.engine().wait_for(busy, std::chrono::milliseconds(0)));
    held.open();
    busy.wait();
  }
  std::vector<std::string> lanes;
  for (const TraceEvent& e : on.engine().stop_trace()) {
    if (std::string_view(e.name) == "transfer") {
      lanes.push_back(to_string(e.device) + (e.lane == LaneKind::copy_peer ? " peer" : " another lane"));
    }
  }
  EXPECT_THAT(lanes, ::testing::UnorderedElementsAre("gpu(1) peer", "gpu(1) peer", "gpu(0) peer"));
  EXPECT_TRUE(first.to_bytes() == here.to_bytes());
  EXPECT_TRUE(second.to_bytes() == here.to_bytes());
}

INSTANTIATE_TEST_SUITE_P(With, CudaPeers, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "links" : "no_links"; });

}  // namespace
}  // namespace sluice::testing
