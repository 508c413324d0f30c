// A strand: a controlled thread of the explorer, on a fiber.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <utility>

#include "sluice/engine/detail/core_records.h"
#include "sluice/engine/explore/fiber.h"
#include "sluice/engine/explore/scheduler.h"

namespace sluice::detail {

/// What the engine and the language keep for a thread, while the strand is not running.
struct Explorer::Locals {
  SlotHint hint;
  ThreadState state;
  SlotCache* slots = nullptr;
  ScopeState* scope = nullptr;
  std::array<void*, 2> exceptions{};  // __cxa_eh_globals: what is caught, how many are on their way
};

struct Explorer::Strand {
  enum State : std::uint8_t { able, paused, parked, locked, ended } state = able;
  Sight sight;
  Fiber fiber;
  Locals locals;
  std::function<void()> body;
  const void* waits_for = nullptr;  // a mutex's or a parker's flag
  std::int64_t deadline = 0;
  // The last loads since it paused: where, and which store they saw.
  struct Look {
    std::uint32_t location, change;
  };
  static constexpr std::uint32_t kLooks = 16;
  std::array<Look, kLooks> looks;
  std::uint32_t look_count = 0;

  Strand() = default;
  explicit Strand(std::function<void()> run) : fiber(&Explorer::enter, this), body(std::move(run)) {}

  std::uint32_t bit() const { return std::uint32_t{1} << sight.strand; }
  void saw(std::uint32_t location, const StoreRecord& store) {
    std::uint32_t i = 0;
    while (i < look_count && looks[i].location != location) ++i;
    if (i == kLooks) return;
    looks[i] = {location, store.change};
    if (i == look_count) ++look_count;
  }
  /// What it stores itself is no news to it, where the store before was none.
  void stored(std::uint32_t location, std::uint32_t before, std::uint32_t change) {
    for (std::uint32_t i = 0; i < look_count; ++i)
      if (looks[i].location == location && looks[i].change == before) looks[i].change = change;
  }
};

}  // namespace sluice::detail
