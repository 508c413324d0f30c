// Training on GPUs of the double: the bits of the same kernels in serial mode, close to what a CPU computes, on one
// device, on several, and on logical ones.
#include <cmath>
#include <cstdlib>
#include <map>

#include "sluice/parallel/parallel.h"
#include "sluice/tests/support/temporary_directory.h"
#include "support.h"

namespace sluice {
namespace {

using Values = std::vector<std::vector<float>>;

enum class Net { mlp, convolutional };
enum class Rule { sgd, momentum, adam };

nn::Sequential make_net(Net net) {
  nn::Sequential made =
      net == Net::mlp ? nn::Sequential{nn::Flatten{}, nn::Linear{.in = 64, .out = 12, .relu = true}, nn::Linear{12, 4}}
                      : nn::Sequential{nn::Conv2d{.in = 1, .out = 3, .kernel = 3, .relu = true}, nn::MaxPool2d{2},
                                       nn::Flatten{}, nn::Linear{27, 4}};
  nn::initialise(made, 8);
  return made;
}
nn::AnyRule make_rule(Rule rule) {
  if (rule == Rule::adam) return nn::Adam{.lr = 0.01};
  return nn::Sgd{.lr = 0.05, .momentum = rule == Rule::sgd ? 0.0 : 0.9};
}

/// Images with labels, in the host's memory.
nn::Table images() {
  HostTensor x{DType::u8, {24, 1, 8, 8}, {}}, y{DType::u8, {24}, {}};
  for (int i = 0; i < 24 * 64; ++i) x.bytes.push_back(static_cast<std::byte>(i * 37 % 251));
  for (int i = 0; i < 24; ++i) y.bytes.push_back(static_cast<std::byte>(i % 4));
  return {nn::column(std::move(x)), nn::column(std::move(y))};
}

/// Losses and weights of two epochs; with two devices the last layer is on the second.
Values train(Net which, Rule rule, Device first, Device second) {
  const nn::Sequential net = make_net(which);
  const std::size_t last = net.size() - 1;
  nn::to(net, first);
  nn::to(net[last], second);
  nn::Optimizer optimizer(net, {{"*", make_rule(rule)}});
  nn::Loader loader(images(), {.batch = 8, .shuffle = true, .seed = 3, .x = nn::pixels(), .device = first});
  Values values(1);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const auto& [x, y, begins] : loader) {
      NDArray h = x;
      for (std::size_t i = 0; i < last; ++i) h = net[i](h);
      NDArray loss = cross_entropy(net[last](h.to(second)), y.to(second));
      loss.backward();
      optimizer.step();
      values[0].push_back(loss.item<float>());
    }
  }
  for (const nn::Named& p : nn::parameters(net)) values.push_back(p.state->value.to_vector<float>());
  return values;
}

void expect_close(const Values& a, const Values& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].size(), b[i].size());
    for (std::size_t k = 0; k < a[i].size(); ++k) ASSERT_NEAR(a[i][k], b[i][k], 2e-4) << i << ", " << k;
  }
}

class CudaTraining : public testing::TestWithParam<std::tuple<Net, Rule>> {};

TEST_P(CudaTraining, TheSameBitsAsInSerialModeAndCloseToTheCpu) {
  const auto [net, rule] = GetParam();
  Values serial, threaded, apart, cpus;
  {
    const OnDouble on({}, {}, {.mode = EngineMode::serial, .mode_given = true});
    serial = train(net, rule, gpu(0), gpu(0));
    cpus = train(net, rule, cpu(0), cpu(0));
  }
  {
    const OnDouble on({.random_delay = std::chrono::microseconds(20)});
    threaded = train(net, rule, gpu(0), gpu(0));
  }
  {
    const OnDouble on({.devices = 2, .random_delay = std::chrono::microseconds(20)});
    apart = train(net, rule, gpu(0), gpu(1));
  }
  EXPECT_EQ(threaded, serial);
  EXPECT_EQ(apart, serial);
  {
    const OnDouble on({}, {.logical = 2});
    EXPECT_EQ(train(net, rule, gpu(0), gpu(1)), serial);
  }
  expect_close(serial, cpus);
  EXPECT_NE(serial[0].back(), serial[0].front());
}
INSTANTIATE_TEST_SUITE_P(Each, CudaTraining,
                         testing::Combine(testing::Values(Net::mlp, Net::convolutional),
                                          testing::Values(Rule::sgd, Rule::momentum, Rule::adam)));

