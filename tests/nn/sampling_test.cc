// Weights of samples, and sequences of several lengths as one array.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "nn_support.h"
#include "sluice/nn/data/loader.h"
#include "sluice/nn/data/sequences.h"

namespace sluice {
namespace {

using test::bits;
using test::TestEngine;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

nn::Table numbers(std::int64_t n) {
  const DeviceScope host(cpu(0));
  return {arange(0, n, 1, DType::i64), arange(0, n, 1, DType::i64)};
}

TEST(Weights, AreTheChancesOfSamples) {
  TestEngine engine;
  const std::vector<double> weights{0, 1, 2, 0, 5, 0};
  nn::Loader loader(numbers(6), {.batch = 4, .seed = 2, .weights = weights});
  std::vector<double> drawn(6);
  constexpr int kEpochs = 2000;
  for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const std::vector<std::int64_t> order = loader.order(epoch);
    ASSERT_EQ(order.size(), 6U);
    for (const std::int64_t row : order) ++drawn[static_cast<std::size_t>(row)];
  }
  constexpr double kAll = 6.0 * kEpochs;
  for (std::size_t i = 0; i < 6; ++i) {
    const double p = weights[i] / 8;
    EXPECT_NEAR(drawn[i] / kAll, p, 5 * std::sqrt(p * (1 - p) / kAll)) << i;
  }
  std::vector<std::int64_t> seen;
  for (const auto& [x, y, first] : loader) {
    EXPECT_EQ(bits(x), bits(y));
    for (const std::int64_t row : y.to_vector<std::int64_t>()) seen.push_back(row);
  }
  EXPECT_EQ(seen, loader.order(0));
  nn::Loader shuffled(numbers(6), {.shuffle = true, .seed = 2, .weights = weights});
  EXPECT_EQ(shuffled.order(3), loader.order(3));
  nn::Loader one(numbers(3), {.weights = {0, 1e-300, 0}});
  EXPECT_THAT(one.order(0), ElementsAre(1, 1, 1));
  EXPECT_EQ(nn::Loader(numbers(0), {.weights = {}}).size(), 0);
}

/// A sample that is drawn twice is changed in two ways; threads and prefetch change nothing.
TEST(Weights, KeyMapsByThePlaceInTheEpoch) {
  std::set<std::string> all;
  for (const int threads : {1, 4}) {
    for (const int prefetch : {0, 7}) {
      TestEngine engine({.threads = threads, .logical_cpus = 2});
      const nn::Map draws([](const TensorView& in, const TensorView& out, const RandomKey& key) {
        out.as<std::int64_t>()[0] = in.as<std::int64_t>()[0] + uniform_int(key, 0, 0, 1'000'000'000);
      });
      nn::Loader loader(numbers(2),
                        {.batch = 1, .prefetch = prefetch, .x = draws, .workers = cpu(1), .weights = {0, 1}});
      std::set<std::int64_t> values;
      std::string text;
      for (int i = 0; i < 8; ++i) {
        const NDArray x = loader.next().x;
        values.insert(x.to_vector<std::int64_t>()[0]);
        text += bits(x);
      }
      EXPECT_EQ(values.size(), 8U);
      all.insert(text);
    }
  }
  EXPECT_EQ(all.size(), 1U);
}

TEST(Weights, WrongOnesAreNamed) {
  TestEngine engine;
  const auto line = [](const std::vector<double>& weights) {
    return test::what_of([&] { nn::Loader loader(numbers(2), {.weights = weights}); });
  };
  EXPECT_THAT(line({1}), HasSubstr("[nn::Loader] sampling_test.cc:"));
  EXPECT_THAT(line({1}), HasSubstr("1 weights of 2 samples"));
  EXPECT_THAT(line({1, -1}), HasSubstr("a weight of -1"));
  EXPECT_THAT(line({1, std::nan("")}), HasSubstr("a weight of nan"));
  EXPECT_THAT(line({0, 0}), HasSubstr("weights whose sum is 0"));
  EXPECT_THAT(line({1e308, 1e308}), HasSubstr("weights whose sum is inf"));
}

TEST(Sequences, ArePadded) {
  TestEngine engine;
  const nn::Padded padded = nn::padded({{1, 2, 3}, {}, {4}}, -7, 2);
  EXPECT_EQ(padded.x.spec(), (Spec{{3, 4}, DType::i64, cpu(0)}));
  EXPECT_THAT(padded.x.to_vector<std::int64_t>(), ElementsAre(1, 2, 3, -7, -7, -7, -7, -7, 4, -7, -7, -7));
  EXPECT_EQ(padded.mask.dtype(), DType::boolean);
  EXPECT_THAT(padded.mask.to(DType::i64).to_vector<std::int64_t>(), ElementsAre(1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0));
  EXPECT_THAT(padded.lengths.to_vector<std::int64_t>(), ElementsAre(3, 0, 1));
  EXPECT_EQ(nn::padded({{}}).x.shape(), (Dims{1, 1}));
  EXPECT_EQ(nn::padded({{1, 2}}, 0, 2).x.shape(), (Dims{1, 2}));
  EXPECT_THAT(test::what_of([] { nn::padded({}); }), HasSubstr("[nn::padded] sampling_test.cc:"));
  EXPECT_THAT(test::what_of([] { nn::padded({{1}}, 0, 0); }), HasSubstr("a multiple of 0"));
}

TEST(Sequences, ArePacked) {
  TestEngine engine;
  // 3 opens row 0, 4 row 1; 2 fits best into row 0, 1 into row 1, and 5 opens row 2.
  const nn::Packed packed = nn::packed({{1, 1, 1}, {2, 2, 2, 2}, {}, {3, 3}, {4}, {5, 5, 5, 5, 5}}, 5, 9);
  EXPECT_EQ(packed.x.shape(), (Dims{3, 5}));
  EXPECT_THAT(packed.x.to_vector<std::int64_t>(), ElementsAre(1, 1, 1, 3, 3, 2, 2, 2, 2, 4, 5, 5, 5, 5, 5));
  EXPECT_THAT(packed.segments.to_vector<std::int64_t>(), ElementsAre(1, 1, 1, 2, 2, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1));
  EXPECT_THAT(packed.places.to_vector<std::int64_t>(), ElementsAre(0, 1, 2, 0, 1, 0, 1, 2, 3, 0, 0, 1, 2, 3, 4));
  const nn::Packed loose = nn::packed({{1, 2}, {3, 4}}, 3, 9);
  EXPECT_THAT(loose.x.to_vector<std::int64_t>(), ElementsAre(1, 2, 9, 3, 4, 9));
  EXPECT_THAT(loose.segments.to_vector<std::int64_t>(), ElementsAre(1, 1, 0, 1, 1, 0));
  EXPECT_THAT(test::what_of([] {
                nn::packed({{1}, {1, 2, 3}}, 2);
              }),
              HasSubstr("sequence 1 of 3 tokens, and rows of 2"));
  EXPECT_THAT(test::what_of([] { nn::packed({{}}, 2); }), HasSubstr("no sequence has a token"));
  EXPECT_THAT(test::what_of([] { nn::packed({{1}}, 0); }), HasSubstr("rows of 0 tokens"));
  EXPECT_THAT(test::what_of([] { nn::packed({{1}}, std::int64_t{1} << 61); }),
              HasSubstr("1 rows of 2305843009213693952 tokens are too many bytes"));
  EXPECT_THAT(test::what_of([] {
                nn::padded({{1}, {2}}, 0, std::int64_t{1} << 60);
              }),
              HasSubstr("2 rows of 1152921504606846976 tokens are too many bytes"));
}

/// Packed sequences do not see each other: attention with the mask that the header gives is that of each one alone.
TEST(Sequences, PackedOnesAttendToThemselves) {
  TestEngine engine;
  const DeviceScope host(cpu(0));
  const nn::Sequences sequences{{0, 1, 2}, {3, 4, 5, 6}, {7, 8}, {9}};
  const nn::Packed packed = nn::packed(sequences, 6, 0);
  ASSERT_EQ(packed.x.shape(), (Dims{2, 6}));
  // (rows, 2 heads, length, 4) of a table by token.
  const NDArray table = test::made_up({10, 8}, 1);
  const auto heads = [&](const NDArray& tokens) {
    return take_rows(table, tokens.reshape({tokens.count()}))
        .reshape({tokens.shape()[0], tokens.shape()[1], 2, 4})
        .swapaxes(1, 2);
  };
  const NDArray q = heads(packed.x), &segments = packed.segments;
  const NDArray mask = (segments.unsqueeze(1) == segments.unsqueeze(2)).unsqueeze(1);
  EXPECT_EQ(mask.shape(), (Dims{2, 1, 6, 6}));
  for (const bool causal : {false, true}) {
    const std::vector<double> all =
        attention(q, q, q, {.causal = causal, .mask = mask}).swapaxes(1, 2).contiguous().to_vector<double>();
    const std::vector<std::int64_t> x = packed.x.to_vector<std::int64_t>(), of = segments.to_vector<std::int64_t>();
    std::size_t compared = 0;
    for (const auto& sequence : sequences) {
      const auto n = static_cast<std::int64_t>(sequence.size());
      const NDArray alone = heads(from<std::int64_t>(sequence, {1, n}));
      const std::vector<double> wanted =
          attention(alone, alone, alone, {.causal = causal}).swapaxes(1, 2).contiguous().to_vector<double>();
      for (std::size_t at = 0; at < x.size(); ++at) {
        if (of[at] == 0 || x[at] < sequence.front() || x[at] > sequence.back()) continue;
        const auto k = static_cast<std::size_t>(x[at] - sequence.front());
        for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(all[8 * at + i], wanted[8 * k + i], 1e-12) << at << ' ' << i;
        ++compared;
      }
    }
    EXPECT_EQ(compared, 10U);
  }
}

/// Every token is there once, in order, and no row holds more than it may.
TEST(Sequences, PackingLosesNothing) {
  TestEngine engine;
  nn::Sequences sequences;
  std::int64_t token = 1;
  std::size_t tokens = 0;
  for (std::uint64_t i = 0; i < 500; ++i) {
    sequences.emplace_back();
    for (std::int64_t n = uniform_int(RandomKey{1, 2, 3}, i, 0, 33); n > 0; --n) sequences.back().push_back(token++);
    tokens += sequences.back().size();
  }
  const nn::Packed packed = nn::packed(sequences, 32, 0);
  const std::vector<std::int64_t> x = packed.x.to_vector<std::int64_t>(),
                                  segments = packed.segments.to_vector<std::int64_t>(),
                                  places = packed.places.to_vector<std::int64_t>();
  std::set<std::int64_t> seen;
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(x[i] == 0, segments[i] == 0);
    if (x[i] == 0) continue;
    EXPECT_TRUE(seen.insert(x[i]).second);
    if (places[i] == 0) continue;
    EXPECT_TRUE(x[i] == x[i - 1] + 1 && segments[i] == segments[i - 1] && i % 32 != 0) << i;
  }
  EXPECT_EQ(seen.size(), tokens);
  EXPECT_LT(x.size(), tokens * 11 / 10) << "rows are well filled";
}

}  // namespace
}  // namespace sluice
