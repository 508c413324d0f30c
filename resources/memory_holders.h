// MemoryHolders: how much of a device's memory the results of which ops hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sluice {

/// Counts, by the name and the layer of the op that took them, the blocks that are in use. Not thread-safe. Allocates
/// only for an op and layer that was not seen before.
class MemoryHolders {
 public:
  /// Names an op in a layer to add() and remove(); 0: none, which is not counted.
  using Holder = std::uint32_t;

  /// The holder for ops of this name in this layer (LayerScope's path; empty: none). Both texts must live as long as
  /// this, and are compared by their addresses. 0 for a null name, where there is no memory, and after 10,000 holders.
  Holder find(const char* name, const char* layer) noexcept;
  void add(Holder holder, std::size_t bytes) noexcept { change(holder, bytes, 1); }
  void remove(Holder holder, std::size_t bytes) noexcept { change(holder, 0 - bytes, std::size_t{0} - 1); }

  /// The largest in words, at most `lines` lines, each behind a line break: "\n  1.20 GiB  conv2d in encoder.2, 12
  /// blocks". What is left of `in_use` has a line of its own: "\n  20.00 MiB  others". Empty where no op holds
  /// anything.
  std::string in_words(std::size_t in_use, std::size_t lines = 8) const;

 private:
  struct Held {
    const char* name;
    const char* layer;
    std::size_t bytes = 0, blocks = 0;
  };
  using Key = std::pair<const char*, const char*>;
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept {
      const std::hash<const char*> hash;
      return hash(key.first) * 31 + hash(key.second);
    }
  };
  void change(Holder holder, std::size_t bytes, std::size_t blocks) noexcept {
    if (holder == 0) return;
    Held& held = held_[holder - 1];
    held.bytes += bytes;
    held.blocks += blocks;
  }

  std::unordered_map<Key, Holder, Hash> numbers_;
  std::vector<Held> held_;
};

}  // namespace sluice
