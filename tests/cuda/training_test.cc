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

std::vector<ModulePtr> make_layers(Net net) {
  RandomStream random(8);
  if (net == Net::mlp) {
    return {std::make_shared<Flatten>(), std::make_shared<Linear>(64, 12, random, LinearLayerOptions{.relu = true}),
            std::make_shared<Linear>(12, 4, random)};
  }
  return {std::make_shared<Conv2d>(1, 3, 3, random, ConvOptions{.relu = true}), std::make_shared<MaxPool2d>(2),
          std::make_shared<Flatten>(), std::make_shared<Linear>(27, 4, random)};
}
Sequential joined(const std::vector<ModulePtr>& layers) {
  Sequential whole;
  for (const ModulePtr& layer : layers) whole.push_back(layer);
  return whole;
}
std::unique_ptr<Optimizer> make_optimizer(Rule rule, const std::vector<NamedParameter>& parameters) {
  if (rule == Rule::adam) return std::make_unique<Adam>(parameters, AdamOptions{.lr = 0.01});
  return std::make_unique<Sgd>(parameters, SgdOptions{.lr = 0.05, .momentum = rule == Rule::sgd ? 0.0 : 0.9});
}

/// Batches of eight images with labels, in the host's memory.
HostTensor images() {
  HostTensor t{DType::u8, {24, 8, 8}, {}};
  for (int i = 0; i < 24 * 64; ++i) t.bytes.push_back(static_cast<std::byte>(i * 37 % 251));
  return t;
}
HostTensor labels() {
  HostTensor t{DType::u8, {24}, {}};
  for (int i = 0; i < 24; ++i) t.bytes.push_back(static_cast<std::byte>(i % 4));
  return t;
}

/// Losses and weights of two epochs; with two devices the last layer is on the second.
Values train(Net net, Rule rule, Device first, Device second) {
  const std::vector<ModulePtr> layers = make_layers(net);
  Sequential whole = joined(layers);
  Sequential lower = whole.slice(0, layers.size() - 1), upper = whole.slice(layers.size() - 1, layers.size());
  lower.to(first);
  upper.to(second);
  const auto optimizer = make_optimizer(rule, whole.parameters());
  DataLoader loader(
      images(), labels(),
      {.batch = 8, .shuffle = true, .seed = 3, .sample_shape = {1, 8, 8}, .device = first, .label_device = second});
  Values values(1);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto [x, y] : loader) {
      NDArray loss = cross_entropy(upper(lower(x).to(second)), y);
      loss.backward();
      optimizer->step();
      values[0].push_back(loss.item<float>());
    }
  }
  for (const NamedParameter& p : whole.parameters()) values.push_back(p.value->to_vector<float>());
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
  const std::vector<ModulePtr> layers = make_layers(Net::convolutional);
  Sequential whole = joined(layers);
  RandomStream random(5);
  const NDArray x = normal({12, 1, 8, 8}, random);
  const NDArray y = from(std::vector<std::int64_t>{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}, {12});
  std::vector<NamedParameter> parameters;
  if (in_order) {
    whole.to(gpu(0));
    const NDArray there = x.to(gpu(0)), labels_there = y.to(gpu(0));
    for (int k = 0; k < 3; ++k) {
      cross_entropy(whole(there.narrow(0, 4 * k, 4 * k + 4)), labels_there.narrow(0, 4 * k, 4 * k + 4), 12.0)
          .backward();
    }
    parameters = whole.parameters();
  } else {
    std::vector<parallel::Stage> list;
    for (int i = 0; i < stages; ++i) {
      const auto cut = [&](int s) {
        return layers.size() * static_cast<std::size_t>(s) / static_cast<std::size_t>(stages);
      };
      list.push_back({std::make_shared<Sequential>(whole.slice(cut(i), cut(i + 1))), gpu(i)});
    }
    parallel::Pipeline net(list);
    net.step(x, y, {.microbatches = 3}).wait();
    parameters = net.parameters();
  }
  Bytes bytes;
  for (const NamedParameter& p : parameters) bytes[std::to_string(bytes.size())] = p.value->grad().to_bytes();
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
  const auto step = [&](Sequential& net, Optimizer& optimizer) {
    cross_entropy(net(x), y).backward();
    optimizer.step();
  };
  Sequential net = joined(make_layers(Net::mlp)), resumed = joined(make_layers(Net::mlp));
  net.to(gpu(0));
  resumed.to(gpu(0));
  Adam adam(net.parameters(), {.lr = 0.05}), other(resumed.parameters(), {.lr = 0.05});
  for (int t = 0; t < 3; ++t) step(net, adam);
  save_checkpoint(path, net.parameters(), adam.state());
  for (int t = 0; t < 2; ++t) step(net, adam);
  load_checkpoint(path, resumed.parameters(), other.state());
  for (int t = 0; t < 2; ++t) step(resumed, other);
  for (std::size_t i = 0; i < net.parameters().size(); ++i) {
    EXPECT_EQ(resumed.parameters()[i].value->device(), gpu(0));
    EXPECT_EQ(resumed.parameters()[i].value->to_bytes(), net.parameters()[i].value->to_bytes());
  }
}

}  // namespace
}  // namespace sluice
