// A network's training step against loops written out by hand, and the same bits on any number of threads.
#include <gmock/gmock.h>

#include "nn_support.h"

namespace sluice {
namespace {

using test::expect_close;
using test::numbers;
using test::TestEngine;

constexpr int kRows = 5, kIn = 4, kHidden = 6, kClasses = 3;

/// linear, relu, linear, cross-entropy, SGD: in plain loops.
struct PlainNetwork {
  std::vector<double> w1, b1, w2, b2;

  double step(const std::vector<double>& x, const std::vector<std::int64_t>& labels, double lr) {
    std::vector<double> h(kRows * kHidden), d_logits(kRows * kClasses);
    double loss = 0;
    for (int r = 0; r < kRows; ++r) {
      for (int j = 0; j < kHidden; ++j) {
        double sum = b1[j];
        for (int i = 0; i < kIn; ++i) sum += w1[j * kIn + i] * x[r * kIn + i];
        h[r * kHidden + j] = std::max(sum, 0.0);
      }
      double logits[kClasses], total = 0;
      for (int c = 0; c < kClasses; ++c) {
        logits[c] = b2[c];
        for (int j = 0; j < kHidden; ++j) logits[c] += w2[c * kHidden + j] * h[r * kHidden + j];
        total += std::exp(logits[c]);
      }
      loss += (std::log(total) - logits[labels[r]]) / kRows;
      for (int c = 0; c < kClasses; ++c) {
        d_logits[r * kClasses + c] = (std::exp(logits[c]) / total - (c == labels[r])) / kRows;
      }
    }
    const std::vector<double> old_w2 = w2;
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kClasses; ++c) {
        const double d = d_logits[r * kClasses + c];
        b2[c] -= lr * d;
        for (int j = 0; j < kHidden; ++j) w2[c * kHidden + j] -= lr * d * h[r * kHidden + j];
      }
      for (int j = 0; j < kHidden; ++j) {
        if (h[r * kHidden + j] <= 0) continue;
        double d = 0;
        for (int c = 0; c < kClasses; ++c) d += d_logits[r * kClasses + c] * old_w2[c * kHidden + j];
        b1[j] -= lr * d;
        for (int i = 0; i < kIn; ++i) w1[j * kIn + i] -= lr * d * x[r * kIn + i];
      }
    }
    return loss;
  }
};

TEST(Training, StepsAreThoseOfAPlainLoop) {
  TestEngine engine;
  struct Net {
    nn::Linear up{.in = kIn, .out = kHidden, .relu = true}, down{kHidden, kClasses};
  } net;
  nn::initialise(net, 2, {}, {.dtype = DType::f64});
  std::vector<NDArray> p;
  for (const nn::Named& parameter : nn::parameters(net)) p.push_back(parameter.state->value);
  PlainNetwork plain{p[0].to_vector<double>(), p[1].to_vector<double>(), p[2].to_vector<double>(),
                     p[3].to_vector<double>()};
  nn::Optimizer opt(net, nn::Sgd{.lr = 0.5});
  const std::vector<double> x = numbers(kRows * kIn, 1);
  const std::vector<std::int64_t> labels{0, 2, 1, 1, 0};
  for (int t = 0; t < 10; ++t) {
    const NDArray loss = cross_entropy(net.down(net.up(from(x, {kRows, kIn}))), from(labels, {kRows}));
    loss.backward();
    opt.step();
    EXPECT_NEAR(loss.item<double>(), plain.step(x, labels, 0.5), 1e-12);
  }
  expect_close(p[0].to_vector<double>(), plain.w1, 1e-12);
  expect_close(p[1].to_vector<double>(), plain.b1, 1e-12);
  expect_close(p[2].to_vector<double>(), plain.w2, 1e-12);
  expect_close(p[3].to_vector<double>(), plain.b2, 1e-12);
}

/// The weights' bytes after an epoch of a small convolutional network, all parts of nn/ together.
std::string train(int threads, Device device = test::device()) {
  TestEngine engine({.threads = threads});
  const DeviceScope scope(device);
  constexpr std::int64_t kImages = 48;
  HostTensor images{DType::u8, {kImages, 12, 12}, {}}, labels{DType::u8, {kImages}, {}};
  for (const double v : numbers(images.count(), 5)) images.bytes.push_back(static_cast<std::byte>(127.5 + 127 * v));
  for (int i = 0; i < kImages; ++i) labels.bytes.push_back(static_cast<std::byte>(i % 4));
  nn::Loader loader({nn::column(std::move(images)), nn::column(std::move(labels))},
                    {.batch = 10, .shuffle = true, .seed = 3, .x = nn::pixels(), .device = device});

  nn::Sequential net{nn::Conv2d{.in = 1, .out = 6, .kernel = 3, .relu = true}, nn::MaxPool2d{2}, nn::Flatten{},
                     nn::Linear{.in = 150, .out = 32, .relu = true},           nn::Dropout{0.2}, nn::Linear{32, 4}};
  nn::initialise(net, 8);
  nn::Optimizer opt(net, nn::AdamW{.lr = 0.01});
  RandomStream stream(8);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const auto& [x, y, first] : loader) {
      const nn::Training on(stream);
      cross_entropy(net(x.reshape({-1, 1, 12, 12})), y).backward();
      opt.step();
    }
  }
  std::string bits;
  for (const nn::Named& p : nn::parameters(net)) bits += test::bits(p.state->value);
  return bits;
}

TEST(Training, BitsDoNotDependOnThreads) {
  const std::string one = train(1);
  EXPECT_TRUE(train(2) == one);
  EXPECT_TRUE(train(4) == one);
}

TEST(Training, AnyDeviceHasTheBitsOfTheSameKernelsOnTheCpu) {
  const KernelRankLimit reference_only(0);
  EXPECT_TRUE(train(2) == train(2, cpu(0)));
}

}  // namespace
}  // namespace sluice
