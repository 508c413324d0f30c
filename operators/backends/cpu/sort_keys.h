// Sorting by whole numbers: keys that order as elements do, and a radix sort of them.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "sluice/ndarray/dtype.h"
#include "sluice/ndarray/half.h"

namespace sluice::cpu_backend {

/// The key of an element: elements are in the order of sort() (lines.h) where their keys ascend. Equal elements, among
/// them 0 and -0, and all NaN, have one key.
template <class T>
auto sort_key(T x, bool descending) {
  if constexpr (std::is_integral_v<T>) {
    using Key = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    constexpr Key middle = std::is_signed_v<T> ? Key(1) << (8 * sizeof(T) - 1) : 0;
    constexpr Key all = static_cast<Key>(~Key(0)) >> (8 * (sizeof(Key) - sizeof(T)));
    const Key key = (static_cast<Key>(x) & all) ^ middle;
    return static_cast<Key>(descending ? key ^ all : key);
  } else {
    using Key = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    constexpr int bits = 8 * sizeof(T);
    constexpr Key sign = Key(1) << (bits - 1), all = static_cast<Key>(~Key(0)) >> (8 * sizeof(Key) - bits);
    constexpr Key infinity = std::is_same_v<T, double>    ? static_cast<Key>(0x7FF0000000000000U)
                             : std::is_same_v<T, Float16> ? Key(0x7C00U)
                             : std::is_same_v<T, float>   ? Key(0x7F800000U)
                                                          : Key(0x7F80U);
    Key raw;
    if constexpr (sizeof(T) == 2) {
      raw = std::bit_cast<std::uint16_t>(x);
    } else {
      raw = std::bit_cast<Key>(x);
    }
    const Key size = raw & ~sign & all;
    if (size == 0) raw = 0;
    const Key key = (raw & sign) != 0 ? ~raw & all : raw | sign;
    return static_cast<Key>(size > infinity ? all : descending ? key ^ all : key);
  }
}

/// A key and where its element is. Keys of up to 32 bits share one number with the place.
struct PackedEntry {
  std::uint64_t bits;
  static PackedEntry of(std::uint64_t key, std::int64_t place) {
    return {key << 32U | static_cast<std::uint64_t>(place)};
  }
  std::uint64_t key() const { return bits >> 32U; }
  std::int64_t place() const { return static_cast<std::int64_t>(bits & 0xFFFFFFFFU); }
  friend bool operator<(PackedEntry a, PackedEntry b) { return a.bits < b.bits; }
};
struct WideEntry {
  std::uint64_t bits, at;
  static WideEntry of(std::uint64_t key, std::int64_t place) { return {key, static_cast<std::uint64_t>(place)}; }
  std::uint64_t key() const { return bits; }
  std::int64_t place() const { return static_cast<std::int64_t>(at); }
  friend bool operator<(const WideEntry& a, const WideEntry& b) {
    return a.bits != b.bits ? a.bits < b.bits : a.at < b.at;
  }
};

/// Sorts n entries, which come in the order of their places, by keys of `key_bits` bits: counted by 11 bits at a time,
/// from the lowest, each pass keeping the order of the one before. `other` is memory for as many; the result is in the
/// one that is returned.
template <class Entry>
Entry* radix_sort(Entry* entries, Entry* other, std::int64_t n, int key_bits) {
  constexpr int digit_bits = 11;
  constexpr std::uint64_t digits = 1U << digit_bits;
  const int passes = (key_bits + digit_bits - 1) / digit_bits;
  std::array<std::array<std::int64_t, digits>, 6> counts{};
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint64_t key = entries[i].key();
    for (int pass = 0; pass < passes; ++pass, key >>= digit_bits)
      ++counts[static_cast<std::size_t>(pass)][key % digits];
  }
  for (int pass = 0; pass < passes; ++pass) {
    auto& count = counts[static_cast<std::size_t>(pass)];
    const int shift = pass * digit_bits;
    if (count[entries[0].key() >> shift & (digits - 1)] == n) continue;  // all have the same digit
    std::int64_t start = 0;
    for (std::int64_t& c : count) start += std::exchange(c, start);
    for (std::int64_t i = 0; i < n; ++i) {
      const Entry entry = entries[i];
      other[count[entry.key() >> shift & (digits - 1)]++] = entry;
    }
    std::swap(entries, other);
  }
  return entries;
}

/// The first `wanted` of n > 0 entries in order, by what is quickest for these sizes. Both must have room for n
/// entries; the result is in the one that is returned.
template <class Entry>
Entry* sort_entries(Entry* entries, Entry* other, std::int64_t n, std::int64_t wanted, int key_bits) {
  constexpr std::int64_t few = 512;  // below, the passes over counts cost more than comparing
  if (wanted < n / 8) {
    std::partial_sort(entries, entries + wanted, entries + n);
    return entries;
  }
  if (n >= few) return radix_sort(entries, other, n, key_bits);
  std::sort(entries, entries + n);
  return entries;
}

}  // namespace sluice::cpu_backend
