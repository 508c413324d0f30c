// Draws of many elements: blocks of Philox by vector code, each made once. The numbers are those of
// resources/philox.h, element by element.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "sluice/operators/backends/cpu/dispatch.h"
#include "sluice/operators/uniform_range.h"
#include "sluice/resources/philox.h"

namespace sluice::cpu_backend {

constexpr int kDrawBlocks = 16;  // made at once
/// Of ElementKey::blocks: words[i][k] is word i of block k.
using DrawWords = std::uint32_t[4][kDrawBlocks];

/// The words of blocks `first` to first + batches * kDrawBlocks - 1, in their order.
void draw_words(const ElementKey& key, std::uint64_t first, std::int64_t batches, std::uint32_t* out);

/// Numbers of [0, 1).
struct Uniform01 {
  static void one(const ElementKey& key, std::uint64_t e, float* out) { *out = uniform01_f32(key, e); }
  static void one(const ElementKey& key, std::uint64_t e, double* out) { *out = uniform01_f64(key, e); }
  SLUICE_KERNEL_BODY void operator()(const DrawWords& w, float* out) const {
    for (int k = 0; k < kDrawBlocks; ++k) {
      for (int i = 0; i < 4; ++i)
        out[4 * k + i] = static_cast<float>(static_cast<std::int32_t>(w[i][k] >> 8)) * 0x1p-24f;
    }
  }
  SLUICE_KERNEL_BODY void operator()(const DrawWords& w, double* out) const {
    for (int k = 0; k < kDrawBlocks; ++k) {  // the two parts of 53 bits; their sum is exact
      for (int i = 0; i < 2; ++i) {
        out[2 * k + i] = w[2 * i + 1][k] * 0x1p-32 + (w[2 * i][k] >> 11) * 0x1p-53;
      }
    }
  }
};

/// Of the normal distribution.
struct Normal01 {
  static void one(const ElementKey& key, std::uint64_t e, float* out) { *out = normal_f32(key, e); }
  static void one(const ElementKey& key, std::uint64_t e, double* out) { *out = normal_f64(key, e); }
  SLUICE_KERNEL_BODY void operator()(const DrawWords& w, float* out) const {
    for (int k = 0; k < kDrawBlocks; ++k) {
      for (int i = 0; i < 4; i += 2) {
        const NormalPair pair = normal_pair_f32(w[i][k], w[i + 1][k]);
        out[4 * k + i] = static_cast<float>(pair.first);
        out[4 * k + i + 1] = static_cast<float>(pair.second);
      }
    }
  }
  SLUICE_KERNEL_BODY void operator()(const DrawWords& w, double* out) const {
    for (int k = 0; k < kDrawBlocks; ++k) {
      const std::uint64_t a = std::uint64_t{w[1][k]} << 32 | w[0][k], b = std::uint64_t{w[3][k]} << 32 | w[2][k];
      const NormalPair pair = normal_pair_f64(a, b);
      out[2 * k] = pair.first;
      out[2 * k + 1] = pair.second;
    }
  }
};

/// The draw's words of 32 bits.
struct Words {
  static void one(const ElementKey& key, std::uint64_t e, std::uint32_t* out) { *out = key.word32(e); }
};

/// Integers of [low, high).
struct UniformIntegers {
  std::int64_t low, high;
  template <class T>
  void one(const ElementKey& key, std::uint64_t e, T* out) const {
    *out = static_cast<T>(uniform_int(key, e, low, high));
  }
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const DrawWords& w, T* out) const {
    for (int k = 0; k < kDrawBlocks; ++k) {
      for (int i = 0; i < 2; ++i) {
        const std::uint64_t word = std::uint64_t{w[2 * i + 1][k]} << 32 | w[2 * i][k];
        out[2 * k + i] = static_cast<T>(to_uniform_int(word, low, high));
      }
    }
  }
};

/// out[0], out[1], ... of blocks `first` to first + batches * kDrawBlocks - 1.
template <class Numbers>
struct DrawBatches {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const ElementKey* key, const Numbers* numbers, std::uint64_t first,
                                     std::int64_t batches, std::int64_t elements, T* out) const {
    for (std::int64_t b = 0; b < batches; ++b, first += kDrawBlocks, out += elements) {
      DrawWords words;
      key->blocks(first, words);
      (*numbers)(words, out);
    }
  }
};

/// Elements `begin` to `end` of an array, to y[0], y[1], ... `each` elements of the draw are made of a block.
template <class Numbers, class T>
void draw(const RandomKey& of, const Numbers& numbers, const DrawWindow& window, int each, std::int64_t begin,
          std::int64_t end, T* y) {
  const ElementKey key(of);
  const std::int64_t batch = each * kDrawBlocks;
  const auto make = [&](std::uint64_t first, std::int64_t batches, T* out) {
    if constexpr (std::is_same_v<Numbers, Words>) {
      draw_words(key, first, batches, out);
    } else {
      dispatch(DrawBatches<Numbers>{}, &key, &numbers, first, batches, batch, out);
    }
  };
  T some[4 * kDrawBlocks];
  while (begin < end) {
    const std::uint64_t e = window(begin);
    std::int64_t run = window.piece == 0 ? end - begin : std::min(end - begin, window.piece - begin % window.piece);
    if (e + static_cast<std::uint64_t>(run) < e) run = static_cast<std::int64_t>(~e) + 1;  // to the draw's last element
    const auto skipped = static_cast<std::int64_t>(e % static_cast<std::uint64_t>(each));
    const std::uint64_t first = e / static_cast<std::uint64_t>(each);
    std::int64_t made = run;
    if (skipped == 0 && run >= batch) {
      made = run / batch * batch;
      make(first, run / batch, y);
    } else if (run < batch / 2) {  // a whole batch would take longer
      for (std::int64_t i = 0; i < run; ++i) numbers.one(key, e + static_cast<std::uint64_t>(i), y + i);
    } else {
      made = std::min(run, batch - skipped);
      make(first, 1, some);
      std::copy_n(some + skipped, made, y);
    }
    begin += made;
    y += made;
  }
}

}  // namespace sluice::cpu_backend
