// What collectives of one process cost beside plain copies of the same bytes.
//   bench_collectives [--samples] [ROUNDS]
// For 2 and 4 logical CPUs that share the machine's cores, and arrays of 1 to 64 MiB of f32: an all-reduce and a
// reduce-scatter of a term at each place, and an all-gather of pieces. Beside each are copies that read and write as
// many bytes as it must at least, half of them each way, in an array at each place. Rounds run all of them in turn. It
// prints medians with quartiles, and the ratio to the copies; with --samples the milliseconds of each round of the
// all-reduces and their copies, "ours" or "copies", places, MiB and ms with tabs between, for bench/collectives.sh.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sluice/sluice.h"

namespace {

using namespace sluice;

/// Seconds until what f pushes is done.
double seconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  default_engine().wait_all();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double quantile(std::vector<double> list, double q) {
  std::sort(list.begin(), list.end());
  return list[static_cast<std::size_t>(q * static_cast<double>(list.size() - 1))];
}

struct Side {
  std::string name;
  double bytes;  ///< read and written
  std::function<void()> run;
};

void measure(int places, std::int64_t mebibytes, int rounds, bool samples) {
  const Mesh mesh({{"dp", places}});
  const std::int64_t n = mebibytes << 18;
  const double bytes = 4.0 * static_cast<double>(n), p = places;
  const NDArray terms = sum(place(ones({places, n}), mesh, {{"dp", shard(0)}}), {0});
  const NDArray pieces = place(ones({n}), mesh, {{"dp", shard(0)}});
  std::vector<NDArray> plain;
  for (int i = 0; i < places; ++i) plain.push_back(ones({n}).to(mesh.device(i)));
  const auto copies = [&](double touched) {
    // Each copy reads and writes its part.
    const auto part = static_cast<std::int64_t>(touched / 2 / p / 4);
    return [&plain, part, n] {
      for (std::int64_t left = part; left > 0; left -= n) {
        for (const NDArray& x : plain) (void)x.narrow(0, 0, std::min(left, n)).copy();
      }
    };
  };
  std::vector<Side> sides;
  const auto side = [&](const char* name, double touched, std::function<void()> run) {
    sides.push_back({name, touched, std::move(run)});
    sides.push_back({std::string(name) + " as copies", touched, copies(touched)});
  };
  // Parts are added up: all terms read, one array written; then each place reads and writes all.
  side("all-reduce", bytes * (p + 1 + 2 * p), [&] { (void)whole(terms); });
  if (!samples) side("reduce-scatter", bytes * (p + 1), [&] { (void)reshard(terms, {{"dp", shard(0)}}); });
  if (!samples) side("all-gather", bytes * 2 * p, [&] { (void)whole(pieces); });
  default_engine().wait_all();
  std::map<std::string, std::vector<double>> times;
  for (int round = -2; round < rounds; ++round) {
    for (const Side& s : sides) {
      const double t = seconds(s.run);
      if (round < 0) continue;
      times[s.name].push_back(t);
      const char* const who = s.name == "all-reduce" ? "ours" : "copies";
      if (samples) std::printf("%s\t%d\t%lld\t%.4f\n", who, places, static_cast<long long>(mebibytes), 1e3 * t);
    }
  }
  for (std::size_t i = 0; i < sides.size() && !samples; i += 2) {
    const std::vector<double>&own = times[sides[i].name], &copy = times[sides[i + 1].name];
    std::printf("%-14s %d places %3lld MiB  %8.3f ms (%.3f to %.3f)  %5.1f GB/s  %.2f copies\n", sides[i].name.c_str(),
                places, static_cast<long long>(mebibytes), 1e3 * quantile(own, 0.5), 1e3 * quantile(own, 0.25),
                1e3 * quantile(own, 0.75), sides[i].bytes / quantile(own, 0.5) / 1e9,
                quantile(own, 0.5) / quantile(copy, 0.5));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool samples = argc > 1 && std::string(argv[1]) == "--samples";
  const int at = samples ? 2 : 1, rounds = argc > at ? std::atoi(argv[at]) : 15;
  for (const int places : {2, 4}) {
    Engine engine({.threads = 1, .logical_cpus = places});
    set_default_engine(&engine);
    const NoGrad off;
    for (const std::int64_t mebibytes : {1, 4, 16, 64}) measure(places, mebibytes, rounds, samples);
    set_default_engine(nullptr);
  }
}
