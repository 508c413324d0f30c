// Writes that must not be lost where a value is held: several outputs in one array, and snapshots of partitioned ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "ndarray_test_support.h"

namespace sluice::testing {
namespace {

using Floats = std::vector<float>;

// A snapshot may go at any time, without a lock: between one output and the next as well.
TEST(LostWrites, AllViewsOfOneArrayGoToOneVersion) {
  TestEngine test(1);
  const NDArray x = zeros({64, 2});
  std::vector<NDArray> rows;
  for (int i = 0; i < x.size(0); ++i) rows.push_back(x(i));
  std::atomic<bool> stop{false};
  std::atomic<int> lost{0};
  std::thread holder([&] {
    std::minstd_rand random(7);
    const auto spin = [&random] {
      for (unsigned spins = random() % 8000; spins > 0; --spins) std::atomic_signal_fence(std::memory_order_seq_cst);
    };
    while (!stop) {
      {
        const NDArray kept = x.detach();
        spin();
      }
      spin();
    }
  });
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  for (int i = 1; lost == 0 && std::chrono::steady_clock::now() < until; ++i) {
    const auto value = static_cast<float>(i);
    push_value(rows, value);
    if (x.device().kind == DeviceKind::gpu) {
      lost += sum(abs(x - value)).item<float>() != 0;
      continue;
    }
    push_op(
        [value, &lost](ArrayContext& c) {
          const float* const first = c.input(0).as<float>();
          if (std::count(first, first + 128, value) != 128) ++lost;
        },
        {x}, {});
  }
  test.engine.wait_all();
  stop = true;
  holder.join();
  EXPECT_EQ(lost, 0);
}

TEST(LostWrites, ASnapshotOfAPartIsWritten) {
  TestEngine test(2);
  const std::int64_t sizes[] = {2, 2};
  const Partitioned p = partitioned(sizes, {}, DType::f32, test::device(0));
  p.whole.assign(arange(0, 4, 1, DType::f32));
  NDArray part = p.parts[1].detach(), whole = p.whole.detach();
  part.fill(9);
  EXPECT_EQ(part.to_vector<float>(), (Floats{9, 9}));
  part += 1;
  EXPECT_EQ(part.to_vector<float>(), (Floats{10, 10}));
  whole += 10;
  EXPECT_EQ(whole.to_vector<float>(), (Floats{10, 11, 12, 13}));
  whole(slice(1, 3)) = 7;
  EXPECT_EQ(whole.to_vector<float>(), (Floats{10, 7, 7, 13}));
  EXPECT_EQ(p.whole.to_vector<float>(), (Floats{0, 1, 2, 3}));  // its own memory stays
  EXPECT_EQ(p.parts[1].to_vector<float>(), (Floats{2, 3}));
  NDArray again = part.detach();
  again *= 2;
  EXPECT_EQ(again.to_vector<float>(), (Floats{20, 20}));
  EXPECT_EQ(part.to_vector<float>(), (Floats{10, 10}));
}

TEST(LostWrites, TheGradientOfAPartIsWritten) {
  TestEngine test(2);
  const std::int64_t sizes[] = {2, 2};
  const Partitioned p = partitioned(sizes, {}, DType::f32, test::device(0));
  p.whole.assign(arange(0, 4, 1, DType::f32));
  const NDArray w = p.parts[1].with_grad();
  for (int i = 1; i <= 2; ++i) {
    sum(square(w)).backward();
    EXPECT_EQ(w.grad().to_vector<float>(), (Floats{4.0F * static_cast<float>(i), 6.0F * static_cast<float>(i)}));
  }
  w.grad().fill(3);
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{3, 3}));
  sum(w * 1).backward();
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{4, 4}));
  // A gradient that came as a snapshot of a part.
  w.zero_grad();
  sum(w * p.parts[0].detach()).backward();
  w.grad().fill(3);
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{3, 3}));
  EXPECT_EQ(p.whole.to_vector<float>(), (Floats{0, 1, 2, 3}));
}

}  // namespace
}  // namespace sluice::testing
