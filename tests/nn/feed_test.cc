// Loaders and windows against a serial program; positions; maps on worker threads; metrics.
#include <gmock/gmock.h>

#include <latch>
#include <limits>
#include <set>
#include <thread>

#include "nn_support.h"
#include "sluice/nn/data/loader.h"
#include "sluice/nn/data/windows.h"
#include "sluice/nn/metrics/metrics.h"

namespace sluice {
namespace {

using test::bits;
using test::TestEngine;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kRows = 23;

/// x of row i is {3 i, 3 i + 1, 3 i + 2}, y is i.
nn::Table table(std::int64_t rows = kRows) {
  const DeviceScope scope(cpu(0));
  const NDArray numbers = arange(0, 3 * rows, 1, DType::i64).to(DType::u8).reshape({rows, 3});
  return {numbers, arange(0, rows, 1, DType::i64)};
}

struct Seen {
  std::vector<std::string> x, y;
  std::vector<bool> first;
  friend bool operator==(const Seen&, const Seen&) = default;
};
void see(Seen& seen, const nn::Batch& batch) {
  seen.x.push_back(bits(batch.x));
  seen.y.push_back(bits(batch.y));
  seen.first.push_back(batch.first);
}
Seen an_epoch(nn::Feed& feed) {
  Seen seen;
  for (const nn::Batch& batch : feed) see(seen, batch);
  return seen;
}

/// A map that draws, so that keys show.
nn::Map noisy() {
  return [](const TensorView& in, const TensorView& out, const RandomKey& key) {
    for (std::int64_t i = 0; i < in.count(); ++i) {
      out.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(
          in.as<std::uint8_t>()[i] + uniform_int(ElementKey(key), static_cast<std::uint64_t>(i), 0, 100));
    }
  };
}

TEST(Loaders, GiveEveryRowOnceInTheOrderOfTheSeed) {
  TestEngine engine;
  for (const bool shuffle : {false, true}) {
    nn::Loader loader(table(), {.batch = 5, .shuffle = shuffle, .seed = 3});
    EXPECT_EQ(loader.size(), 5);
    std::set<std::vector<std::int64_t>> orders;
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<std::int64_t> rows;
      std::int64_t batches = 0;
      for (const auto& [x, y, first] : loader) {
        EXPECT_EQ(first, batches++ == 0);
        EXPECT_EQ(x.dtype(), DType::u8) << "no arithmetic unless told";
        const auto of_y = y.to_vector<std::int64_t>();
        const auto of_x = x.to_vector<std::uint8_t>();
        for (std::size_t i = 0; i < of_y.size(); ++i) EXPECT_EQ(of_x[3 * i], static_cast<std::uint8_t>(3 * of_y[i]));
        rows.insert(rows.end(), of_y.begin(), of_y.end());
      }
      EXPECT_EQ(batches, 5);
      EXPECT_EQ(rows, loader.order(epoch));
      orders.insert(rows);
      std::sort(rows.begin(), rows.end());
      for (std::int64_t i = 0; i < kRows; ++i) EXPECT_EQ(rows[static_cast<std::size_t>(i)], i);
    }
    EXPECT_EQ(orders.size(), shuffle ? 3U : 1U);
  }
}

TEST(Loaders, ValuesDoNotDependOnPrefetchOrThreads) {
  std::vector<Seen> all;
  for (const int threads : {1, 2, 4}) {
    for (const int prefetch : {0, 1, 4, 40}) {
      TestEngine engine({.threads = threads});
      nn::Loader loader(table(), {.batch = 4, .shuffle = true, .seed = 1, .prefetch = prefetch, .x = noisy()});
      (void)an_epoch(loader);
      all.push_back(an_epoch(loader));
    }
  }
  for (const Seen& seen : all) EXPECT_TRUE(seen == all[0]);
}

TEST(Loaders, GoOnFromAnyPosition) {
  TestEngine engine;
  for (const bool drop_last : {false, true}) {
    const nn::LoaderOptions options{.batch = 4, .shuffle = true, .seed = 1, .drop_last = drop_last, .x = noisy()};
    nn::Loader whole(table(), options);
    std::vector<Seen> epochs;
    for (int i = 0; i < 3; ++i) epochs.push_back(an_epoch(whole));
    nn::Loader running(table(), options);
    for (std::int64_t batch = 0; batch < 2 * running.size(); ++batch) {
      const auto position = running.position();
      EXPECT_EQ(position.at("epoch"), batch / running.size());
      EXPECT_EQ(position.at("batch"), batch % running.size());
      nn::Loader resumed(table(), options);
      resumed.set_position(position);
      Seen rest, wanted;
      for (const nn::Batch& b : resumed) see(rest, b);
      const Seen& of = epochs[static_cast<std::size_t>(position.at("epoch"))];
      for (std::size_t i = static_cast<std::size_t>(position.at("batch")); i < of.x.size(); ++i) {
        wanted.x.push_back(of.x[i]);
        wanted.y.push_back(of.y[i]);
        wanted.first.push_back(of.first[i]);
      }
      EXPECT_TRUE(rest == wanted) << batch;
      EXPECT_TRUE(an_epoch(resumed) == epochs[static_cast<std::size_t>(position.at("epoch") + 1)]);
      (void)running.next();
    }
  }
}

TEST(Loaders, ALoopThatIsLeftEarlyIsAnEpoch) {
  TestEngine engine;
  nn::Loader loader(table(), {.batch = 4});
  for (const nn::Batch& batch : loader) {
    if (!batch.first) break;
  }
  EXPECT_EQ(an_epoch(loader).x.size(), 6U);
  EXPECT_EQ(loader.position().at("epoch"), 2);
}

TEST(Loaders, MapsRunOnWorkerThreads) {
  TestEngine engine;
  std::latch open(1);
  std::atomic<int> on_main{0};
  const auto main = std::this_thread::get_id();
  nn::Loader loader(table(), {.batch = 4, .x = [&](const TensorView& in, const TensorView& out, const RandomKey&) {
                                if (std::this_thread::get_id() == main) ++on_main;
                                open.wait();
                                std::memcpy(out.data, in.data, 3);
                              }});
  const nn::Batch& batch = loader.next();  // a map that waits does not keep the program
  open.count_down();
  EXPECT_EQ(batch.x.to_vector<std::uint8_t>().size(), 12U);
  EXPECT_EQ(on_main, 0);
}

/// The maps of two batches meet, which would never end if one thread made all batches.
TEST(Loaders, WorkersMakeSeveralBatchesAtOnce) {
  TestEngine engine({.threads = 4, .logical_cpus = 2});
  std::latch both(2);
  nn::Loader loader(table(), {.batch = 4,
                              .prefetch = 2,
                              .x =
                                  [&](const TensorView& in, const TensorView& out, const RandomKey& key) {
                                    if (key.draw % 4 == 0 && key.draw < 8) both.arrive_and_wait();
                                    std::memcpy(out.data, in.data, 3);
                                  },
                              .workers = cpu(1)});
  nn::Loader alone(table(), {.batch = 4});
  EXPECT_TRUE(an_epoch(loader) == an_epoch(alone));
}

TEST(Loaders, AMapThatThrowsNamesTheLoader) {
  TestEngine engine;
  nn::Loader loader(table(), {.batch = 4, .x = [](const TensorView& in, const TensorView& out, const RandomKey&) {
                                if (in.as<std::uint8_t>()[0] == 3 * 6) throw std::runtime_error("no such picture");
                                std::memcpy(out.data, in.data, 3);
                              }});
  std::vector<int> bad;
  int number = 0;
  for (const nn::Batch& batch : loader) {
    const std::string what = test::what_of([&] { batch.x.wait(); });
    if (what != "nothing was thrown") {
      EXPECT_THAT(what, HasSubstr("feed_test.cc"));
      EXPECT_THAT(what, HasSubstr("no such picture"));
      bad.push_back(number);
    }
    ++number;
  }
  EXPECT_THAT(bad, ElementsAre(1)) << "the other batches are good";
}

TEST(Loaders, PutBatchesOnTheirDeviceAndTakeColumnsAsTheyAre) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  const DeviceScope host(cpu(0));
  const NDArray columns = from({-1.5, 2.0, 3.0, 4.0, 5.0, 6.0}, {2, 3}), targets = from({0.5F, 1.5F, 2.5F}, {3, 1});
  nn::Loader loader({columns.transpose(), targets}, {.batch = 2, .device = test::device(1)});
  const nn::Batch& batch = loader.next();
  EXPECT_EQ(batch.x.device(), test::device(1));
  EXPECT_EQ(batch.y.device(), test::device(1));
  EXPECT_EQ(batch.y.shape(), (Dims{2, 1}));
  EXPECT_THAT(batch.x.to_vector<double>(), ElementsAre(-1.5, 4, 2, 5));
  EXPECT_THAT(batch.y.to_vector<float>(), ElementsAre(0.5F, 1.5F));
  engine->wait_all();
}

