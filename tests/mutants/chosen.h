// Which mutant is on. The rewritten headers (rewrite.cc) ask at each site; -1: none, and they are as they were written.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace sluice::mutants {

inline constexpr int kMostSites = 2048;
inline int chosen = -1;
inline std::memory_order weaker = std::memory_order_relaxed;  ///< for `chosen`, if it is an order
inline std::array<std::uint32_t, kMostSites> passed{};        ///< how often each site was come by

inline bool is(int site) {
  ++passed[static_cast<std::size_t>(site)];
  return site == chosen;
}
/// An order.
inline std::memory_order order(int site, std::memory_order written) { return is(site) ? weaker : written; }
/// A call or a store: is it left out?
inline bool out(int site) { return is(site); }
/// What is added, subtracted or set: nothing.
template <class T>
T amount(int site, T written) {
  return is(site) ? T{} : written;
}
template <class T>
T& up(int site, T& x) {
  if (!is(site)) ++x;
  return x;
}
template <class T>
T& down(int site, T& x) {
  if (!is(site)) --x;
  return x;
}

}  // namespace sluice::mutants

/// For mutants made by hand.
namespace sluice::hand {
inline constexpr auto relaxed = std::memory_order_relaxed;
inline constexpr auto acquire = std::memory_order_acquire;
inline constexpr auto release = std::memory_order_release;
}  // namespace sluice::hand
