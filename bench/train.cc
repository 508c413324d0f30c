// images/s of the quickstart's network on one device: our side of bench/train.sh and bench/gpu.sh. A step is: clear the
// gradients, forward, cross-entropy, backward, SGD with momentum; random inputs, made before timing.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "quickstart.h"

using namespace sluice;

int main(int argc, char** argv) {
  int threads = 2, steps = 100, batch = 64;
  Device device = cpu(0);
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!std::strcmp(argv[i], "--device") && (!std::strcmp(argv[i + 1], "cuda") || !std::strcmp(argv[i + 1], "cpu"))) {
      device = !std::strcmp(argv[i + 1], "cuda") ? gpu(0) : cpu(0);
      continue;
    }
    int* const value = !std::strcmp(argv[i], "--threads") ? &threads
                       : !std::strcmp(argv[i], "--steps") ? &steps
                       : !std::strcmp(argv[i], "--batch") ? &batch
                                                          : nullptr;
    if (!value || (*value = std::atoi(argv[i + 1])) < 1) {
      std::fprintf(stderr, "usage: bench_train [--threads N] [--steps N] [--batch N] [--device cpu | cuda]\n");
      return 2;
    }
  }
  EngineOptions options{.threads = threads, .logical_cpus = 1};
  if (device.kind == DeviceKind::gpu) {
    if (!cuda_unavailable().empty()) {
      std::fprintf(stderr, "bench_train: no CUDA device: %s\n", cuda_unavailable().c_str());
      return 1;
    }
    options.providers = {cuda_devices()};
  }
  Engine engine(options);
  set_default_engine(&engine);
  {
    const DeviceScope on(device);
    RandomStream random(1);
    const nn::Sequential net = bench::quickstart_net();
    nn::Optimizer sgd(net, nn::Sgd{.lr = 0.05, .momentum = 0.9});
    const NDArray x = normal({batch, 1, 28, 28}, random);
    std::vector<std::int64_t> labels;
    for (int i = 0; i < batch; ++i) labels.push_back(i % 10);
    const NDArray y = from(labels, {batch}).to(device);

    const auto run = [&](int n) {
      NDArray before;
      for (int i = 0; i < n; ++i) {
        const NDArray loss = cross_entropy(net(x), y);
        loss.backward();
        sgd.step();
        if (before.defined()) before.wait();  // one step ahead, no more
        before = loss;
      }
      engine.wait_all();
    };
    run(10);
    const auto start = std::chrono::steady_clock::now();
    run(steps);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    std::printf("images/s %.1f\n", steps * batch / elapsed.count());
  }
  set_default_engine(nullptr);
  return 0;
}
