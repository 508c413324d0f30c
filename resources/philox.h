// Random numbers as a function of (seed, stream, draw, element): Philox4x32-10 of Salmon, Moraes, Dror and Shaw,
// "Parallel random numbers: as easy as 1, 2, 3" (SC'11). Nothing is stored, so that any thread of any device can make
// any element, and all make the same one. Every function here is pure and safe from any thread.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "sluice/resources/host_device.h"

namespace sluice {

/// Names one draw: all random elements of one operation. Fixed when the operation is pushed.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::uint64_t draw = 0;
  friend bool operator==(const RandomKey&, const RandomKey&) = default;
};

/// Four random words, or a counter.
struct Uint32x4 {
  std::uint32_t word[4];
};

/// The generator itself, of N counters at once: ten rounds, a bijection of counters for each key. words[i][n] is word i
/// of counter n. Word 0 of a counter is the lowest, and the key's low half is key word 0, as in the published test
/// vectors. The inner loop is over the counters, so that compilers make vector code of it.
template <std::size_t N>
SLUICE_HD_INLINE constexpr void philox_rounds(std::uint64_t key, std::uint32_t (&words)[4][N]) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    for (std::size_t n = 0; n < N; ++n) {
      const std::uint64_t a = std::uint64_t{0xD2511F53u} * words[0][n];
      const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * words[2][n];
      words[0][n] = static_cast<std::uint32_t>(b >> 32) ^ words[1][n] ^ k0;
      words[1][n] = static_cast<std::uint32_t>(b);
      words[2][n] = static_cast<std::uint32_t>(a >> 32) ^ words[3][n] ^ k1;
      words[3][n] = static_cast<std::uint32_t>(a);
    }
  }
}

/// The same of one counter.
SLUICE_HD constexpr Uint32x4 philox(std::uint64_t key, Uint32x4 counter) {
  std::uint32_t words[4][1] = {{counter.word[0]}, {counter.word[1]}, {counter.word[2]}, {counter.word[3]}};
  philox_rounds(key, words);
  return {{words[0][0], words[1][0], words[2][0], words[3][0]}};
}

/// The same from 64-bit halves of the counter.
SLUICE_HD constexpr Uint32x4 philox(std::uint64_t key, std::uint64_t low, std::uint64_t high) {
  return philox(key, Uint32x4{{static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
                               static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32)}});
}

/// A RandomKey made ready for its elements. Seed, stream, draw and element are 64 bits each, more than one Philox
/// takes, so that it runs twice: (stream, draw) under the seed gives the key and the high half of the counter for the
/// elements. The first run is a bijection, so that under one seed no two draws share their numbers. A RandomKey
/// converts by itself; a loop over elements converts once, before it.
class ElementKey {
 public:
  SLUICE_HD constexpr ElementKey(const RandomKey& key) {  // NOLINT: implicit, so that functions take either
    const Uint32x4 w = philox(key.seed, key.draw, key.stream);
    key_ = std::uint64_t{w.word[1]} << 32 | w.word[0];
    high_ = std::uint64_t{w.word[3]} << 32 | w.word[2];
  }
  /// Four words of 32 random bits: block b holds words 4b to 4b + 3 of the draw.
  SLUICE_HD constexpr Uint32x4 block(std::uint64_t b) const { return philox(key_, b, high_); }
  /// N blocks in a row: words[i][n] is word i of block `first` + n. For kernels that go through a range: with an N of a
  /// few vectors it is vector code.
  template <std::size_t N>
  SLUICE_HD_INLINE constexpr void blocks(std::uint64_t first, std::uint32_t (&words)[4][N]) const {
    for (std::size_t n = 0; n < N; ++n) {
      const std::uint64_t b = first + n;
      words[0][n] = static_cast<std::uint32_t>(b);
      words[1][n] = static_cast<std::uint32_t>(b >> 32);
      words[2][n] = static_cast<std::uint32_t>(high_);
      words[3][n] = static_cast<std::uint32_t>(high_ >> 32);
    }
    philox_rounds(key_, words);
  }
  /// Philox's key, and the high half of its counter: for kernels that have rounds of their own.
  SLUICE_HD constexpr std::uint64_t key() const { return key_; }
  SLUICE_HD constexpr std::uint64_t high() const { return high_; }
  /// The i-th of the draw's words of 32 bits.
  SLUICE_HD constexpr std::uint32_t word32(std::uint64_t i) const { return block(i >> 2).word[i & 3]; }
  /// The i-th of the draw's words of 64 bits: words 2i (low half) and 2i + 1 of 32 bits.
  SLUICE_HD constexpr std::uint64_t word64(std::uint64_t i) const {
    const Uint32x4 w = block(i >> 1);
    return (i & 1) != 0 ? std::uint64_t{w.word[3]} << 32 | w.word[2] : std::uint64_t{w.word[1]} << 32 | w.word[0];
  }

