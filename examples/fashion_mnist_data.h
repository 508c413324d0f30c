// The images of examples/fashion_mnist.cc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "fashion_mnist_arguments.h"
#include "sluice/sluice.h"

/// Mean and deviation of the training pixels, where white is 1.
inline const sluice::nn::Map kPixels = sluice::nn::pixels(0.286, 0.353);

inline sluice::nn::Split read_images(const Arguments& a) {
  sluice::nn::Split images = sluice::nn::fashion_mnist(a.data);
  if (a.train_limit == 0) return images;
  const std::int64_t n = std::min<std::int64_t>(a.train_limit, images.train.x.size(0));
  return {{images.train.x.narrow(0, 0, n), images.train.y.narrow(0, 0, n)}, images.test};
}

/// Whole batches, in an order of the seed's.
inline sluice::nn::Loader training_loader(const Arguments& a, const sluice::nn::Table& images) {
  if (images.x.size(0) < a.batch) {
    throw BadInput("--batch " + std::to_string(a.batch) + ": more than the " + std::to_string(images.x.size(0)) +
                   " training images");
  }
  return sluice::nn::Loader(images, {.batch = a.batch,
                                     .shuffle = true,
                                     .seed = a.seed,
                                     .prefetch = 4,
                                     .drop_last = true,
                                     .x = kPixels,
                                     .device = device(a, 0)});
}

/// The part of the images that the network names rightly.
inline double test_accuracy(const sluice::parallel::Pipeline& pipeline, const sluice::nn::Table& images) {
  sluice::nn::Loader loader(images, {.batch = 500, .x = kPixels, .device = pipeline.device(0)});
  const sluice::Device last = pipeline.device(pipeline.stages() - 1);
  sluice::nn::Accuracy right;
  for (const auto& [x, y, first] : loader) right.add(pipeline.forward(x.unsqueeze(1)), y.to(last));
  return right.value();
}
