// What a call on a mesh costs the thread that makes it, beside the same call on plain arrays.
//   bench_placed_calls [ROUNDS]
// Four logical CPUs, arrays of a few elements: a placed call makes one plain call at each place, so 4 is the least that
// it can cost. Each round makes 256 calls of each side while the CPUs' threads wait, so that what waking them costs is
// not measured, and lets them run before the next. It prints medians with quartiles of the thread's own time in
// nanoseconds, and the ratio.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sluice/sluice.h"

namespace {

using namespace sluice;

constexpr int kCalls = 256;

double quantile(std::vector<double> list, double q) {
  std::sort(list.begin(), list.end());
  return list[static_cast<std::size_t>(q * static_cast<double>(list.size() - 1))];
}

double nanoseconds_of_thread() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

/// Nanoseconds of a call.
double pushed(const std::function<void()>& call) {
  default_engine().wait_all();
  std::atomic<bool> open = false;
  for (int i = 0; i < 4; ++i) {
    default_engine().push([&open] { open.wait(false); }, std::span<const Access>(), {.on = cpu(i), .name = "gate"});
  }
  const double start = nanoseconds_of_thread();
  for (int i = 0; i < kCalls; ++i) call();
  const double taken = nanoseconds_of_thread() - start;
  open = true;
  open.notify_all();
  default_engine().wait_all();
  return taken / kCalls;
}

struct Pair {
  std::string name;
  std::function<void()> plain, placed;
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 31;
  Engine engine({.threads = 1, .logical_cpus = 4});
  set_default_engine(&engine);
  {
    const NoGrad off;
    const Mesh mesh({{"dp", 4}});
    const NDArray x = ones({8, 4}), w = ones({4, 4}), rows = place(x, mesh, {{"dp", shard(0)}}), all = place(w, mesh);
    const std::vector<Pair> pairs{
        {"add", [&] { (void)(x + x); }, [&] { (void)(rows + rows); }},
        {"matmul", [&] { (void)matmul(x, w); }, [&] { (void)matmul(rows, all); }},
        {"permute",
         [&] {
           (void)x.permute({1, 0});
         },
         [&] {
           (void)rows.permute({1, 0});
         }},
        {"reshape",
         [&] {
           (void)x.reshape({8, 2, 2});
         },
         [&] {
           (void)rows.reshape({8, 2, 2});
         }},
    };
    std::vector<std::vector<double>> times(2 * pairs.size());
    for (int round = -2; round < rounds; ++round) {
      for (std::size_t i = 0; i < pairs.size(); ++i) {
        const double one = pushed(pairs[i].plain), four = pushed(pairs[i].placed);
        if (round < 0) continue;
        times[2 * i].push_back(one);
        times[2 * i + 1].push_back(four);
      }
    }
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const std::vector<double>&one = times[2 * i], &four = times[2 * i + 1];
      std::printf("%-8s  plain %6.0f ns (%.0f to %.0f)  over 4 places %6.0f ns (%.0f to %.0f)  %.2f plain calls\n",
                  pairs[i].name.c_str(), quantile(one, 0.5), quantile(one, 0.25), quantile(one, 0.75),
                  quantile(four, 0.5), quantile(four, 0.25), quantile(four, 0.75),
                  quantile(four, 0.5) / quantile(one, 0.5));
    }
  }
  set_default_engine(nullptr);
}
