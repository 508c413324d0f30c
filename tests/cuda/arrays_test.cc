// Array programs on the CUDA backend, on its double.
#include "support.h"

namespace sluice {
namespace {

TEST(CudaArrays, AnOperatorRunsOnADevice) {
  const OnCuda on;
  const NDArray a = from(std::vector<float>{1, 2, 3, 4, 5}, {5}).to(gpu(0));
  const NDArray b = from(std::vector<float>{10, 20, 30, 40, 50}, {5}).to(gpu(0));
  const NDArray c = (a + b) * 2;
  EXPECT_EQ(c.device(), gpu(0));
  EXPECT_THAT(c.to(cpu(0)).to_vector<float>(), testing::ElementsAre(22, 44, 66, 88, 110));
}

TEST(CudaArrays, StridedOperandsAndBroadcasts) {
  const OnCuda on;
  const NDArray x = arange(0, 12, 1, DType::f32).reshape({3, 4});
  const NDArray g = x.to(gpu(0));
  const NDArray want = x.transpose() + x(0).reshape({4, 1});
  const NDArray got = g.transpose() + g(0).reshape({4, 1});
  EXPECT_EQ(got.to(cpu(0)).to_vector<float>(), want.to_vector<float>());
}

}  // namespace
}  // namespace sluice
