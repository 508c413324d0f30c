// When memory of devices with streams comes back, and who gets it: docs/devices.md, "What holds memory, and when".
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <random>
#include <vector>

#include "ndarray_test_support.h"
#include "simulated_devices.h"
#include "sluice/resources/device_pool.h"

namespace sluice::testing {
namespace {

using Floats = std::vector<float>;
using std::chrono::microseconds;

constexpr std::int64_t kCount = 1 << 14;
constexpr std::size_t kBytes = kCount * sizeof(float);

DevicePool& pool_of(Devices& engine, int device = 0) { return device_pool(*engine, sim(device)); }

void begin(Devices& engine, int device = 0) {
  engine->wait_all();
  pool_of(engine, device).trim();
  pool_of(engine, device).reset_peak();
}

/// All is issued long before the first op is over; each result is read by the next op alone.
TEST(StreamMemory, GoesOnWithinItsStreamWhenTheLastReaderIsIssued) {
  Devices engine({.delay = microseconds(300)});
  const DeviceScope scope(sim(0));
  NDArray x = zeros({kCount});
  begin(engine);
  for (int i = 0; i < 60; ++i) x = x + 1;
  EXPECT_EQ(x(5).item<float>(), 60);
  const PoolStats stats = pool_of(engine).stats();
  EXPECT_LE(stats.peak_asked, 4 * kBytes);
  EXPECT_LE(stats.peak_held, 4 * kBytes);
}

/// The tape's values too: a backward pass holds what it has still to read, wherever the device is.
TEST(StreamMemory, OfATapeComesBackAsTheBackwardPassIsIssued) {
  Devices engine({.delay = microseconds(200)});
  const DeviceScope scope(sim(0));
  const NDArray w = ones({kCount}).with_grad();
  const auto step = [&] {
    NDArray y = w * 1;
    for (int i = 0; i < 10; ++i) y = tanh(y);
    sum(y).backward();
    w.zero_grad();
  };
  step();
  begin(engine);
  const SequenceScope in_turn(engine->variable());  // else the steps, which do not need each other, alternate
  for (int i = 0; i < 4; ++i) step();
  engine->wait_all();
  EXPECT_LE(pool_of(engine).stats().peak_asked, 24 * kBytes);  // four steps' would be 80
}

struct Reused {
  PoolStats stats;
  std::uint64_t waits = 0;
  Floats values;
};

/// What one stream writes, the copies from the host, another one reads. The device does nothing until all is issued.
Reused through_two_streams(std::size_t spare) {
  Devices engine;
  const DeviceScope scope(sim(0));
  const NDArray x = detail::empty_pinned({kCount}, DType::f32, sim(0));
  x.assign(ones({kCount}, DType::f32).to(cpu(0)));
  NDArray sum = zeros({kCount});
  begin(engine);
  pool_of(engine).spare(spare);
  const std::uint64_t before = engine->lane_stats({sim(0), LaneKind::copy_in}).waits;
  const Variable turn = engine->variable();
  std::atomic<bool> open{false};
  {
    const SequenceScope in_turn(turn);
    engine->push([&](Context& c) { c.stream()->launch([&] { open.wait(false); }); }, {update(sum)}, {.on = sim(0)});
  }
  for (int i = 0; i < 40; ++i) {
    std::atomic<bool> issued{false};
    {
      const NDArray there = x.to(sim(0));
      const SequenceScope in_turn(turn);
      sum += there * static_cast<float>(i);
    }
    const SequenceScope in_turn(turn);
    engine->push([&] { issued = true, issued.notify_one(); }, {}, {.on = sim(0)});
    issued.wait(false);
  }
  Reused result;
  result.stats = pool_of(engine).stats();
  result.waits = engine->lane_stats({sim(0), LaneKind::copy_in}).waits - before;
  open = true;
  open.notify_one();
  result.values = sum.to_vector<float>();
  return result;
}

TEST(StreamMemory, GoesToAnotherStreamThatWaitsForIt) {
  const Reused tight = through_two_streams(0), loose = through_two_streams(kBytes * 1000);
  EXPECT_EQ(tight.values, Floats(kCount, 780.0F));
  EXPECT_EQ(loose.values, Floats(kCount, 780.0F));
  EXPECT_GE(tight.waits, 38u);
  EXPECT_EQ(loose.waits, 0u);
  EXPECT_LE(tight.stats.peak_held, 6 * kBytes);
  EXPECT_GE(loose.stats.peak_held, 40 * kBytes);
  EXPECT_LE(loose.stats.peak_asked, 4 * kBytes);
}

TEST(StreamMemory, GoesToAnyoneWhenItsUsesAreOver) {
  Devices engine;
  const DeviceScope scope(sim(0));
  begin(engine);
  const NDArray x = ones({kCount}, DType::f32).to(cpu(0));
  { const NDArray used = zeros({kCount}) + 1; }
  engine->wait_all();
  const std::uint64_t hits = pool_of(engine).stats().hits, held = pool_of(engine).stats().peak_held;
  const NDArray there = x.to(sim(0));
  EXPECT_EQ(there(5).item<float>(), 1);
  EXPECT_EQ(pool_of(engine).stats().hits, hits + 1);
  EXPECT_EQ(pool_of(engine).stats().peak_held, held);
}

/// A write to a held value goes to new memory, and the old one stays for who holds it.
TEST(StreamMemory, HeldValuesStay) {
  Devices engine({.random_delay = microseconds(50)});
  pool_of(engine).spare(0);
  const DeviceScope scope(sim(0));
  NDArray x = zeros({kCount});
  std::vector<NDArray> held;
  for (int i = 1; i <= 30; ++i) {
    held.push_back(x.detach());
    x += 1;
    if (i % 3 == 0) held.erase(held.begin());
  }
  for (std::size_t i = 0; i < held.size(); ++i) {
    EXPECT_EQ(held[i](7).item<float>(), static_cast<float>(10 + i));
  }
  EXPECT_EQ(x(7).item<float>(), 30);
}

/// Three devices' copies and kernels in random order. The record of accesses is the judge of the order, freed memory is
/// filled with NaN, and values are known.
TEST(StreamMemory, RandomPrograms) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Devices engine({.random_delay = microseconds(seed % 3 * 20), .seed = seed}, 3);
    for (int d = 0; d < 3; ++d) pool_of(engine, d).spare(seed % 2 * kBytes);
    std::vector<NDArray> arrays;
    std::vector<float> values;
    for (int d = 0; d < 3; ++d) {
      const DeviceScope scope(sim(d));
      arrays.push_back(full({kCount}, static_cast<float>(d)));
      values.push_back(static_cast<float>(d));
    }
    for (int i = 0; i < 300; ++i) {
      const std::size_t a = random() % 3, b = random() % 3;
      const NDArray there = arrays[b].to(sim(static_cast<int>(a)));
      switch (random() % 4) {
        case 0:
          arrays[a] += there;
          values[a] += values[b];
          break;
        case 1:
          arrays[a] = arrays[a] * 0.5 + there;
          values[a] = values[a] * 0.5F + values[b];
          break;
        case 2:
          arrays[a] = there.copy();
          values[a] = values[b];
          break;
        default:
          arrays[a](slice(0, kCount, 2)) = there(slice(0, kCount, 2));  // packs
          arrays[a](slice(1, kCount, 2)) = there(slice(1, kCount, 2));
          values[a] = values[b];
      }
      if (std::abs(values[a]) > 1e6F) {
        arrays[a] = arrays[a] * 0;
        values[a] = 0;
      }
    }
    for (std::size_t d = 0; d < 3; ++d) EXPECT_EQ(arrays[d].to_vector<float>(), Floats(kCount, values[d]));
  }
}

