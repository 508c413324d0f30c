// The loader: every sample once, in an order that the seed decides, with the right bits, however far it reads ahead.
#include "sluice/nn/data_loader.h"

#include <gmock/gmock.h>

#include <atomic>
#include <set>

#include "nn_support.h"

namespace sluice {
namespace {

using test::TestEngine;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kSamples = 23;

/// Sample i is {7 i, 7 i + 1, ..., 7 i + 5} modulo 256, its label i.
HostTensor pixels() {
  HostTensor t{DType::u8, {kSamples, 2, 3}, {}};
  for (int i = 0; i < kSamples; ++i) {
    for (int k = 0; k < 6; ++k) t.bytes.push_back(static_cast<std::byte>(i * 7 + k));
  }
  return t;
}
HostTensor labels() {
  HostTensor t{DType::u8, {kSamples}, {}};
  for (int i = 0; i < kSamples; ++i) t.bytes.push_back(static_cast<std::byte>(i));
  return t;
}

struct Seen {
  std::vector<int> labels;
  std::vector<float> pixels;
  std::vector<std::int64_t> sizes;
};

Seen go_through(DataLoader& loader) {
  Seen seen;
  for (auto [x, y] : loader) {
    EXPECT_EQ(len(x), len(y));
    seen.sizes.push_back(len(y));
    for (const std::uint8_t label : y.to_vector<std::uint8_t>()) seen.labels.push_back(label);
    for (const float pixel : x.to_vector<float>()) seen.pixels.push_back(pixel);
  }
  return seen;
}

TEST(DataLoader, GivesEverySampleOnceInOrder) {
  TestEngine engine;
  DataLoader loader(pixels(), labels(), {.batch = 5});
  EXPECT_EQ(loader.size(), 5);
  const Seen seen = go_through(loader);
  EXPECT_THAT(seen.sizes, ElementsAre(5, 5, 5, 5, 3));
  std::vector<int> all_labels(kSamples);
  for (int i = 0; i < kSamples; ++i) all_labels[static_cast<std::size_t>(i)] = i;
  EXPECT_EQ(seen.labels, all_labels);

  DataLoader dropping(pixels(), labels(), {.batch = 5, .drop_last = true});
  EXPECT_EQ(dropping.size(), 4);
  EXPECT_THAT(go_through(dropping).sizes, ElementsAre(5, 5, 5, 5));
  DataLoader exact(pixels(), labels(), {.batch = kSamples});
  EXPECT_THAT(go_through(exact).sizes, ElementsAre(kSamples));
  DataLoader large(pixels(), labels(), {.batch = 100, .drop_last = true});
  EXPECT_THAT(go_through(large).sizes, ElementsAre());
}

TEST(DataLoader, ShufflesBySeedAndEpoch) {
  TestEngine engine;
  const DataLoaderOptions options{.batch = 4, .shuffle = true, .seed = 11};
  DataLoader loader(pixels(), labels(), options), same(pixels(), labels(), options);
  const Seen first = go_through(loader), second = go_through(loader);
  EXPECT_EQ(std::set<int>(first.labels.begin(), first.labels.end()).size(), std::size_t{kSamples});
  EXPECT_EQ(std::set<int>(second.labels.begin(), second.labels.end()).size(), std::size_t{kSamples});
  EXPECT_NE(first.labels, second.labels);
  EXPECT_EQ(loader.epoch(), 2u);

  EXPECT_EQ(go_through(same).labels, first.labels);
  same.set_epoch(0);
  EXPECT_EQ(go_through(same).labels, first.labels);
  EXPECT_EQ(go_through(same).labels, second.labels);
  DataLoader other(pixels(), labels(), {.batch = 4, .shuffle = true, .seed = 12});
  EXPECT_NE(go_through(other).labels, first.labels);

  // From a checkpoint in the middle of an epoch.
  same.set_epoch(1, 3);
  EXPECT_EQ(go_through(same).labels, std::vector<int>(second.labels.begin() + 12, second.labels.end()));
  EXPECT_EQ(same.epoch(), 2u);
  same.set_epoch(1, same.size());
  EXPECT_THAT(go_through(same).labels, ElementsAre());
  EXPECT_THROW(same.set_epoch(0, same.size() + 1), UsageError);
}

TEST(DataLoader, TheOrderOfASeedIsFixedForEver) {
  TestEngine engine;
  DataLoader loader(pixels(), labels(), {.shuffle = true, .seed = 1});
  EXPECT_THAT(loader.order(0),
              ElementsAre(22, 11, 21, 8, 1, 0, 3, 13, 16, 17, 5, 6, 10, 2, 9, 14, 12, 4, 7, 20, 19, 15, 18))
      << "with another order, old checkpoints resume elsewhere";
}

TEST(DataLoader, PrefetchChangesNothing) {
  TestEngine engine;
  Seen wanted;
  for (const int prefetch : {0, 1, 2, 100}) {
    DataLoader loader(pixels(), labels(), {.batch = 4, .shuffle = true, .seed = 5, .prefetch = prefetch});
    const Seen seen = go_through(loader);
    if (prefetch == 0) wanted = seen;
    EXPECT_EQ(seen.labels, wanted.labels) << prefetch;
    EXPECT_EQ(seen.pixels, wanted.pixels) << prefetch;
  }
}

TEST(DataLoader, PixelsHaveTheRightBits) {
  TestEngine engine;
  DataLoader loader(pixels(), labels(), {.batch = 6, .shuffle = true, .seed = 2, .sample_shape = {1, 2, 3}});
  for (auto [x, y] : loader) {
    EXPECT_EQ(x.shape(), (Dims{len(y), 1, 2, 3}));
    const auto values = x.to_vector<float>();
    const auto numbers = y.to_vector<std::uint8_t>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto pixel = static_cast<std::uint8_t>(numbers[i / 6] * 7 + i % 6);
      ASSERT_EQ(values[i], static_cast<float>(pixel * (1.0 / 255)));
    }
  }
  DataLoader f64(pixels(), labels(), {.batch = 1, .dtype = DType::f64, .scale = 0.5, .mean = 0.25, .deviation = 3});
  EXPECT_EQ((*f64.begin()).x.to_vector<double>()[1], (1 * 0.5 - 0.25) / 3);
  DataLoader as_is(pixels(), labels(), {.batch = 2, .dtype = DType::u8});
  EXPECT_THAT((*as_is.begin()).x.to_vector<std::uint8_t>(), ElementsAre(0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12));
}

TEST(DataLoader, TakesArraysOfAnyNumbers) {
  TestEngine engine;
  const DeviceScope scope(cpu(0));
  const NDArray data = from({-1.5f, 2.f, 3.f, 4.f}, {2, 2}), targets = from({0.5, 1.5}, {2, 1});
  DataLoader loader(data, targets, {.batch = 2, .dtype = DType::f64, .scale = 1, .mean = 1});
  for (auto [x, y] : loader) {
    EXPECT_THAT(x.to_vector<double>(), ElementsAre(-2.5, 1, 2, 3));
    EXPECT_EQ(y.shape(), (Dims{2, 1}));
    EXPECT_THAT(y.to_vector<double>(), ElementsAre(0.5, 1.5));
  }
  DataLoader turned(data.transpose(), targets, {.batch = 1, .scale = 1});
  EXPECT_THAT((*turned.begin()).x.to_vector<float>(), ElementsAre(-1.5f, 3.f));
  DataLoader bytes(from({std::int8_t{-128}, std::int8_t{127}}, {2, 1}), targets, {.scale = 1});
  EXPECT_THAT((*bytes.begin()).x.to_vector<float>(), ElementsAre(-128.f, 127.f));
}

TEST(DataLoader, PutsBatchesOnTheirDevices) {
  TestEngine engine({.threads = 2, .logical_cpus = 3});
  DataLoader loader(pixels(), labels(), {.batch = 8, .device = test::device(1), .label_device = test::device(2)});
  for (auto [x, y] : loader) {
    EXPECT_EQ(x.device(), test::device(1));
    EXPECT_EQ(y.device(), test::device(2));
  }
  engine->wait_all();
}

TEST(DataLoader, TransformsAreRepeatable) {
  TestEngine engine;
  const auto noisy = [](int prefetch) {
    return DataLoaderOptions{.batch = 4,
                             .shuffle = true,
                             .seed = 6,
                             .prefetch = prefetch,
                             .sample_shape = {6},
                             .transform = [](const TensorView& sample, const TensorView& out, const RandomKey& key) {
                               EXPECT_EQ(sample.shape, (Dims{2, 3}));
                               EXPECT_EQ(out.shape, (Dims{6}));
                               for (int i = 0; i < 6; ++i) {
                                 out.as<float>()[i] = static_cast<float>(sample.as<std::uint8_t>()[i]) +
                                                      uniform01_f32(key, static_cast<std::uint64_t>(i)) / 2;
                               }
                             }};
  };
  DataLoader one(pixels(), labels(), noisy(0)), two(pixels(), labels(), noisy(7));
  const Seen first = go_through(one);
  EXPECT_EQ(go_through(two).pixels, first.pixels);
  EXPECT_NE(go_through(two).pixels, first.pixels) << "another epoch";
  for (std::size_t i = 0; i < first.pixels.size(); ++i) {
    EXPECT_EQ(std::floor(first.pixels[i]),
              static_cast<float>((first.labels[i / 6] * 7 + static_cast<int>(i % 6)) & 255));
  }
}

TEST(DataLoader, WhatATransformThrowsIsMetAtTheWait) {
  TestEngine engine;
  std::atomic<int> calls{0};
  DataLoader loader(pixels(), labels(),
                    {.batch = 10, .transform = [&](const TensorView&, const TensorView& out, const RandomKey&) {
                       if (calls++ == 10) throw std::runtime_error("no such picture");
                       for (int i = 0; i < 6; ++i) out.as<float>()[i] = 1;
                     }});
  std::vector<bool> good;
  for (auto [x, y] : loader) {
    try {
      x.wait();
      good.push_back(true);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("no such picture"));
      EXPECT_THAT(error.what(), HasSubstr("data_loader_test.cc"));
      good.push_back(false);
    }
  }
  EXPECT_EQ(std::count(good.begin(), good.end(), false), 1);
  EXPECT_EQ(good.size(), 3u);
}

