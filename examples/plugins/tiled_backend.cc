// A backend: a set of kernels for CPU devices. This one has one kernel, of matmul in f32.
#include <algorithm>

#include "sluice/operators/define.h"

namespace mine {
namespace {

using namespace sluice;

constexpr Backend kTiled{.name = "tiled", .device = DeviceKind::cpu, .rank = 20};
constexpr std::int64_t kTile = 8;

/// Products of whole tiles, neither factor transposed.
bool takes(const Signature& call) {
  const auto& [transpose_a, transpose_b] = call.attributes<MatmulAttributes>();
  return !transpose_a && !transpose_b && call.shape(0)[0] % kTile == 0 && call.shape(1)[1] % kTile == 0;
}

/// The columns of b, one after the other.
std::size_t scratch(const Signature& call) { return static_cast<std::size_t>(call.shape(1).count()) * sizeof(float); }

void matmul(ArrayContext& c) {
  const std::int64_t m = c.output().shape[0], n = c.output().shape[1], inner = c.input(0).shape[1];
  const float *a = c.input(0).as<float>(), *b = c.input(1).as<float>();
  float* const y = c.output().as<float>();
  const Scratch memory = c.scratch(static_cast<std::size_t>(inner * n) * sizeof(float));
  float* const columns = memory.as<float>();
  for (std::int64_t k = 0; k < inner; ++k) {
    for (std::int64_t j = 0; j < n; ++j) columns[j * inner + k] = b[k * n + j];
  }
  parallel_for(m / kTile, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * kTile; i < end * kTile; ++i) {
      for (std::int64_t tile = 0; tile < n; tile += kTile) {
        float sums[kTile] = {};
        for (std::int64_t k = 0; k < inner; ++k) {
          for (std::int64_t j = 0; j < kTile; ++j) sums[j] += a[i * inner + k] * columns[(tile + j) * inner + k];
        }
        std::copy_n(sums, kTile, y + i * n + tile);
      }
    }
  });
}

[[maybe_unused]] const bool loaded = [] {
  const Operator& row = Registry::instance().get("matmul");
  row.add_kernel(kTiled, {DType::f32},
                 {.run = matmul, .dense_inputs = true, .dense_outputs = true, .takes = takes, .scratch = scratch});
  return true;
}();

}  // namespace
}  // namespace mine