TEST(Loaders, TheOrderOfASeedIsFixedForEver) {
  TestEngine engine;
  EXPECT_THAT(nn::Loader(table(), {.shuffle = true, .seed = 1}).order(0),
              ElementsAre(22, 11, 21, 8, 1, 0, 3, 13, 16, 17, 5, 6, 10, 2, 9, 14, 12, 4, 7, 20, 19, 15, 18))
      << "with another order, old files resume elsewhere";
}

TEST(Loaders, OddSizes) {
  TestEngine engine;
  nn::Loader none(table(0));
  EXPECT_EQ(an_epoch(none).x.size(), 0U);
  EXPECT_THROW(none.next(), UsageError);
  nn::Loader one(table(1), {.batch = 7});
  EXPECT_EQ(an_epoch(one).x.size(), 1U);
  EXPECT_EQ(an_epoch(one).x.size(), 1U);
  EXPECT_TRUE(one.next().first);
  EXPECT_TRUE(one.next().first);
  nn::Loader dropped(table(3), {.batch = 7, .drop_last = true});
  EXPECT_EQ(an_epoch(dropped).x.size(), 0U);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  nn::Loader whole(table(), {.batch = kMost});
  EXPECT_EQ(whole.size(), 1);
  for (int epoch = 0; epoch < 2; ++epoch) EXPECT_EQ(bits(whole.next().x), bits(table().x));
  nn::Windows windows(table().y, {.batch = kMost, .length = 2});
  EXPECT_EQ(windows.size(), 1);
  EXPECT_EQ(windows.next().x.shape(), (Dims{11, 2}));
}

