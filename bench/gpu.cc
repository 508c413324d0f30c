// What a GPU does under Sluice: our side of bench/gpu.sh. Prints a line of JSON for each figure.
//
//   bench_gpu [--device cuda | cpu] [--small] [PART...]      all parts: info small_op chain gemm elementwise overlap
//                                                           operators
//
// --small: sizes that a CPU can do too, to see that the program works. SLUICE_TF32=1 lets `gemm` in f32 round to TF32.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "sluice/sluice.h"

using namespace sluice;

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  Device device = gpu(0);
  bool small = false;
  std::vector<std::string> parts;
};

/// {"side": "sluice", "part": "gemm", "what": "f32 1024", "unit": "TFLOP/s", "value": 41.2}
void print(const char* part, const std::string& what, const char* unit, double value) {
  std::printf("{\"side\": \"sluice\", \"part\": \"%s\", \"what\": \"%s\", \"unit\": \"%s\", \"value\": %.5g}\n", part,
              what.c_str(), unit, value);
  std::fflush(stdout);
}

double seconds(const std::function<void()>& run) {
  const auto start = Clock::now();
  run();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The median of 7 runs, after one that is not counted.
double median_seconds(const std::function<void()>& run) {
  run();
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) times.push_back(seconds(run));
  std::nth_element(times.begin(), times.begin() + 3, times.end());
  return times[3];
}

/// What a call costs the thread that makes it, and how many the device does in a second. An operation adds 16 floats.
void small_op(const Options& o, Engine& engine) {
  const DeviceScope on(o.device);
  const NDArray a = ones({16}), b = full({16}, 0.5F);
  const int pushed = 2000, all = o.small ? 4000 : 200000;
  NDArray c = a + b;
  engine.wait_all();
  // Fewer than the cap on ops in flight, so that the thread never waits.
  std::vector<double> push;
  for (int round = 0; round < 20; ++round) {
    push.push_back(seconds([&] {
      for (int i = 0; i < pushed; ++i) c = a + b;
    }));
    engine.wait_all();
  }
  std::nth_element(push.begin(), push.begin() + 10, push.end());
  print("small_op", "push", "ns", push[10] * 1e9 / pushed);
  const double whole = seconds([&] {
    for (int i = 0; i < all; ++i) c = a + b;
    engine.wait_all();
  });
  print("small_op", "rate", "op/s", all / whole);
}

/// The time from one kernel to the next, kernel included, where each needs the one before.
void chain(const Options& o, Engine& engine) {
  const DeviceScope on(o.device);
  const NDArray b = full({16}, 0.5F);
  const int ops = 1000;
  const double time = median_seconds([&] {
    NDArray c = b;
    for (int i = 0; i < ops; ++i) c = c + b;
    engine.wait_all();
  });
  print("chain", "1000 ops", "ns", time * 1e9 / ops);
}

void gemm(const Options& o, Engine& engine) {
  const DeviceScope on(o.device);
  const char* const asked = std::getenv("SLUICE_TF32");
  const bool tf32 = asked && std::string(asked) == "1";
  RandomStream random(1);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    if (tf32 && dtype != DType::f32) continue;
    for (const std::int64_t n :
         o.small ? std::vector<std::int64_t>{64, 128} : std::vector<std::int64_t>{1024, 2048, 4096, 8192}) {
      const NDArray a = normal({n, n}, random).to(dtype), b = normal({n, n}, random).to(dtype);
      const int times = n < 4096 ? 50 : 10;
      const double time = median_seconds([&] {
        NDArray c;
        for (int i = 0; i < times; ++i) c = matmul(a, b);
        engine.wait_all();
      });
      const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) * times;
      print("gemm", (tf32 ? "tf32" : std::string(name_of(dtype))) + " " + std::to_string(n), "TFLOP/s",
            flops / time * 1e-12);
    }
  }
}

