// Which mutant is on. The rewritten headers (rewrite.cc) ask at each site; -1: none, and they are as they were written.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <set>

#include "sluice/engine/explore/scheduler.h"
#include "sluice/engine/stream.h"

// They are rewritten, and must not be taken for the library's; but not where the programs run on the protocol as it is.
#ifndef SLUICE_AS_WRITTEN
#define StreamUses RewrittenStreamUses
#define VariableRare RewrittenVariableRare
#endif

namespace sluice::mutants {

inline constexpr int kMostSites = 2048;
inline int chosen = -1;
inline const char* chosen_name = "";
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

/// What the programs and the judge hang into the protocol (by_hand.txt: harness).
inline const char* broken = nullptr;  ///< an engine that ended was not as it must be
inline int cores = 0;                 ///< engines that live
inline int failing_starts = 0;        ///< one start of a drainer in so many fails; 0: none
inline int failing_pushes = 0;        ///< likewise of pushes, for want of memory
inline int failing_queues = 0;        ///< likewise of enqueues
inline int failing_waits = 0;         ///< likewise of waits for all that is live
inline std::size_t many_roots = 0;    ///< errors that the next engine keeps; 0: as it is
/// Variables that were deleted, to be told from those that are.
inline std::set<const void*> gone;
inline std::int64_t credit_batch = 0;  ///< of the next engine; 0: as it is
inline int over_the_cap = 0;           ///< pushes that went there
inline std::uint32_t turn = 0;
/// The strand that runs, as it stands.
inline detail::Sight sight() { return detail::running_sight ? *detail::running_sight : detail::Sight{}; }
/// Reads or writes a cell that stands for something the explorer cannot check.
inline void touch(detail::Cell& cell, const detail::Sight& me, bool writes,
                  const char* what = "a place in a batch is filled before it was emptied") {
  if (!detail::running_sight || (writes ? cell.write(me) : cell.read(me)) || broken) return;
  broken = what;
}
inline bool one_in(int n) { return n > 0 && ++turn % static_cast<std::uint32_t>(n) == 0; }
inline int first_starts = 0, first_slots = 0;  ///< so many fail: starts, and looks of drainers for a slot
inline bool first(int& n) { return n > 0 && n-- > 0; }
inline int failing_watchers = 0;    ///< so many starts of watchers fail
inline bool watch_stays = false;    ///< a watcher parks before it leaves, as in the product
inline bool looks_at_once = false;  ///< a look for circles is always due
inline int slots_of_others = 0;     ///< of threads that outlive an engine which ends inside of a run
inline bool start_fails() { return first(first_starts) || one_in(failing_starts); }
inline void expect(bool good, const char* what) {
  if (!good && !broken) broken = what;
}
std::unique_ptr<Stream> make_stream();

}  // namespace sluice::mutants

/// For mutants made by hand.
namespace sluice::hand {
inline constexpr auto relaxed = std::memory_order_relaxed;
inline constexpr auto acquire = std::memory_order_acquire;
inline constexpr auto release = std::memory_order_release;
inline constexpr auto acq_rel = std::memory_order_acq_rel;
}  // namespace sluice::hand