TEST(CudaDevices, AreAsManyAsTheEnvironmentSays) {
  ASSERT_EQ(setenv("SLUICE_LOGICAL_GPUS", "3", 1), 0);
  {
    OnDouble on;
    EXPECT_EQ((ones({4}).to(gpu(2)) + 1).to_vector<float>()[3], 2);
    EXPECT_THROW(ones({4}).to(gpu(3)), std::exception);
  }
  ASSERT_EQ(unsetenv("SLUICE_LOGICAL_GPUS"), 0);
}

using Bytes = std::map<std::string, std::vector<std::byte>>;

/// Gradients of a pipeline's step, or of its microbatches one after the other on one device.
Bytes gradients(int stages, bool in_order) {
  const nn::Sequential net = make_net(Net::convolutional);
  RandomStream random(5);
  const NDArray x = normal({12, 1, 8, 8}, random);
  const NDArray y = from(std::vector<std::int64_t>{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}, {12});
  if (in_order) {
    nn::to(net, gpu(0));
    const NDArray there = x.to(gpu(0)), labels_there = y.to(gpu(0));
    for (int k = 0; k < 3; ++k) {
      cross_entropy(net(there.narrow(0, 4 * k, 4 * k + 4)), labels_there.narrow(0, 4 * k, 4 * k + 4), 12.0).backward();
    }
  } else {
    parallel::PipelineOptions options;
    for (int i = 0; i < stages; ++i) {
      options.devices.push_back(gpu(i));
      options.cut.push_back(static_cast<int>(net.size()) * i / stages);
    }
    parallel::Pipeline(net, x.spec(), options).step(x, y, {.microbatches = 3}).wait();
  }
  Bytes bytes;
  for (const nn::Named& p : nn::parameters(net)) bytes[p.name] = p.state->value.grad().to_bytes();
  return bytes;
}

TEST(CudaPipeline, HasTheBitsOfMicrobatchesInOrder) {
  Bytes want;
  {
    const OnDouble on;
    want = gradients(1, true);
  }
  ASSERT_EQ(want.size(), 4U);
  for (const int stages : {2, 4}) {
    const OnDouble on({.random_delay = std::chrono::microseconds(20)}, {.logical = stages});
    EXPECT_EQ(gradients(stages, false), want) << stages << " logical devices";
  }
}

TEST(CudaCheckpoints, GoOnWithTheSameBits) {
  const OnDouble on;
  const test::TemporaryDirectory directory;
  const auto path = directory / "model.safetensors";
  const NDArray x = arange(0, 128, 1.0 / 128, DType::f32).narrow(0, 0, 128).reshape({2, 64}).to(gpu(0));
  const NDArray y = from(std::vector<std::int64_t>{1, 3}, {2}).to(gpu(0));
  const auto step = [&](const nn::Sequential& net, nn::Optimizer& optimizer) {
    cross_entropy(net(x), y).backward();
    optimizer.step();
  };
  const nn::Sequential net = make_net(Net::mlp), resumed = make_net(Net::mlp);
  nn::to(net, gpu(0));
  nn::to(resumed, gpu(0));
  nn::Optimizer adam(net, nn::Adam{.lr = 0.05}), other(resumed, nn::Adam{.lr = 0.05});
  for (int t = 0; t < 3; ++t) step(net, adam);
  nn::save(path, {{"net", net}, {"adam", adam}});
  for (int t = 0; t < 2; ++t) step(net, adam);
  nn::load(path, {{"net", resumed}, {"adam", other}});
  for (int t = 0; t < 2; ++t) step(resumed, other);
  const std::vector<nn::Named> wanted = nn::parameters(net), got = nn::parameters(resumed);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(got[i].state->value.device(), gpu(0));
    EXPECT_EQ(got[i].state->value.to_bytes(), wanted[i].state->value.to_bytes());
  }
}

}  // namespace
}  // namespace sluice