void elementwise(const Options& o, Engine& engine) {
  const DeviceScope on(o.device);
  const std::int64_t n = o.small ? 1 << 16 : 1 << 27;
  const NDArray a = ones({n}), b = ones({n});
  const int times = 10;
  const auto bandwidth = [&](int arrays, const std::function<NDArray()>& f) {
    const double time = median_seconds([&] {
      NDArray c;
      for (int i = 0; i < times; ++i) c = f();
      engine.wait_all();
    });
    return static_cast<double>(n) * 4 * arrays * times / time * 1e-9;
  };
  print("elementwise", "copy", "GB/s", bandwidth(2, [&] { return a.copy(); }));
  print("elementwise", "exp", "GB/s", bandwidth(2, [&] { return exp(a); }));
  print("elementwise", "add", "GB/s", bandwidth(3, [&] { return a + b; }));
}

/// Copies to the device and products that have nothing to do with them: 1 is the time of the longer, 0 of both.
void overlap(const Options& o, Engine& engine) {
  const std::int64_t n = o.small ? 128 : 4096, bytes = o.small ? 1 << 16 : 1 << 26;
  RandomStream random(1);
  NDArray a;
  {
    const DeviceScope on(o.device);
    a = normal({n, n}, random);
  }
  const NDArray host = ones({bytes / 4});
  const auto copies = [&] {
    for (int i = 0; i < 8; ++i) host.to(o.device);
  };
  const auto products = [&] {
    NDArray c;
    for (int i = 0; i < 8; ++i) c = matmul(a, a);
  };
  const auto timed = [&](const std::function<void()>& f) {
    return median_seconds([&] {
      f();
      engine.wait_all();
    });
  };
  const double copying = timed(copies), computing = timed(products);
  const double both = timed([&] {
    copies();
    products();
  });
  print("overlap", "to the device", "GB/s", 8.0 * static_cast<double>(bytes) / copying * 1e-9);
  print("overlap", "hidden part of the shorter", "%",
        100 * (copying + computing - both) / std::min(copying, computing));
}