TEST(DataLoader, AnIteratorOutlivesItsLoader) {
  TestEngine engine;
  auto loader = std::make_unique<DataLoader>(pixels(), labels(), DataLoaderOptions{.batch = 10});
  DataLoader::Iterator i = loader->begin();
  loader.reset();
  int batches = 0;
  for (; !(i == std::default_sentinel); ++i) {
    i->x.wait();
    ++batches;
  }
  EXPECT_EQ(batches, 3);
}

TEST(DataLoader, UseThatCannotBeRightThrowsAtTheCall) {
  TestEngine engine;
  HostTensor short_labels{DType::u8, {kSamples - 1}, std::vector<std::byte>(kSamples - 1)};
  EXPECT_THROW(DataLoader(pixels(), short_labels), ArrayError);
  EXPECT_THROW(DataLoader(pixels(), labels(), {.batch = 0}), ArrayError);
  EXPECT_THROW(DataLoader(pixels(), labels(), {.prefetch = -1}), ArrayError);
  EXPECT_THROW(DataLoader(pixels(), labels(), {.sample_shape = {5}}), ArrayError);
  EXPECT_THROW(DataLoader(pixels(), labels(), {.dtype = DType::i64}), ArrayError);
  EXPECT_THROW(DataLoader(pixels(), labels(), {.deviation = 0}), ArrayError);
  EXPECT_THROW(DataLoader(NDArray(), NDArray()), ArrayError);
}

}  // namespace
}  // namespace sluice
