#include "sluice/resources/memory_holders.h"

#include <algorithm>
#include <map>
#include <new>

#include "sluice/engine/bytes_in_words.h"

namespace sluice {

MemoryHolders::Holder MemoryHolders::find(const char* name, const char* layer) noexcept try {
  constexpr std::size_t kMost = 10'000;
  if (!name) return 0;
  const Key key{name, layer};
  if (const auto at = numbers_.find(key); at != numbers_.end()) return at->second;
  if (held_.size() == kMost) return 0;
  held_.reserve(held_.size() + 1);
  const auto number = static_cast<Holder>(held_.size() + 1);
  numbers_.emplace(key, number);
  held_.push_back({name, layer});
  return number;
} catch (const std::bad_alloc&) {
  return 0;
}

std::string MemoryHolders::in_words(std::size_t in_use, std::size_t lines) const {
  // One text may have several addresses.
  std::map<std::string, std::pair<std::size_t, std::size_t>> by_text;
  for (const Held& held : held_) {
    if (held.blocks == 0) continue;
    auto& [bytes, blocks] = by_text[std::string(held.name) + (*held.layer ? " in " + std::string(held.layer) : "")];
    bytes += held.bytes;
    blocks += held.blocks;
  }
  using Line = std::pair<std::string, std::pair<std::size_t, std::size_t>>;
  std::vector<Line> all(by_text.begin(), by_text.end());
  std::stable_sort(all.begin(), all.end(),
                   [](const Line& a, const Line& b) { return a.second.first > b.second.first; });
  if (all.size() > lines) all.resize(lines - 1);
  std::string text;
  std::size_t told = 0;
  for (const auto& [who, held] : all) {
    text += "\n  " + bytes_in_words(held.first) + "  " + who + ", " + std::to_string(held.second) +
            (held.second == 1 ? " block" : " blocks");
    told += held.first;
  }
  if (!all.empty() && in_use > told) text += "\n  " + bytes_in_words(in_use - told) + "  others";
  return text;
}

}  // namespace sluice
