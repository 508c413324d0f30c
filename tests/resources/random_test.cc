#include "sluice/resources/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <latch>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "sluice/resources/microbatch_draws.h"

namespace sluice {
namespace {

constexpr bool same(const Uint32x4& a, const Uint32x4& b) {
  return a.word[0] == b.word[0] && a.word[1] == b.word[1] && a.word[2] == b.word[2] && a.word[3] == b.word[3];
}

// The three known answers for philox4x32 with 10 rounds that Random123 publishes (kat_vectors), at compile time.
static_assert(same(philox(0, Uint32x4{{0, 0, 0, 0}}), {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}));
static_assert(same(philox(~0ull, Uint32x4{{~0u, ~0u, ~0u, ~0u}}), {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}));
static_assert(same(philox(0x299f31d0a4093822, Uint32x4{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}),
                   {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));

TEST(Philox, KnownAnswersAtRunTime) {
  volatile std::uint64_t key = 0x299f31d0a4093822;  // the compiler may not answer for the machine
  EXPECT_TRUE(same(philox(key, Uint32x4{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}),
                   {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));
  EXPECT_TRUE(
      same(philox(key, 0x85a308d3243f6a88, 0x0370734413198a2e), {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));
}

TEST(Philox, ElementsAreFixedForEver) {
  // Saved models and published runs rest on these: a change of the numbers is a break, not a cleanup.
  const RandomKey key{1234, 5, 6};
  const Uint32x4 outer = philox(1234, 6, 5);
  const std::uint64_t inner = std::uint64_t{outer.word[1]} << 32 | outer.word[0];
  const Uint32x4 block = philox(inner, Uint32x4{{7, 0, outer.word[2], outer.word[3]}});
  const ElementKey elements(key);
  EXPECT_TRUE(same(elements.block(7), block));
  for (std::uint64_t k = 0; k < 4; ++k) EXPECT_EQ(elements.word32(28 + k), block.word[k]);
  EXPECT_EQ(elements.word64(14), std::uint64_t{block.word[1]} << 32 | block.word[0]);
  EXPECT_EQ(elements.word64(15), std::uint64_t{block.word[3]} << 32 | block.word[2]);
  EXPECT_EQ(uniform01_f32(key, 29), static_cast<float>(block.word[1] >> 8) / 16777216.0f);
  // Elements beyond 2^34 have words of their own.
  EXPECT_NE(elements.word32(1), elements.word32(1 + (std::uint64_t{1} << 34)));
}

template <int N>
void expect_blocks(const ElementKey& key, std::uint64_t first) {
  std::uint32_t words[4][N];
  key.blocks(first, words);
  for (int n = 0; n < N; ++n) {
    const Uint32x4 block = key.block(first + static_cast<std::uint64_t>(n));
    for (int i = 0; i < 4; ++i) EXPECT_EQ(words[i][n], block.word[i]) << first << " + " << n << ", word " << i;
  }
}

TEST(Philox, BlocksInARowAreThoseOneByOne) {
  const ElementKey key(RandomKey{1234, 5, 6});
  // In a row the low half of a block's number overflows, and so does all of it.
  for (const std::uint64_t first : {std::uint64_t{7}, (std::uint64_t{1} << 32) - 3, ~std::uint64_t{0} - 1}) {
    expect_blocks<1>(key, first);
    expect_blocks<5>(key, first);
    expect_blocks<16>(key, first);
  }
}

TEST(Philox, RangesHold) {
  EXPECT_EQ(to_uniform01_f32(0), 0.0f);
  EXPECT_EQ(to_uniform01_f32(~0u), 1.0f - 0x1p-24f);
  EXPECT_EQ(to_uniform01_f64(0), 0.0);
  EXPECT_EQ(to_uniform01_f64(~0ull), 1.0 - 0x1p-53);
  constexpr auto least = std::numeric_limits<std::int64_t>::min(), most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(to_uniform_int(0, -3, 5), -3);
  EXPECT_EQ(to_uniform_int(~0ull, -3, 5), 4);
  EXPECT_EQ(to_uniform_int(0, least, most), least);
  EXPECT_EQ(to_uniform_int(~0ull, least, most), most - 1);
  EXPECT_EQ(to_uniform_int(12345, 7, 7), 7);
  EXPECT_EQ(to_uniform_int(~0ull, 7, 8), 7);
  EXPECT_TRUE(std::isfinite(box_muller(0x1p-53, 0.25).first));
  EXPECT_EQ(std::fabs(box_muller(1.0, 0.5).first), 0.0);
  // The product's high half, against wider arithmetic.
  __extension__ using Wide = unsigned __int128;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const ElementKey key(RandomKey{9, 9, 9});
    const std::uint64_t bits = key.word64(2 * i), range = key.word64(2 * i + 1) >> (i % 60 + 1);
    if (range == 0) continue;
    const auto wanted = static_cast<std::int64_t>(static_cast<Wide>(bits) * range >> 64);
    EXPECT_EQ(to_uniform_int(bits, 0, static_cast<std::int64_t>(range)), wanted);
  }
}

// Chi-square of `bins` equal bins; about bins - 1, with a deviation of sqrt(2 (bins - 1)).
double chi_square(int bins, int samples, const std::function<int(std::uint64_t)>& bin_of) {
  std::vector<int> count(static_cast<std::size_t>(bins));
  for (int i = 0; i < samples; ++i) ++count[static_cast<std::size_t>(bin_of(static_cast<std::uint64_t>(i)))];
  const double expected = static_cast<double>(samples) / bins;
  double sum = 0;
  for (int n : count) sum += (n - expected) * (n - expected) / expected;
  return sum;
}

TEST(Philox, UniformsAreUniform) {
  constexpr int bins = 256, samples = 200'000;
  constexpr double low = 255 - 6 * 22.6, high = 255 + 6 * 22.6;
  for (std::uint64_t seed : {0ull, 1ull, 0xffffffffffffffffull}) {
    const ElementKey key(RandomKey{seed, 3, 4});
    const double f32 =
        chi_square(bins, samples, [&](auto i) { return static_cast<int>(uniform01_f32(key, i) * bins); });
    const double f64 =
        chi_square(bins, samples, [&](auto i) { return static_cast<int>(uniform01_f64(key, i) * bins); });
    const double whole =
        chi_square(bins, samples, [&](auto i) { return static_cast<int>(uniform_int(key, i, -100, 156) + 100); });
    for (double value : {f32, f64, whole}) {
      EXPECT_GT(value, low);
      EXPECT_LT(value, high);
    }
  }
}

TEST(Philox, NormalsAreNormal) {
  constexpr int samples = 200'000;
  const ElementKey key(RandomKey{42, 0, 0});
  for (const std::function<double(std::uint64_t)>& draw :
       {std::function<double(std::uint64_t)>([&](auto i) { return normal_f32(key, i); }),
        std::function<double(std::uint64_t)>([&](auto i) { return normal_f64(key, i); })}) {
    double sum = 0, squares = 0, cubes = 0, fourths = 0, neighbours = 0, before = 0;
    for (int i = 0; i < samples; ++i) {
      const double x = draw(static_cast<std::uint64_t>(i));
      sum += x, squares += x * x, cubes += x * x * x, fourths += x * x * x * x, neighbours += x * before;
      before = x;
    }
    EXPECT_NEAR(sum / samples, 0, 0.012);  // 5 deviations or more, here and below
    EXPECT_NEAR(squares / samples, 1, 0.016);
    EXPECT_NEAR(cubes / samples, 0, 0.045);
    EXPECT_NEAR(fourths / samples, 3, 0.11);
    EXPECT_NEAR(neighbours / samples, 0, 0.012);
    // Sixteen bins of equal probability, through the distribution function.
    const double value = chi_square(
        16, samples, [&](auto i) { return std::min(15, static_cast<int>(8 * std::erfc(-draw(i) / std::sqrt(2.0)))); });
    EXPECT_LT(value, 15 + 6 * 5.5);
  }
}

TEST(Philox, DrawsAreIndependent) {
  // Seeds, streams and draws that differ by one, by a swap, or by the high half only.
  const std::vector<RandomKey> keys = {{1, 2, 3},
                                       {2, 2, 3},
                                       {1, 3, 3},
                                       {1, 2, 4},
                                       {1, 3, 2},
                                       {2, 1, 3},
                                       {3, 2, 1},
                                       {1 + (1ull << 32), 2, 3},
                                       {1, 2 + (1ull << 32), 3},
                                       {1, 2, 3 + (1ull << 32)}};
  constexpr int samples = 20'000;
  for (std::size_t a = 0; a < keys.size(); ++a) {
    for (std::size_t b = a + 1; b < keys.size(); ++b) {
      const ElementKey first(keys[a]), second(keys[b]);
      double product = 0;
      int equal = 0;
      for (std::uint64_t i = 0; i < samples; ++i) {
        product += (uniform01_f64(first, i) - 0.5) * (uniform01_f64(second, i) - 0.5) * 12;
        equal += first.word32(i) == second.word32(i);
      }
      EXPECT_NEAR(product / samples, 0, 6 / std::sqrt(samples)) << a << " and " << b;
      EXPECT_LE(equal, 1);
    }
  }
}

TEST(RandomStream, NumbersItsDraws) {
  RandomStream stream(7, 3);
  EXPECT_EQ(stream.next(), (RandomKey{7, 3, 0}));
  EXPECT_EQ(stream.next(), (RandomKey{7, 3, 1}));
  const auto saved = stream.state();
  const RandomKey third = stream.next();
  stream.next();
  stream.restore(saved);
  EXPECT_EQ(stream.next(), third);
  RandomStream resumed(saved);
  EXPECT_EQ(resumed.next(), third);
  const RandomStream moved = std::move(resumed);
  EXPECT_EQ(moved.state().draw, third.draw + 1);
}

TEST(RandomStream, DerivesByNumbersAlone) {
  RandomStream stream(7, 3);
  const auto before = stream.derive(2, 5).state();
  stream.next();
  EXPECT_EQ(stream.derive(2, 5).state(), before);
  EXPECT_EQ(before.seed, 7u);
  EXPECT_EQ(before.draw, 0u);
  std::set<std::uint64_t> ids = {stream.state().stream};
  for (std::uint64_t layer = 0; layer < 50; ++layer) {
    for (std::uint64_t microbatch = 0; microbatch < 50; ++microbatch) {
      ids.insert(stream.derive(layer, microbatch).state().stream);
      ids.insert(stream.derive(layer).derive(microbatch).state().stream);
    }
  }
  EXPECT_EQ(ids.size(), 5001u);
}

/// Two layers that share a stream, and draw twice and three times; five microbatches.
TEST(MicrobatchDraws, DependOnMicrobatchAndLayerAlone) {
  const auto draw = [](RandomStream& stream, const std::vector<std::pair<int, int>>& order) {
    std::map<std::pair<int, int>, std::vector<RandomKey>> keys;  // of (microbatch, layer)
    const MicrobatchDraws step;
    for (const auto& at : order) {
      const MicrobatchDraws::Scope scope(step, at.first);
      for (int i = 0; i < 2 + at.second; ++i) keys[at].push_back(stream.next());
    }
    return keys;
  };
  const auto one_after_another = [] {
    std::vector<std::pair<int, int>> order;
    for (int k = 0; k < 5; ++k)
      for (int layer = 0; layer < 2; ++layer) order.emplace_back(k, layer);
    return order;
  }();
  RandomStream stream(7, 3);
  stream.next();
  const auto saved = stream.state();
  const auto first = draw(stream, one_after_another);
  const auto after = stream.state();
  EXPECT_EQ(after.draw, 26u);
  const auto second = draw(stream, one_after_another);

  // Microbatch 0 has the stream's own numbers, so one microbatch alone has those of no division.
  RandomStream plain(saved);
  for (int layer = 0; layer < 2; ++layer)
    for (const RandomKey& key : first.at({0, layer})) EXPECT_EQ(key, plain.next());

  std::mt19937 random(5);
  for (int trial = 0; trial < 20; ++trial) {
    auto order = one_after_another;  // shuffled, but a microbatch goes through the layers in their order
    std::shuffle(order.begin(), order.end(), random);
    std::array<int, 5> layer{};
    for (auto& at : order) at.second = layer[static_cast<std::size_t>(at.first)]++;
    RandomStream other(saved);
    EXPECT_EQ(draw(other, order), first);
    EXPECT_EQ(other.state(), after);
    EXPECT_EQ(draw(other, order), second);
  }
  std::set<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> all;
  for (const auto& step : {first, second})
    for (const auto& [at, keys] : step)
      for (const RandomKey& key : keys) all.insert({key.seed, key.stream, key.draw});
  for (std::uint64_t a = 0; a < 5; ++a) all.insert({7, stream.derive(a, saved.draw).state().stream, 0});
  EXPECT_EQ(all.size(), 55u) << "numbers given twice";
}

TEST(MicrobatchDraws, StreamsOfAStepOfTheirOwn) {
  const MicrobatchDraws step, other;
  EXPECT_THROW(MicrobatchDraws::Scope(step, -1), std::invalid_argument);
  RandomStream stream(1);
  const auto of = [&](const MicrobatchDraws& division, int k) {
    const MicrobatchDraws::Scope scope(division, k);
    return stream.next();
  };
  const RandomKey a = of(step, 2), b = of(step, 2);
  EXPECT_EQ(a.stream, b.stream);
  EXPECT_EQ(b.draw, a.draw + 1);
  {
    const MicrobatchDraws::Scope outer(step, 2);
    EXPECT_NE(of(other, 1).stream, a.stream);  // the innermost counts
    EXPECT_NE(stream.next().stream, a.stream) << "another step's numbers came between";
  }
  EXPECT_EQ(stream.next(), (RandomKey{1, 0, 4})) << "outside";
  // A stream that is made for each microbatch starts anew, wherever it lies.
  for (int k = 0; k < 3; ++k) {
    const MicrobatchDraws::Scope scope(step, 0);
    RandomStream local(5);
    EXPECT_EQ(local.next(), (RandomKey{5, 0, 0}));
  }
}

TEST(RandomStream, OneThreadAtATime) {
  RandomStream stream(1);
  const auto from_another_thread = [&](auto use) {
    bool refused = false;
    std::thread([&] {
      try {
        use();
      } catch (const std::logic_error&) {
        refused = true;
      }
    }).join();
    return refused;
  };
  {
    const RandomStream::Hold hold(stream);
    EXPECT_EQ(stream.next().draw, 0u);  // the holder goes on, and may hold it again
    const RandomStream::Hold again(stream);
    EXPECT_TRUE(from_another_thread([&] { stream.next(); }));
    EXPECT_TRUE(from_another_thread([&] { stream.state(); }));
    EXPECT_TRUE(from_another_thread([&] { stream.restore({1, 0, 0}); }));
    EXPECT_TRUE(from_another_thread([&] { stream.derive(1); }));
  }
  // One after another is fine, and nothing was drawn by those that were refused.
  EXPECT_FALSE(from_another_thread([&] { EXPECT_EQ(stream.next().draw, 1u); }));
  EXPECT_EQ(stream.next().draw, 2u);
}

TEST(RandomStream, ThreadsThatCollideNeverShareADraw) {
  RandomStream stream(1);
  constexpr int draws = 20'000;
  std::array<std::vector<std::uint64_t>, 2> taken;
  std::atomic<int> refused = 0;
  std::latch start(2);
  std::vector<std::thread> threads;
  for (auto& mine : taken) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      for (int i = 0; i < draws; ++i) {
        try {
          mine.push_back(stream.next().draw);
        } catch (const std::logic_error&) {
          ++refused;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::set<std::uint64_t> all(taken[0].begin(), taken[0].end());
  all.insert(taken[1].begin(), taken[1].end());
  EXPECT_EQ(all.size(), taken[0].size() + taken[1].size());
  EXPECT_EQ(all.size() + static_cast<std::size_t>(refused), 2u * draws);
  EXPECT_EQ(stream.state().draw, all.size());
}

TEST(Permutation, IsOneAndIsFixed) {
  for (std::int64_t n : {0, 1, 2, 10, 1000}) {
    auto order = permutation({1, 2, 3}, n);
    EXPECT_EQ(order, permutation({1, 2, 3}, n));
    std::sort(order.begin(), order.end());
    for (std::int64_t i = 0; i < n; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  }
  EXPECT_NE(permutation({1, 2, 3}, 1000), permutation({1, 2, 4}, 1000));
  EXPECT_THROW(permutation({}, -1), std::invalid_argument);
  // All 24 orders of four come up equally often.
  std::vector<std::vector<std::int64_t>> orders;
  std::vector<std::int64_t> order = {0, 1, 2, 3};
  do orders.push_back(order);
  while (std::next_permutation(order.begin(), order.end()));
  const double value = chi_square(24, 24'000, [&](std::uint64_t draw) {
    const auto found = std::lower_bound(orders.begin(), orders.end(), permutation({5, 0, draw}, 4));
    return static_cast<int>(found - orders.begin());
  });
  EXPECT_LT(value, 23 + 6 * 6.8);
}

}  // namespace
}  // namespace sluice