 private:
  std::uint64_t key_ = 0;
  std::uint64_t high_ = 0;
};

/// From 32 random bits to [0, 1) in steps of 2^-24: the highest 24 bits.
SLUICE_HD constexpr float to_uniform01_f32(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }
/// From 64 random bits to [0, 1) in steps of 2^-53: the highest 53 bits.
SLUICE_HD constexpr double to_uniform01_f64(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

/// From 64 random bits to [lo, hi), by the high half of bits x (hi - lo). A value's probability is off by at most 2^-64
/// from 1 / (hi - lo): no rejection, so that every element costs the same and is the same everywhere. `lo` where the
/// range is empty.
SLUICE_HD constexpr std::int64_t to_uniform_int(std::uint64_t bits, std::int64_t lo, std::int64_t hi) {
  if (hi <= lo) return lo;
  const std::uint64_t range = static_cast<std::uint64_t>(hi) - static_cast<std::uint64_t>(lo);
  const std::uint64_t a = bits >> 32, b = bits & 0xffffffffu, c = range >> 32, d = range & 0xffffffffu;
  const std::uint64_t middle = a * d + (b * d >> 32);
  const std::uint64_t high = a * c + (middle >> 32) + (((middle & 0xffffffffu) + b * c) >> 32);
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(lo) + high);
}

/// Element i of a uniform draw from [0, 1), in steps of 2^-24. Bitwise equal on every device.
SLUICE_HD constexpr float uniform01_f32(const ElementKey& key, std::uint64_t i) {
  return to_uniform01_f32(key.word32(i));
}

/// Element i of a uniform draw from [0, 1), in steps of 2^-53. Bitwise equal on every device.
SLUICE_HD constexpr double uniform01_f64(const ElementKey& key, std::uint64_t i) {
  return to_uniform01_f64(key.word64(i));
}

/// Element i of a uniform draw of integers from [lo, hi); see to_uniform_int. Bitwise equal on every device.
SLUICE_HD constexpr std::int64_t uniform_int(const ElementKey& key, std::uint64_t i, std::int64_t lo, std::int64_t hi) {
  return to_uniform_int(key.word64(i), lo, hi);
}

/// A pair of normals by Box and Muller: r cos(t) and r sin(t) with r = sqrt(-2 log u), t = 2 pi v, u in (0, 1].
struct NormalPair {
  double first, second;
};
SLUICE_HD inline NormalPair box_muller(double u, double v) {
  const double radius = std::sqrt(-2.0 * std::log(u)), angle = 6.283185307179586477 * v;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

/// The pair of an f32 draw that two words make, before it is rounded to float.
SLUICE_HD inline NormalPair normal_pair_f32(std::uint32_t a, std::uint32_t b) {
  return box_muller((a + 1.0) * 0x1p-32, b * 0x1p-32);
}

/// The pair of an f64 draw that two words of 64 bits make, of which each gives 53.
SLUICE_HD inline NormalPair normal_pair_f64(std::uint64_t a, std::uint64_t b) {
  return box_muller(static_cast<double>((a >> 11) + 1) * 0x1p-53, to_uniform01_f64(b));
}

/// Element i of a draw from the normal distribution of mean 0 and deviation 1. Elements 4b + 2p and 4b + 2p + 1 are a
/// pair, from words 2p and 2p + 1 of block b, 32 bits each (so that none is beyond 6.67). Computed in double and
/// rounded once: devices differ by 1 ulp at most, where their libraries' log, cos and sin do.
SLUICE_HD inline float normal_f32(const ElementKey& key, std::uint64_t i) {
  const Uint32x4 w = key.block(i >> 2);
  const NormalPair pair = (i & 2) != 0 ? normal_pair_f32(w.word[2], w.word[3]) : normal_pair_f32(w.word[0], w.word[1]);
  return static_cast<float>((i & 1) != 0 ? pair.second : pair.first);
}

/// The same in double: elements 2b and 2b + 1 are the pair of block b, from 53 bits each (none is beyond 8.58).
SLUICE_HD inline double normal_f64(const ElementKey& key, std::uint64_t i) {
  const Uint32x4 w = key.block(i >> 1);
  const NormalPair pair =
      normal_pair_f64(std::uint64_t{w.word[1]} << 32 | w.word[0], std::uint64_t{w.word[3]} << 32 | w.word[2]);
  return (i & 1) != 0 ? pair.second : pair.first;
}

}  // namespace sluice