/// Single operators at the sizes of networks that are trained, in f32: milliseconds of one.
void operators(const Options& o, Engine& engine) {
  const DeviceScope on(o.device);
  RandomStream random(1);
  const auto size = [&](std::int64_t n) { return o.small ? std::max<std::int64_t>(1, n / 64) : n; };
  const auto timed = [&](const char* what, const std::function<NDArray()>& f) {
    const int times = 5;
    const double time = median_seconds([&] {
      NDArray y;
      for (int i = 0; i < times; ++i) y = f();
      engine.wait_all();
    });
    print("operators", what, "ms", time * 1e3 / times);
  };
  const std::int64_t tokens = size(8192), words = 50257, width = 768;
  {
    const NDArray x = uniform({size(1 << 28)}, random);
    timed("sum of 2^28", [&] { return sum(x); });
    timed("argmax of 2^28", [&] { return argmax(x, 0); });
  }
  {
    const NDArray x = uniform({size(1 << 14), 16384}, random);
    timed("sum of rows (16384, 16384)", [&] { return sum(x, {1}); });
    timed("sum of columns (16384, 16384)", [&] { return sum(x, {0}); });
    timed("transpose (16384, 16384)", [&] { return x.transpose().copy(); });
  }
  {
    const NDArray x = normal({size(1000000), 10}, random);
    timed("softmax (1000000, 10)", [&] { return softmax(x); });
  }
  {
    const NDArray x = normal({tokens, words}, random), labels = randint({tokens}, random, 0, words);
    timed("softmax (8192, 50257)", [&] { return softmax(x); });
    timed("cross_entropy (8192, 50257)", [&] { return cross_entropy(x, labels); });
    const NDArray with = x.with_grad();
    timed("cross_entropy with gradient", [&] {
      cross_entropy(with, labels).backward();
      return with.grad();
    });
  }
  {
    const NDArray table = normal({words, width}, random).with_grad(), rows = randint({tokens}, random, 0, words);
    timed("embedding (50257, 768) of 8192 with gradient", [&] {
      sum(embedding(table, rows)).backward();
      return table.grad();
    });
  }
  {
    const NDArray x = normal({tokens, width}, random).with_grad(), w = ones({width}).with_grad(),
                  b = zeros({width}).with_grad();
    timed("layer_norm (8192, 768)", [&] { return layer_norm(x.detach(), w.detach(), b.detach()); });
    timed("layer_norm with gradient", [&] {
      sum(layer_norm(x, w, b)).backward();
      return x.grad();
    });
  }
  {
    const NDArray q = normal({size(8), 16, 1024, 64}, random), k = normal({size(8), 16, 1024, 64}, random),
                  v = normal({size(8), 16, 1024, 64}, random);
    timed("attention (8, 16, 1024, 64), causal", [&] { return attention(q, k, v, {.causal = true}); });
    const NDArray dq = q.with_grad(), dk = k.with_grad(), dv = v.with_grad();
    timed("attention with gradients", [&] {
      sum(attention(dq, dk, dv, {.causal = true})).backward();
      return dq.grad();
    });
    const NDArray hq = q.to(DType::bf16), hk = k.to(DType::bf16), hv = v.to(DType::bf16);
    timed("attention in bf16", [&] { return attention(hq, hk, hv, {.causal = true}); });
  }
  {
    const NDArray x = normal({size(64), 64, 56, 56}, random), w = normal({64, 64, 3, 3}, random);
    timed("conv2d (64, 64, 56, 56), 3x3", [&] { return conv2d(x, w, {}, {.padding = 1}); });
    const NDArray dx = x.with_grad(), dw = w.with_grad();
    timed("conv2d with gradients", [&] {
      sum(conv2d(dx, dw, {}, {.padding = 1})).backward();
      return dw.grad();
    });
    const NDArray weight = ones({64}), bias = zeros({64});
    timed("batch_norm (64, 64, 56, 56)", [&] { return batch_norm(x, {}, weight, bias); });
  }
  {
    const NDArray x = normal({size(1024), 4096}, random);
    timed("cumsum (1024, 4096)", [&] { return cumsum(x); });
    timed("sort (1024, 4096)", [&] { return sort(x); });
  }
  {
    struct {
      nn::Parameter w;
    } net{{{size(100000000)}, nn::normal(1)}};
    nn::initialise(net, 1);
    nn::Optimizer adam(net, nn::Adam{.lr = 1e-3});
    timed("Adam of 1e8, gradient of a sum", [&] {
      sum(net.w).backward();
      adam.step();
      return net.w.value().detach();
    });
  }
}

void info(const Options& o, Engine& engine) { print("info", "devices", "devices", engine.device_count(o.device.kind)); }

const std::map<std::string, void (*)(const Options&, Engine&)> kParts = {
    {"info", info},       {"small_op", small_op},  {"chain", chain}, {"gemm", gemm}, {"elementwise", elementwise},
    {"overlap", overlap}, {"operators", operators}};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--small") {
      o.small = true;
    } else if (word == "--device" && i + 1 < argc &&
               (argv[i + 1] == std::string("cpu") || argv[i + 1] == std::string("cuda"))) {
      o.device = argv[++i] == std::string("cpu") ? cpu(0) : gpu(0);
    } else if (kParts.contains(word)) {
      o.parts.push_back(word);
    } else {
      throw std::invalid_argument(
          "usage: bench_gpu [--device cuda | cpu] [--small] [info | small_op | chain | gemm | elementwise | "
          "overlap | operators]...");
    }
  }
  if (o.parts.empty()) o.parts = {"info", "small_op", "chain", "gemm", "elementwise", "overlap", "operators"};
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  int status = 1;
  try {
    const Options options = parse(argc, argv);
    if (options.device.kind == DeviceKind::gpu && !cuda_unavailable().empty()) {
      throw std::runtime_error("no CUDA device: " + cuda_unavailable());
    }
    Engine engine(EngineOptions{.providers = {cuda_devices()}});
    set_default_engine(&engine);
    for (const std::string& part : options.parts) kParts.at(part)(options, engine);
    status = 0;
  } catch (const std::invalid_argument& e) {
    std::fprintf(stderr, "%s\n", e.what());
    status = 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_gpu: %s\n", e.what());
  }
  set_default_engine(nullptr);
  return status;
}
