// What an operation on a GPU costs the host: the CUDA backend's own code over a CUDA whose calls return at once. A
// chain of adds of 16 floats. The lane is held while a batch is pushed and then released, so that the pusher's part and
// the lane's are timed apart; ops are pushed in batches so that what the last batch used is there for the next, as in a
// program that runs for a while.
//
//   bench_cuda_host [ROUNDS [OPS [BATCH [lazy]]]]        [15 rounds, 100,000 ops, batches of 1,000]
//
// It counts what the heap is asked for, too.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string_view>
#include <vector>

#include "sluice/resources/cuda/library.h"
#include "sluice/sluice.h"

extern "C" const sluice::cuda::Library* sluice_cuda_library(const sluice::cuda::Host& host);
extern std::atomic<std::uint64_t> launches;

static std::atomic<std::uint64_t> allocations{0};
static bool counting = false;
namespace {
[[gnu::noinline]] void* take(std::size_t bytes) {
  if (counting) allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes ? bytes : 1);
}
[[gnu::noinline]] void give(void* block) { std::free(block); }
}  // namespace
void* operator new(std::size_t bytes) {
  if (void* const block = take(bytes)) return block;
  throw std::bad_alloc();
}
void operator delete(void* block) noexcept { give(block); }
void operator delete(void* block, std::size_t) noexcept { give(block); }

namespace {

using namespace sluice;
using Clock = std::chrono::steady_clock;
double since(Clock::time_point begin) { return std::chrono::duration<double, std::nano>(Clock::now() - begin).count(); }

struct CostOfAnOp {
  double push = 0, lane = 0;  ///< ns an op
  double allocations = 0;     ///< an op, of pusher and lane
};

enum class Chain { plain, in_place };

CostOfAnOp run(Engine& engine, Chain chain, int ops, int batch) {
  NDArray x = zeros({16}), y = zeros({16});
  std::atomic<bool> go{false};
  CostOfAnOp cost;
  const std::uint64_t before = launches.load(), allocated = allocations.load();
  for (int done = 0; done < ops; done += batch) {
    engine.wait_all();
    go.store(false);
    Variable held = engine.variable();
    engine.push(
        [&go] {
          while (!go.load(std::memory_order_acquire)) {
          }
        },
        {update(held)}, {.on = gpu(0)});
    Clock::time_point begin = Clock::now();
    for (int i = 0; i < batch; ++i) {
      if (chain == Chain::in_place) {
        y += x;
      } else {
        y = y + x;
      }
    }
    cost.push += since(begin);
    begin = Clock::now();
    go.store(true, std::memory_order_release);
    engine.wait_all({.help = false});
    cost.lane += since(begin);
  }
  if (launches.load() - before < static_cast<std::uint64_t>(ops)) std::printf("kernels were not launched\n");
  cost.push /= ops;
  cost.lane /= ops;
  cost.allocations = static_cast<double>(allocations.load() - allocated) / ops;
  return cost;
}

double quantile(std::vector<double> x, double at) {
  std::sort(x.begin(), x.end());
  return x[static_cast<std::size_t>(at * static_cast<double>(x.size() - 1))];
}

}  // namespace

int main(int count, char** words) {
  const int rounds = count > 1 ? std::atoi(words[1]) : 15, ops = count > 2 ? std::atoi(words[2]) : 100'000,
            batch = count > 3 ? std::atoi(words[3]) : 1000;
  // "lazy": the provider that programs have which load the backend at the first use of a card.
  const bool lazy = count > 4 && words[4] == std::string_view("lazy");
  cuda::use_library(sluice_cuda_library, lazy ? +[] { return 1; } : nullptr);
  EngineOptions options;
  options.mode = EngineMode::threaded;
  options.mode_given = true;
  options.threads = 1;
  options.max_ops = 1u << 18;
  options.providers = {cuda_devices()};
  Engine engine(options);
  set_default_engine(&engine);
  {
    const DeviceScope on(gpu(0));
    std::printf("%-10s %32s %32s %18s\n", "chain", "pusher, ns an op (quartiles)", "lane, ns an op (quartiles)",
                "allocations an op");
    for (const Chain chain : {Chain::plain, Chain::in_place}) {
      std::vector<double> push, lane;
      for (int i = 0; i <= rounds; ++i) {
        const CostOfAnOp cost = run(engine, chain, ops, batch);
        if (i == 0) continue;  // warm
        push.push_back(cost.push);
        lane.push_back(cost.lane);
      }
      counting = true;
      const CostOfAnOp counted = run(engine, chain, ops, batch);
      counting = false;
      std::printf("%-10s", chain == Chain::plain ? "y = y + x" : "y += x");
      for (const auto* each : {&push, &lane}) {
        std::printf("%14.0f (%5.0f to %5.0f)", quantile(*each, 0.5), quantile(*each, 0.25), quantile(*each, 0.75));
      }
      std::printf("%18.3f\n", counted.allocations);
    }
  }
  set_default_engine(nullptr);
}
