// What the programs of bench/operators.sh have in common: arguments, the clock, and the line that they print.
//
//   large_ops_* OPERATION [--threads N] [--rounds N]     prints `ms N`, the median of the rounds
//
// A round is one operation on 16 Mi numbers of f32 in [-1, 1), from the call until its result is there; results of the
// round before are dropped beforehand. `matmul` is of two (1024, 1024), `bf16_matmul` of the same in bf16.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

namespace large_ops {

constexpr const char* kOperations[] = {
    "add",           "add_in_place",  "mul_number", "exp",       "tanh",        "gelu",       "relu",
    "where",         "broadcast_add", "sum",        "sum_rows",  "sum_columns", "max",        "argmax_rows",
    "variance_rows", "softmax",       "layer_norm", "cumsum",    "copy",        "transpose",  "concat",
    "gather_rows",   "sort",          "sort_rows",  "topk_rows", "matmul",      "bf16_matmul"};
constexpr std::int64_t kRows = 4096, kColumns = 4096, kMatrix = 1024;

struct Options {
  std::string_view operation;
  int threads = 1;
  int rounds = 7;
};

inline Options parse(int argc, char** argv) {
  Options options;
  bool good = argc >= 2 && argc % 2 == 0;
  if (good) options.operation = argv[1];
  for (int i = 2; good && i + 1 < argc; i += 2) {
    int* const value = !std::strcmp(argv[i], "--threads")  ? &options.threads
                       : !std::strcmp(argv[i], "--rounds") ? &options.rounds
                                                           : nullptr;
    good = value && (*value = std::atoi(argv[i + 1])) >= 1;
  }
  for (const char* name : kOperations) {
    if (good && options.operation == name) return options;
  }
  std::fprintf(stderr, "usage: %s OPERATION [--threads N] [--rounds N]; operations:", argv[0]);
  for (const char* name : kOperations) std::fprintf(stderr, " %s", name);
  std::fprintf(stderr, "\n");
  std::exit(2);
}

/// The numbers of both sides: `count` of them in [-1, 1).
inline std::vector<float> numbers(std::int64_t count, std::uint32_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    seed = seed * 1664525U + 1013904223U;
    value = static_cast<float>(seed >> 8) / 8388608.0F - 1;
  }
  return values;
}

/// Runs twice to warm up, and then the rounds: run() returns when the result is there.
template <class Run>
void report(const Options& options, Run&& run) {
  std::vector<double> took;
  for (int round = -2; round < options.rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    if (round >= 0) took.push_back(elapsed.count());
  }
  std::sort(took.begin(), took.end());
  std::printf("ms %.4f\n", took[took.size() / 2]);
}

}  // namespace large_ops
