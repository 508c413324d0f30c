#include "sluice/resources/cuda/cards.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

namespace sluice::cuda {
namespace {

namespace fs = std::filesystem;

/// The names in a directory; nothing where it cannot be read.
std::optional<std::vector<fs::path>> entries(const fs::path& directory) {
  std::error_code error;
  fs::directory_iterator at(directory, error);
  if (error) return std::nullopt;
  std::vector<fs::path> found;
  while (at != fs::directory_iterator()) {
    found.push_back(at->path());
    at.increment(error);
    if (error) return std::nullopt;
  }
  return found;
}

constexpr int kExcluded = -1;

/// "Device Minor: 	 0" of a card's file; kExcluded where it says that the driver leaves the card out.
std::optional<int> minor_of(const fs::path& card) {
  std::ifstream file(card / "information");
  std::optional<int> found;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("GPU Excluded:") && line.find("Yes") != std::string::npos) return kExcluded;
    if (!line.starts_with("Device Minor:")) continue;
    const std::size_t at = line.find_first_of("0123456789");
    int minor = 0;
    if (at == std::string::npos) return std::nullopt;
    if (std::from_chars(line.data() + at, line.data() + line.size(), minor).ec != std::errc()) return std::nullopt;
    found = minor;
  }
  return found;
}

/// A card in parts has a folder for each: the driver counts the parts in its own way.
bool in_parts(const CardSources& from) {
  const auto cards = entries(from.driver + "/capabilities");
  if (!cards) return false;
  for (const fs::path& card : *cards) {
    if (const auto parts = entries(card / "mig"); parts && !parts->empty()) {
      for (const fs::path& part : *parts) {
        if (part.filename().string().starts_with("gi")) return true;
      }
    }
  }
  return false;
}

/// As the driver's files say; nothing where they do not tell.
std::optional<int> by_files(const CardSources& from) {
  const auto cards = entries(from.driver + "/gpus");
  if (!cards || in_parts(from)) return std::nullopt;
  int count = 0;
  for (const fs::path& card : *cards) {
    const std::optional<int> minor = minor_of(card);
    if (!minor) return std::nullopt;
    if (*minor == kExcluded) continue;
    // Where it is not there the driver may make it when it is asked; or this is a container that was not given it, for
    // the files are the machine's there too.
    const std::string device = from.devices + "/nvidia" + std::to_string(*minor);
    if (access(device.c_str(), R_OK | W_OK) == 0) {
      ++count;
    } else if (errno == ENOENT) {
      return std::nullopt;
    }
  }
  return count;
}

/// How many of the cards CUDA_VISIBLE_DEVICES leaves: those before the first number that is no card's. Nothing where
/// it has other things than numbers, or one of them twice.
std::optional<int> visible(std::string_view text, int cards) {
  std::vector<bool> seen(static_cast<std::size_t>(cards));
  int count = 0;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    int card = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), card);
    if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
    if (card < 0 || card >= cards) return count;
    if (seen[static_cast<std::size_t>(card)]) return std::nullopt;
    seen[static_cast<std::size_t>(card)] = true;
    ++count;
  }
  return count;
}

CardCount by_library(const CardSources& from) {
  void* const library = dlopen(from.library.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (!library) return {};
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(library, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDeviceGetCount"));
  // It stays loaded: the backend uses it next, and it is not made to be unloaded.
  int cards = 0;
  if (!init || !count || init(0) != 0 || count(&cards) != 0) return {0, true};
  return {cards, true};
}

}  // namespace

CardCount count_cards(const CardSources& from) {
  if (from.visible && (!*from.visible || std::string_view(from.visible) == "-1")) return {};
  const std::optional<int> cards = by_files(from);
  if (cards && (*cards == 0 || !from.visible)) return {*cards, false};
  if (cards) {
    if (const std::optional<int> left = visible(from.visible, *cards)) return {*left, false};
  }
  return by_library(from);
}

}  // namespace sluice::cuda
