// What a GPU does under Sluice: our side of bench/gpu.sh. Prints a line of JSON for each figure.
//
//   bench_gpu [--device cuda | cpu] [--small] [PART...]      all parts: info small_op chain gemm elementwise overlap
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

void info(const Options& o, Engine& engine) { print("info", "devices", "devices", engine.device_count(o.device.kind)); }

const std::map<std::string, void (*)(const Options&, Engine&)> kParts = {
    {"info", info}, {"small_op", small_op},       {"chain", chain},
    {"gemm", gemm}, {"elementwise", elementwise}, {"overlap", overlap}};

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
          "overlap]...");
    }
  }
  if (o.parts.empty()) o.parts = {"info", "small_op", "chain", "gemm", "elementwise", "overlap"};
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