/// An op that fails on the device gives its memory back as others do; so does one that is skipped for that.
TEST(StreamMemory, OfOpsThatFailComesBack) {
  Devices engine({.delay = microseconds(100)});
  pool_of(engine).spare(0);
  const DeviceScope scope(sim(0));
  const NDArray x = zeros({kCount});
  engine->wait_all();
  const std::size_t before = pool_of(engine).stats().asked;
  for (int i = 0; i < 20; ++i) {
    NDArray bad = x + 1;
    push_op([](ArrayContext&) { throw std::runtime_error("planted"); }, {x}, {bad});
    const NDArray poisoned = bad * 2 + x;
    const NDArray good = x + static_cast<float>(i);
    EXPECT_EQ(good(0).item<float>(), static_cast<float>(i));
  }
  try {
    engine->wait_all();
  } catch (const AggregateError&) {
  }
  EXPECT_EQ(pool_of(engine).stats().asked, before);
}

/// EngineOptions::max_ahead: bodies that were called, less kernels that ran.
TEST(StreamMemory, ALaneIsNoFurtherAheadThanTheProgramAllows) {
  for (const std::size_t most : {1, 3, 16}) {
    Engine engine({.threads = 2, .providers = {sim_devices(1, {.delay = microseconds(200)})}, .max_ahead = most});
    const Variable v = engine.variable();
    std::atomic<int> issued{0}, over{0}, ahead{0};
    for (int i = 0; i < 100; ++i) {
      engine.push(
          [&](Context& c) {
            c.stream()->launch([&] { ++over; });
            const int now = ++issued - over;
            if (now > ahead) ahead = now;
          },
          {update(v)}, {.on = sim(0)});
    }
    engine.wait_all();
    EXPECT_EQ(over, 100);
    EXPECT_LE(ahead, static_cast<int>(most));
    EXPECT_GE(ahead, static_cast<int>(std::min<std::size_t>(most, 2)));
  }
}

}  // namespace
}  // namespace sluice::testing