TEST(Loaders, MisusesAreNamed) {
  TestEngine engine;
  const auto line_of = [](const auto& f) { return test::what_of(f); };
  EXPECT_THAT(line_of([] { nn::Loader({table().x, table(4).y}); }), HasSubstr("(23, 3) and (4,) of two lengths"));
  EXPECT_THAT(line_of([] { nn::Loader({}); }), HasSubstr("[nn::Loader] feed_test.cc:"));
  EXPECT_THAT(line_of([] { nn::Loader(table(), {.batch = 0}); }), HasSubstr("a batch of 0"));
  EXPECT_THAT(line_of([] { nn::Loader(table(), {.prefetch = -1}); }), HasSubstr("a prefetch of -1"));
  EXPECT_THAT(line_of([] {
                nn::Loader(table(), {.workers = Device{DeviceKind::sim, 0}});
              }),
              HasSubstr("workers on sim(0): a CPU device is wanted"));
  EXPECT_THAT(line_of([] { nn::Loader({table().y, table().y}, {.x = nn::pixels()}); }), HasSubstr("samples of i64"));
  nn::Loader loader(table(), {.batch = 4});
  const auto before = loader.position();
  EXPECT_THAT(line_of([&] { loader.set_position({{"epoch", 1}, {"batch", 6}}); }), HasSubstr("a batch below 6"));
  EXPECT_THAT(line_of([&] { loader.set_position({{"epoch", 1}}); }), HasSubstr("{epoch 1}"));
  EXPECT_EQ(loader.position(), before);
  EXPECT_THAT(line_of([] { nn::pixels(0, 0); }), HasSubstr("the deviation is 0"));
  EXPECT_THAT(line_of([] { nn::split(table(), 99, 1); }), HasSubstr("99 of 23 rows"));
  const NDArray tokens = table().y;
  EXPECT_THAT(line_of([&] { nn::Windows(tokens, {.length = 23}); }), HasSubstr("23 tokens are too few"));
  EXPECT_THAT(line_of([&] { nn::Windows(tokens, {.length = 2, .shuffle = true, .follow = true}); }),
              HasSubstr("shuffle and follow"));
  EXPECT_THAT(line_of([&] { nn::Windows(tokens.to(DType::f32), {.length = 2}); }), HasSubstr("tokens are (n,)"));
}

