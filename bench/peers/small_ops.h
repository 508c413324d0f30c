// What the programs of bench/small_ops.sh have in common: arguments, the clock, and the line that they print.
//
//   small_ops_* PATTERN [--threads N] [--ops N]        prints `ns N`, for one operation
//
// An operation adds 16 floats to 16 floats, and the next comes when its call has returned:
//   plain     c = a + b, so that each c but the last is dropped at once
//   chain     c = c + b
//   in_place  a += b
//   recorded  c = a + w, where w wants a gradient
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace small_ops {

struct Options {
  std::string_view pattern;
  int threads = 1;
  int ops = 200000;
};

inline Options parse(int argc, char** argv) {
  Options options;
  bool good = argc >= 2 && argc % 2 == 0;
  if (good) options.pattern = argv[1];
  for (int i = 2; good && i + 1 < argc; i += 2) {
    int* const value = !std::strcmp(argv[i], "--threads") ? &options.threads
                       : !std::strcmp(argv[i], "--ops")   ? &options.ops
                                                          : nullptr;
    good = value && (*value = std::atoi(argv[i + 1])) >= 1;
  }
  for (const char* name : {"plain", "chain", "in_place", "recorded"}) {
    if (good && options.pattern == name) return options;
  }
  std::fprintf(stderr, "usage: %s plain | chain | in_place | recorded [--threads N] [--ops N]\n", argv[0]);
  std::exit(2);
}

/// Runs a tenth of the operations to warm up, and then all: run(n) returns when they are done.
template <class Run>
void report(const Options& options, Run&& run) {
  run(options.ops / 10 + 1);
  const auto start = std::chrono::steady_clock::now();
  run(options.ops);
  const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
  std::printf("ns %.2f\n", elapsed.count() / options.ops);
}

}  // namespace small_ops