TEST(Maps, PixelsAreComputedInDoubleAndRoundedOnce) {
  TestEngine engine;
  const DeviceScope host(cpu(0));
  const NDArray all = arange(0, 256, 1, DType::i64).to(DType::u8);
  nn::Loader plain({all, all}, {.batch = 256, .x = nn::pixels()});
  nn::Loader scaled({all, all}, {.batch = 256, .x = nn::pixels(0.286, 0.353)});
  const std::vector<float> a = plain.next().x.to_vector<float>(), b = scaled.next().x.to_vector<float>();
  for (int i = 0; i < 256; ++i) {
    ASSERT_EQ(a[static_cast<std::size_t>(i)], static_cast<float>(i / 255.0));
    ASSERT_EQ(b[static_cast<std::size_t>(i)], static_cast<float>((i / 255.0 - 0.286) / 0.353));
  }
}

TEST(Maps, ChangeImagesAsTheySay) {
  const auto apply = [](const nn::Map& map, std::vector<std::uint8_t> image, const Dims& shape, std::uint64_t draw) {
    std::vector<std::uint8_t> out(image.size(), 255);
    map.apply({reinterpret_cast<std::byte*>(image.data()), DType::u8, shape, row_major(shape)},
              {reinterpret_cast<std::byte*>(out.data()), DType::u8, shape, row_major(shape)}, {1, 2, draw});
    return out;
  };
  std::vector<std::uint8_t> image;
  for (int i = 1; i <= 24; ++i) image.push_back(static_cast<std::uint8_t>(i));
  const Dims shape{2, 3, 4};
  std::set<std::vector<std::uint8_t>> crops, flips;
  for (std::uint64_t draw = 0; draw < 200; ++draw) {
    crops.insert(apply(nn::random_crop(1), image, shape, draw));
    flips.insert(apply(nn::random_flip(), image, shape, draw));
  }
  std::set<std::vector<std::uint8_t>> moved, turned{image};
  for (int down = -1; down <= 1; ++down) {
    for (int right = -1; right <= 1; ++right) {
      std::vector<std::uint8_t> to(24, 0);
      for (int c = 0; c < 2; ++c)
        for (int i = 0; i < 3; ++i)
          for (int j = 0; j < 4; ++j) {
            const int from_i = i + down, from_j = j + right;
            if (from_i >= 0 && from_i < 3 && from_j >= 0 && from_j < 4)
              to[static_cast<std::size_t>(12 * c + 4 * i + j)] =
                  image[static_cast<std::size_t>(12 * c + 4 * from_i + from_j)];
          }
      moved.insert(to);
    }
  }
  std::vector<std::uint8_t> mirror;
  for (std::size_t row = 0; row < 6; ++row)
    for (std::size_t j = 4; j-- > 0;) mirror.push_back(image[4 * row + j]);
  turned.insert(mirror);
  EXPECT_EQ(crops, moved);
  EXPECT_EQ(flips, turned);
  EXPECT_EQ(apply(nn::random_crop(9), image, shape, 1).size(), 24U) << "beyond the image";
  std::set<std::vector<std::uint8_t>> both;
  for (std::uint64_t draw = 0; draw < 200; ++draw)
    both.insert(apply(nn::then(nn::random_flip(), nn::random_flip()), image, shape, draw));
  EXPECT_EQ(both, turned) << "the two draw apart";
}

TEST(Windows, GiveTokensAndThoseThatFollow) {
  TestEngine engine;
  const DeviceScope host(cpu(0));
  const NDArray tokens = arange(0, 103, 1, DType::i64).to(DType::u8);
  nn::Windows plain(tokens, {.batch = 4, .length = 10});
  std::vector<int> seen;
  for (const auto& [x, y, first] : plain) {
    EXPECT_EQ(bits(y), bits((x.to(DType::i64) + 1).to(DType::u8)));
    for (const std::uint8_t token : x.to_vector<std::uint8_t>()) seen.push_back(token);
  }
  ASSERT_EQ(seen.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);

  nn::Windows shuffled(tokens, {.batch = 4, .length = 10, .shuffle = true, .seed = 2});
  EXPECT_EQ(shuffled.size(), 3);
  std::set<std::int64_t> offsets;
  for (std::uint64_t epoch = 0; epoch < 30; ++epoch) {
    std::vector<std::int64_t> begins;
    for (std::int64_t batch = 0; batch < 3; ++batch) {
      for (const std::int64_t begin : shuffled.begins(epoch, batch)) begins.push_back(begin);
    }
    std::sort(begins.begin(), begins.end());
    ASSERT_EQ(begins.size(), 9U);
    for (std::size_t i = 1; i < 9; ++i) EXPECT_EQ(begins[i], begins[i - 1] + 10);
    EXPECT_LE(begins.back() + 10 + 1, 103);
    offsets.insert(begins.front());
  }
  EXPECT_GT(offsets.size(), 5U);

  nn::Windows follow(tokens, {.batch = 2, .length = 7, .follow = true});
  EXPECT_EQ(follow.size(), 7);
  std::vector<std::vector<int>> rows(2);
  int batches = 0;
  for (const auto& [x, y, first] : follow) {
    EXPECT_EQ(first, batches++ == 0);
    for (std::int64_t r = 0; r < 2; ++r) {
      for (const std::uint8_t token : x(r).to_vector<std::uint8_t>())
        rows[static_cast<std::size_t>(r)].push_back(token);
    }
  }
  for (std::size_t r = 0; r < 2; ++r) {
    ASSERT_EQ(rows[r].size(), 49U);
    for (std::size_t i = 0; i < 49; ++i) EXPECT_EQ(rows[r][i], static_cast<int>(51 * r + i));
  }
}

TEST(Tables, AreSplitByTheSeed) {
  TestEngine engine;
  const nn::Split split = nn::split(table(), 7, 5);
  std::vector<std::int64_t> rows = split.test.y.to_vector<std::int64_t>();
  EXPECT_EQ(rows.size(), 7U);
  for (const std::int64_t row : split.train.y.to_vector<std::int64_t>()) rows.push_back(row);
  EXPECT_EQ(bits(nn::split(table(), 7, 5).test.x), bits(split.test.x));
  EXPECT_NE(bits(nn::split(table(), 7, 6).test.x), bits(split.test.x));
  std::sort(rows.begin(), rows.end());
  for (std::int64_t i = 0; i < kRows; ++i) EXPECT_EQ(rows[static_cast<std::size_t>(i)], i);
}

TEST(Metrics, AddUpWithoutWaiting) {
  TestEngine engine;
  nn::Mean mean;
  EXPECT_TRUE(std::isnan(mean.value()));
  EXPECT_FALSE(mean.latest());
  mean.add(full({}, 3.0), 2);
  mean.add(1.0);
  EXPECT_DOUBLE_EQ(mean.value(), 7.0 / 3);
  const NDArray x = full({1}, 4.0).with_grad();
  mean.add(x * 2);
  EXPECT_DOUBLE_EQ(mean.value(), 15.0 / 4);
  engine->wait_all();
  ASSERT_TRUE(mean.latest());
  EXPECT_DOUBLE_EQ(*mean.latest(), 15.0 / 4);
  EXPECT_THROW(mean.add(ones({2})), ArrayError);
  mean.reset();
  EXPECT_TRUE(std::isnan(mean.value()));

  const NDArray logits = from({0.1F, 0.7F, 0.2F, 0.5F, 0.3F, 0.2F, 0.1F, 0.2F, 0.7F}, {3, 3});
  const NDArray labels = from<std::uint8_t>({1, 1, 0}, {3});
  nn::Accuracy right;
  nn::TopK two(2), many(9);
  for (int i = 0; i < 2; ++i) {
    right.add(logits, labels);
    two.add(logits, labels);
    many.add(logits, labels);
  }
  EXPECT_DOUBLE_EQ(right.value(), 1.0 / 3);
  for (const DType dtype : {DType::i32, DType::i64}) {
    nn::Accuracy same;
    same.add(logits, labels.to(dtype));
    EXPECT_DOUBLE_EQ(same.value(), 1.0 / 3);
  }
  EXPECT_THROW(right.add(logits, labels.narrow(0, 0, 2)), ArrayError);
  EXPECT_DOUBLE_EQ(two.value(), 2.0 / 3);
  EXPECT_DOUBLE_EQ(many.value(), 1);
  nn::Perplexity perplexity;
  perplexity.add(full({}, 2.0), 3);
  perplexity.add(full({}, 1.0), 1);
  EXPECT_NEAR(perplexity.value(), std::exp(1.75), 1e-6);
}

/// The lane runs nothing while the adds are pushed, and then what several threads have brought, in an order of its own.
TEST(Metrics, TheLatestIsThatOfTheLastAdd) {
  TestEngine engine;
  for (int round = 0; round < 20; ++round) {
    std::latch go(1);
    engine->push([&go] { go.wait(); }, {}, {.on = io()});
    nn::Mean mean;
    for (int i = 0; i < 100; ++i) mean.add(full({}, static_cast<double>(i)));
    go.count_down();
    engine->wait_all();
    ASSERT_EQ(mean.latest(), mean.value()) << "round " << round;
  }
}

}  // namespace
}  // namespace sluice
